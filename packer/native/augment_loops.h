/* The loops of augment.c, which includes this file once for each instruction set, with three macros:

    TARGET     the instruction set, as an attribute of every function
    F(name)    the function's name for that instruction set
    LANES      result rows that are resized together: 16 bytes of a vector hold a pixel of a row

A sample is computed some rows at a time (a chunk, which stays in the first caches): pixels are copied or
weighted into a row of floats, colour steps work on one plane per channel, then values are scaled, cast and
erased.
*/

#ifndef AUGMENT_LOOPS_H_ONCE
#define AUGMENT_LOOPS_H_ONCE

#define TIE 0x1p-12f
#define FAR (1 << 30) /* pixels farther away are not read */
#define WIDEST 65536.0f /* half a filter's width */
/* numbers for which scale and shift are laid out: complete pixels of 1 to 4 channels */
#define BLOCK 768
#define MOST_WIDE 8    /* taps per axis that are laid out before they are summed */
#define STEP_WIDTH 13
#define BOX_WIDTH 5
#define SOURCE_WIDTH 5
#define END 128 /* bytes of a row's last pixels, and of the numbers that `down` reads behind them */
#define STEPS_AT 18

enum { SHIFT, NEAREST, LINEAR, CUBIC };
enum { FILL, EDGE, REFLECT, SYMMETRIC };
/* how often the edge is repeated */
#define MIRRORS(what) ((what)->outside < REFLECT ? 0 : (what)->outside - REFLECT + 1)
enum { NONE, MATRIX, CONTRAST, HUE, SOLARIZE, POSTERIZE };
enum { UINT8, FLOAT32, FLOAT16, BFLOAT16 };
#define BYTES_OF(dtype) ((dtype) == UINT8 ? 1 : (dtype) == FLOAT32 ? 4 : 2)
enum { RUN, TABLE, SCATTER, APART, BILINEAR, WIDE, DIRECT }; /* methods of sampling */

/* Packed by native_pass.py, in this order. */
typedef struct {
    int32_t channels, height, width, sampling, outside, framed, steps, contrast, scaled, boxes, noise, dtype, source;
    int32_t across, down; /* strides of the means' grid */
    int32_t ragged, pixel; /* numbers per source pixel: channels, or more for ragged images, for APART only */
    float limit, fill[4], scale[4], shift[4], box_fill[4];
} What;

typedef struct {
    What what;
    const uint8_t *images;
    int64_t height, width; /* for ragged images the maximum */
    const float *columns;
    uint8_t *out;
    int64_t begin, end; /* samples */
    int past;           /* store past the caches */
} Job;

/* Memory of a call. */
typedef struct {
    int32_t *index, *first, *i0, *i1, *j0, *j1, *wide_index; /* one entry per result column */
    float *x, *y, *fx, *fy, *cover, *weights_x, *weights_y, *wide_weights, *floats, *planes, *grid, *steps;
    float scale[BLOCK], shift[BLOCK];
    uint8_t *pixels, *chunk;
    /* for APART: per lane a pointer and four times the weight of each tap down; sums of source columns, in
    lanes; ends of rows */
    const uint8_t **taps_down;
    float *lanes_down, *sums_down;
    uint8_t (*ends)[END];
    /* bytes of four pixels in lanes of 16, each of which becomes a vector */
    uint8_t (*spread)[LINE];
    /* how 16 pixels of four lanes, three numbers each, become full cache lines of four rows */
    int32_t (*pairs)[16], (*places)[16];
    int chunk_rows;
    int64_t most_across, most_down; /* taps */
} Room;

/* A sample, and the part of its pixels that is read. */
typedef struct {
    const uint8_t *image;
    const What *what;
    int height, width, stride; /* pixels between rows */
    float a, b, c, d, e, f, x0, y0, x1, y1, sx, sy, left, top, right, bottom, kx, ky;
    int left_tap, top_tap, right_tap, bottom_tap; /* box of the taps */
    int u0, du, nu, v0, dv;
    int way, taps; /* taps across, for APART */
    int from, to;  /* columns: the picture's run (RUN), or where cover is 1 (APART) */
    int lowest, highest; /* source columns that APART reads */
} Sample;

/* Return the columns of a sample. */
static inline int64_t
columns_of(const What *what)
{
    return STEPS_AT + STEP_WIDTH * what->steps + BOX_WIDTH * what->boxes + SOURCE_WIDTH * (what->ragged != 0);
}

/* Return the number of an image's first pixel, from the columns with its place; negative if only a later part of
the image is stored. */
static inline int64_t
place_of(const float *source)
{
    return (int64_t)source[0] * (1 << 24) + (int64_t)source[1];
}

/* Clamp; NaN becomes low. */
static inline float
within(float x, float low, float high)
{
    float raised = x > low ? x : low; /* in one expression, GCC does not make a minimum and maximum of it */
    return raised < high ? raised : high;
}

/* Set the taps' box for an image of known height and width. */
static inline void
read_taps(Sample *s, const float *column)
{
    s->x0 = floorf(within(column[6], 0, (float)(s->width - 1)));
    s->y0 = floorf(within(column[7], 0, (float)(s->height - 1)));
    s->x1 = floorf(within(column[8], 0, (float)(s->width - 1)));
    s->y1 = floorf(within(column[9], 0, (float)(s->height - 1)));
    if (s->x0 > s->x1) s->x0 = s->x1;
    if (s->y0 > s->y1) s->y0 = s->y1;
    s->left_tap = (int)s->x0, s->top_tap = (int)s->y0, s->right_tap = (int)s->x1, s->bottom_tap = (int)s->y1;
}

static inline int
whole(float x)
{
    return (int)within(floorf(x), -FAR, FAR);
}

static inline int
inside(int tap, int first, int last, int reflect)
{
    if (tap >= first && tap <= last) return tap;
    if (reflect) {
        int twice = reflect - 1, period = 2 * (last - first + twice);
        if (period <= 0) return last;
        int away = (tap - first) % period;
        if (away < 0) away += period;
        int back = period - twice - away;
        return first + (away < back ? away : back);
    }
    return tap < first ? first : last;
}

static inline float
edge(float distance)
{
    return within(distance + 0.5f, 0, 1);
}

/* Return a tap's weight, `near` half filter widths away. */
static inline float
filtered(float near, int cubic)
{
    if (!cubic) return near < 1 ? 1 - near : 0;
    float t = 2 * near;
    if (t < 1) return (1.5f * t - 2.5f) * t * t + 1;
    return t < 2 ? ((2.5f - 0.5f * t) * t - 4) * t + 2 : 0;
}

/* Compute a filter's taps at x, consecutive from *first; return their number. The weights sum to 1. */
static inline int
taps_at(float x, float half, int low, int high, int reflect, int cubic, float *weights, int *first)
{
    int start = whole(x - half) + 1, count = (int)ceilf(2 * half), end = start + count - 1, n = 0;
    float inverse = 1 / half, sum = 0;
    if (!reflect || (start >= low && end <= high)) {
        if (start < low) start = low;
        if (end > high) end = high;
        if (!cubic) /* two loops, so that the test is outside */
            for (int i = start; i <= end; i++) {
                weights[n] = filtered(fabsf((float)i - x) * inverse, 0);
                sum += weights[n++];
            }
        else
            for (int i = start; i <= end; i++) {
                weights[n] = filtered(fabsf((float)i - x) * inverse, 1);
                sum += weights[n++];
            }
    } else { /* mirrored taps are one run, too */
        int least = high, most = low;
        for (int i = start; i <= end; i++) {
            int at = inside(i, low, high, reflect);
            if (at < least) least = at;
            if (at > most) most = at;
        }
        n = most - least + 1;
        for (int k = 0; k < n; k++) weights[k] = 0;
        for (int i = start; i <= end; i++) {
            float weight = filtered(fabsf((float)i - x) * inverse, cubic);
            weights[inside(i, low, high, reflect) - least] += weight;
            sum += weight;
        }
        start = least;
    }
    if (n <= 0) { /* an empty box */
        *first = high;
        weights[0] = 1;
        return 1;
    }
    sum = 1 / sum;
    for (int k = 0; k < n; k++) weights[k] *= sum;
    while (n > 1 && weights[n - 1] == 0) n--;
    *first = start;
    return n;
}

typedef float Four __attribute__((vector_size(16)));
#ifdef VECTORS
typedef float Eight __attribute__((vector_size(32)));
typedef int32_t Index4 __attribute__((vector_size(16)));
typedef int32_t Index8 __attribute__((vector_size(32)));
typedef uint8_t Bytes4 __attribute__((vector_size(4)));
typedef uint8_t Bytes8 __attribute__((vector_size(8)));
typedef uint8_t Bytes16 __attribute__((vector_size(16)));
#if defined(__clang__)
#define MIRROR(v) __builtin_shufflevector(v, v, 13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, 0)
#define NEXT_PIXEL(v) __builtin_shufflevector(v, v, 3, 4, 5, 6, 3, 4, 5, 6)
#define PICK(v, w, a, b, c, d) __builtin_shufflevector(v, w, a, b, c, d)
#else
#define MIRROR(v) __builtin_shuffle(v, (Bytes16){13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, 0})
#define NEXT_PIXEL(v) __builtin_shuffle(v, (Index8){3, 4, 5, 6, 3, 4, 5, 6})
#define PICK(v, w, a, b, c, d) __builtin_shuffle(v, w, (Index4){a, b, c, d})
#endif
#endif

#endif /* PASS_H_ONCE */

typedef float F(Lanes) __attribute__((vector_size(16 * LANES)));

/* ---- unweighted pixels ---- */

TARGET static void
F(mirrored)(uint8_t *restrict to, const uint8_t *restrict from, int n, int size)
{
    int i = 0;
#ifdef VECTORS
    if (size == 3) /* five pixels, and a byte before them that is dropped */
        for (; i + 6 <= n; i += 5) {
            Bytes16 five;
            memcpy(&five, from + 3 * (n - 5 - i) - 1, 16);
            five = MIRROR(five);
            memcpy(to + 3 * i, &five, 16);
        }
#endif
    switch (size) {
    case 1:
        for (; i < n; i++) to[i] = from[n - 1 - i];
        break;
    case 3:
        for (; i < n; i++) memcpy(to + 3 * i, from + 3 * (n - 1 - i), 3);
        break;
    case 4:
        for (; i < n; i++) memcpy(to + 4 * i, from + 4 * (n - 1 - i), 4);
        break;
    default:
        for (; i < n; i++) memcpy(to + size * i, from + size * (n - 1 - i), (size_t)size);
    }
}

#define GATHER(size) \
    for (int u = begin; u < end; u++) memcpy(to + (size)*u, index[u] < 0 ? fill : from + (size) * (int64_t)index[u], size)

TARGET static void
F(gathered)(uint8_t *restrict to, const uint8_t *from, const int32_t *index, int begin, int end, int size,
            const uint8_t *fill)
{
    switch (size) {
    case 1: GATHER(1); break;
    case 2: GATHER(2); break;
    case 3: GATHER(3); break;
    case 4: GATHER(4); break;
    case 8: GATHER(8); break;
    case 12: GATHER(12); break;
    default: GATHER(16);
    }
}

TARGET static void
F(positions)(const Sample *s, Room *room, float v)
{
    float *restrict x = room->x, *restrict y = room->y, *restrict cover = room->cover;
    float bx = s->b * v + s->c, ey = s->e * v + s->f, a = s->a, d = s->d;
    int n = s->nu, u0 = s->u0, du = s->du;
    for (int i = 0; i < n; i++) {
        float u = (float)(u0 + du * i);
        x[i] = a * u + bx;
        y[i] = d * u + ey;
    }
    if (!s->what->framed || s->what->sampling < LINEAR) return;
    float left = s->left, right = s->right, top = s->top, bottom = s->bottom, kx = s->kx, ky = s->ky;
    APART_IN_MEMORY
    for (int i = 0; i < n; i++)
        cover[i] = edge((x[i] - left) * kx) * edge((right - x[i]) * kx) * edge((y[i] - top) * ky) *
                   edge((bottom - y[i]) * ky);
}

/* Return row v's adjacent pixels in the source's type: in the image, or copied to `room`. */
TARGET static const uint8_t *
F(pixel_row)(const Sample *s, Room *room, int number, const uint8_t *fill)
{
    const What *what = s->what;
    int size = what->channels * BYTES_OF(what->source), reflect = MIRRORS(what), n = s->nu;
    float v = (float)(s->v0 + s->dv * number);
    uint8_t *to = room->pixels;
    if (s->way == SCATTER) {
        int32_t *restrict index = room->index;
        float *restrict xs = room->x, *restrict ys = room->y;
        F(positions)(s, room, v);
        if (reflect) {
            for (int i = 0; i < n; i++)
                index[i] = inside(whole(ys[i] + TIE + 0.5f), s->top_tap, s->bottom_tap, reflect) * s->stride +
                           inside(whole(xs[i] + TIE + 0.5f), s->left_tap, s->right_tap, reflect);
        } else {
            float x0 = s->x0, x1 = s->x1, y0 = s->y0, y1 = s->y1;
            int32_t stride = s->stride;
            APART_IN_MEMORY
            for (int i = 0; i < n; i++) /* clamping to the box first rounds positions to the same pixel */
                index[i] = (int32_t)(within(ys[i] + TIE, y0, y1) + 0.5f) * stride +
                           (int32_t)(within(xs[i] + TIE, x0, x1) + 0.5f);
        }
        if (what->framed) {
            float left = s->left, right = s->right, top = s->top, bottom = s->bottom;
            APART_IN_MEMORY
            for (int i = 0; i < n; i++) {
                float x = xs[i] + TIE, y = ys[i] + TIE;
                int32_t in = (x >= left) & (x < right) & (y >= top) & (y < bottom);
                index[i] = in ? index[i] : -1;
            }
        }
        F(gathered)(to, s->image, index, 0, n, size, fill);
        return to;
    }
    float y = s->e * v + s->f + TIE;
    if (what->framed && !(y >= s->top && y < s->bottom)) {
        for (int i = 0; i < n; i++) memcpy(to + size * i, fill, (size_t)size);
        return to;
    }
    int row = inside(whole(y + 0.5f), s->top_tap, s->bottom_tap, reflect);
    const uint8_t *from = s->image + (int64_t)row * s->stride * size;
    if (s->way == TABLE) {
        F(gathered)(to, from, room->index, 0, n, size, fill);
        return to;
    }
    if (s->a > 0) {
        const uint8_t *run = from + (int64_t)room->index[s->from] * size;
        if (s->from == 0 && s->to == n) return run;
        memcpy(to + size * s->from, run, (size_t)(size * (s->to - s->from)));
    } else {
        F(mirrored)(to + size * s->from, from + (int64_t)room->index[s->to - 1] * size, s->to - s->from, size);
    }
    F(gathered)(to, from, room->index, 0, s->from, size, fill);
    F(gathered)(to, from, room->index, s->to, n, size, fill);
    return to;
}

/* ---- weighted pixels ---- */

TARGET INLINE void
F(four_bytes)(const uint8_t *bytes, Four *numbers)
{
#if LANES > 1 /* GCC converts the lanes one by one */
    int32_t four;
    memcpy(&four, bytes, 4);
    *numbers = (Four)_mm_cvtepi32_ps(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(four)));
#elif defined(VECTORS)
    Bytes4 four;
    memcpy(&four, bytes, 4);
    *numbers = __builtin_convertvector(four, Four);
#else
    for (int i = 0; i < 4; i++) (*numbers)[i] = bytes[i];
#endif
}

/* Unturned results are computed LANES rows at a time: taps down are summed first, for each source column,
then those sums across. With one lane, a column's sums are the numbers of a source pixel, which vectors of
any width add; else a vector. */

#if LANES == 1
#define COLUMN(pixel) (pixel)
#define ROW(T, k) const T *restrict r##k = rows[k]; float w##k = weights[k];
#define DOWN(T)                                                                                                        \
    TARGET static void F(down_##T)(float *restrict to, const T **rows, const float *weights, int n, int64_t columns,   \
                                   int64_t more, int pixel, const Room *room)                                          \
    {                                                                                                                  \
        int64_t count = columns * pixel;                                                                               \
        (void)more, (void)room;                                                                                        \
        if (n == 1) {                                                                                                  \
            ROW(T, 0)                                                                                                  \
            for (int64_t i = 0; i < count; i++) to[i] = w0 * (float)r0[i];                                             \
        } else if (n == 2) {                                                                                           \
            ROW(T, 0) ROW(T, 1)                                                                                        \
            for (int64_t i = 0; i < count; i++) to[i] = w0 * (float)r0[i] + w1 * (float)r1[i];                         \
        } else {                                                                                                       \
            ROW(T, 0) ROW(T, 1) ROW(T, 2)                                                                              \
            for (int64_t i = 0; i < count; i++)                                                                        \
                to[i] = w0 * (float)r0[i] + w1 * (float)r1[i] + w2 * (float)r2[i];                                     \
            for (rows += 3, weights += 3, n -= 3; n >= 3; rows += 3, weights += 3, n -= 3) {                           \
                ROW(T, 0) ROW(T, 1) ROW(T, 2)                                                                          \
                for (int64_t i = 0; i < count; i++)                                                                    \
                    to[i] += w0 * (float)r0[i] + w1 * (float)r1[i] + w2 * (float)r2[i];                                \
            }                                                                                                          \
            for (; n > 0; rows++, weights++, n--) {                                                                    \
                ROW(T, 0)                                                                                              \
                for (int64_t i = 0; i < count; i++) to[i] += w0 * (float)r0[i];                                        \
            }                                                                                                          \
        }                                                                                                              \
    }
#else
#define COLUMN(pixel) (4 * LANES)

/* The bytes of four pixels in each lane, and the vector that each of them becomes. */
#if LANES == 4
typedef __m512i F(Bytes);
#define LOAD_BYTES(from) _mm512_loadu_si512(from)
#define WIDEN(which) (F(Lanes))_mm512_cvtepi32_ps(_mm512_shuffle_epi8(bytes, which))
#else
typedef __m256i F(Bytes);
#define LOAD_BYTES(from) _mm256_loadu_si256((const __m256i *)(from))
#define WIDEN(which) (F(Lanes))_mm256_cvtepi32_ps(_mm256_shuffle_epi8(bytes, which))
#endif
typedef struct {
    F(Lanes) a, b, c, d;
} F(Pixels);
typedef struct {
    F(Bytes) a, b, c, d;
} F(Spread);

/* Load four pixels of LANES rows, from number `at` on, of `pixel` numbers each; up to MORE numbers behind
them are read. */
#define MORE_uint8_t(pixel) (16 - 4 * (pixel))
#define MORE_float(pixel) (4 - (pixel))

TARGET INLINE void
F(load_uint8_t)(F(Pixels) *to, const uint8_t *const *rows, int64_t at, int pixel, const F(Spread) *spread)
{
    __m256i early = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(rows[0] + at)));
    early = _mm256_inserti128_si256(early, _mm_loadu_si128((const __m128i *)(rows[1] + at)), 1);
#if LANES == 4 /* halves of 256 bits first: inserting into 512 bits takes twice as long */
    __m256i late = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(rows[2] + at)));
    late = _mm256_inserti128_si256(late, _mm_loadu_si128((const __m128i *)(rows[3] + at)), 1);
    F(Bytes) bytes = _mm512_inserti64x4(_mm512_castsi256_si512(early), late, 1);
#else
    F(Bytes) bytes = early;
#endif
    (void)pixel;
    to->a = WIDEN(spread->a), to->b = WIDEN(spread->b), to->c = WIDEN(spread->c), to->d = WIDEN(spread->d);
}

TARGET INLINE void
F(load_float)(F(Pixels) *to, const float *const *rows, int64_t at, int pixel, const F(Spread) *spread)
{
    (void)spread;
    for (int lane = 0; lane < LANES; lane++) {
        const float *from = rows[lane] + at;
        memcpy((float *)&to->a + 4 * lane, from, 16);
        memcpy((float *)&to->b + 4 * lane, from + pixel, 16);
        memcpy((float *)&to->c + 4 * lane, from + 2 * pixel, 16);
        memcpy((float *)&to->d + 4 * lane, from + 3 * pixel, 16);
    }
}

/* Sum n taps down for `count` columns; may write three more. rows: per tap and lane; more: numbers behind the
last tap's pixels that may be read. */
#define DOWN(T)                                                                                                        \
    TARGET INLINE void F(down_any_##T)(F(Lanes) *to, const T *const *rows, const F(Lanes) *weights, int n,             \
                                       int64_t count, int pixel, const Room *room)                                     \
    {                                                                                                                  \
        F(Spread) spread = {LOAD_BYTES(room->spread[0]), LOAD_BYTES(room->spread[1]), LOAD_BYTES(room->spread[2]),     \
                            LOAD_BYTES(room->spread[3])};                                                              \
        for (int64_t i = 0; i < count; i += 4) {                                                                       \
            F(Pixels) sums = {{0}, {0}, {0}, {0}}, pixels;                                                             \
            for (int k = 0; k < n; k++) {                                                                              \
                F(load_##T)(&pixels, rows + LANES * k, i * pixel, pixel, &spread);                                     \
                sums.a += pixels.a * weights[k], sums.b += pixels.b * weights[k];                                      \
                sums.c += pixels.c * weights[k], sums.d += pixels.d * weights[k];                                      \
            }                                                                                                          \
            to[i] = sums.a, to[i + 1] = sums.b, to[i + 2] = sums.c, to[i + 3] = sums.d;                                \
        }                                                                                                              \
    }                                                                                                                  \
    TARGET static void F(down_##T)(float *sums, const T **rows, const float *weights_down, int n, int64_t count,       \
                                   int64_t more, int pixel, const Room *room)                                          \
    {                                                                                                                  \
        F(Lanes) *to = (F(Lanes) *)sums;                                                                               \
        const F(Lanes) *weights = (const F(Lanes) *)weights_down;                                                      \
        int64_t sure = (count * pixel + more - MORE_##T(pixel)) / (4 * pixel) * 4;                                     \
        if (sure > count) sure = count;                                                                                \
        if (sure < 0) sure = 0;                                                                                        \
        switch (n) {                                                                                                   \
        case 1: F(down_any_##T)(to, rows, weights, 1, sure, pixel, room); break;                                       \
        case 2: F(down_any_##T)(to, rows, weights, 2, sure, pixel, room); break;                                       \
        case 3: F(down_any_##T)(to, rows, weights, 3, sure, pixel, room); break;                                       \
        default: F(down_any_##T)(to, rows, weights, n, sure, pixel, room);                                             \
        }                                                                                                              \
        if (sure == count) return;                                                                                     \
        for (int k = 0; k < LANES * n; k++) { /* the others are copied to where something is behind them */            \
            memcpy(room->ends[k], rows[k] + sure * pixel, sizeof(T) * (size_t)((count - sure) * pixel));               \
            rows[k] = (const T *)room->ends[k];                                                                        \
        }                                                                                                              \
        F(down_any_##T)(to + sure, rows, weights, n, count - sure, pixel, room);                                       \
    }
#endif
DOWN(uint8_t)
DOWN(float)
#undef DOWN
#undef ROW
#undef MORE_uint8_t
#undef MORE_float
#undef LOAD_BYTES
#undef WIDEN

/* Add the taps across, from a column on. */
TARGET INLINE F(Lanes)
F(summed)(const float *sums, const float *weights, int taps, int column, F(Lanes) sum)
{
    for (int k = 0; k < taps; k++) {
        F(Lanes) pixel;
        memcpy(&pixel, sums + column * k, sizeof pixel);
        sum += pixel * weights[k];
    }
    return sum;
}

#if LANES == 4
/* For 16 or more pixels of three numbers. lines: `to` and `apart` are complete cache lines and n is a
multiple of 16 pixels, so that lines can be stored past the caches. */
TARGET INLINE void
F(across_lines)(float *to, int64_t apart, int rows, const float *sums, const Room *room, int n, int taps, F(Lanes) begin, int lines)
{
    __m512i early = _mm512_load_si512(room->pairs[0]), late = _mm512_load_si512(room->pairs[1]);
#define SUM(i) (__m512) F(summed)(sums + 16 * (int64_t)room->first[i], room->weights_x + (int64_t)taps * (i), taps, 16, begin)
    for (int i = 0; i < n; i += 16) {
        __m512 made[4][4]; /* each four pixels of each row, at their place in its lines */
        if (i > n - 16) i = n - 16;
#pragma GCC unroll 4
        for (int g = 0; g < 4; g++) {
            __m512 a = SUM(i + 4 * g), b = SUM(i + 4 * g + 1), c = SUM(i + 4 * g + 2), d = SUM(i + 4 * g + 3);
            __m512 ab = _mm512_permutex2var_ps(a, early, b), cd = _mm512_permutex2var_ps(c, early, d);
            made[g][0] = _mm512_permutex2var_ps(ab, _mm512_load_si512(room->places[g]), cd);
            made[g][1] = _mm512_permutex2var_ps(ab, _mm512_load_si512(room->places[4 + g]), cd);
            ab = _mm512_permutex2var_ps(a, late, b), cd = _mm512_permutex2var_ps(c, late, d);
            made[g][2] = _mm512_permutex2var_ps(ab, _mm512_load_si512(room->places[g]), cd);
            made[g][3] = _mm512_permutex2var_ps(ab, _mm512_load_si512(room->places[4 + g]), cd);
        }
#pragma GCC unroll 4
        for (int row = 0; row < 4; row++) {
            __m512 one = _mm512_mask_mov_ps(made[0][row], 0xf000, made[1][row]);
            __m512 two = _mm512_mask_mov_ps(made[1][row], 0xff00, made[2][row]);
            __m512 three = _mm512_mask_mov_ps(made[2][row], 0xfff0, made[3][row]);
            float *at = to + row * apart + 3 * i;
            if (row >= rows) break;
            if (lines)
                _mm512_stream_ps(at, one), _mm512_stream_ps(at + 16, two), _mm512_stream_ps(at + 32, three);
            else
                _mm512_storeu_ps(at, one), _mm512_storeu_ps(at + 16, two), _mm512_storeu_ps(at + 32, three);
        }
    }
#undef SUM
}
#endif

/* Sum the taps across of result rows that lie `apart` numbers from each other. begin: first tap of each
sum. */
TARGET INLINE void
F(across_any)(float *to, int64_t apart, int rows, const float *sums, const Room *room, int n, int taps, int channels, int column,
              F(Lanes) begin, int lines)
{
#if LANES == 4
    if (channels == 3 && n >= 16) {
        F(across_lines)(to, apart, rows, sums, room, n, taps, begin, lines);
        return;
    }
#endif
    (void)lines;
    const int32_t *first = room->first;
    const float *weights = room->weights_x;
    for (int i = 0; i < n; i++, first++, weights += taps, to += channels) {
        F(Lanes) sum = F(summed)(sums + (int64_t)column * *first, weights, taps, column, begin);
        const char *lane = (const char *)&sum;
        /* for three channels a fourth number is stored, which the next pixel overwrites */
        if (channels >= 3 && i < n - 1)
            for (int row = 0; row < rows; row++) memcpy(to + row * apart, lane + 16 * row, 16);
        else
            for (int row = 0; row < rows; row++) memcpy(to + row * apart, lane + 16 * row, 4 * (size_t)channels);
    }
}

#define ACROSS(taps, channels, column) F(across_any)(to, apart, rows, sums, room, n, taps, channels, column, begin, lines)
#define ACROSS_CHANNELS(taps)                        \
    switch (channels) {                              \
    case 1: ACROSS(taps, 1, COLUMN(1)); break;       \
    case 2: ACROSS(taps, 2, COLUMN(2)); break;       \
    case 3:                                          \
        if (column == COLUMN(4))                     \
            ACROSS(taps, 3, COLUMN(4));              \
        else                                         \
            ACROSS(taps, 3, COLUMN(3));              \
        break;                                       \
    default: ACROSS(taps, 4, COLUMN(4));             \
    }

TARGET static void
F(across)(float *to, int64_t apart, int rows, const float *sums, const Room *room, int n, int taps, int channels, int column,
          F(Lanes) begin, int lines)
{
    (void)column;
    switch (taps) {
    case 1: ACROSS_CHANNELS(1) break;
    case 2: ACROSS_CHANNELS(2) break;
    case 3: ACROSS_CHANNELS(3) break;
    case 4: ACROSS_CHANNELS(4) break;
    default: ACROSS_CHANNELS(taps)
    }
}
#undef ACROSS
#undef ACROSS_CHANNELS

/* Compute rows `number` on, at most LANES. scaled: includes step 4; lines: see `across_lines`. */
TARGET static void
F(apart_rows)(const Sample *s, Room *room, int number, int rows, float *to, int scaled, int lines)
{
    const What *what = s->what;
    int reflect = MIRRORS(what), channels = what->channels, pixel = what->pixel, cubic = what->sampling == CUBIC;
    int first[LANES], counts[LANES], n = 1, last = 0;
    float y[LANES], *weights = room->weights_y;
    F(Lanes) begin = {0};
    Four scale = {1, 1, 1, 1};
    for (int c = 0; c < channels && scaled; c++) {
        scale[c] = what->scale[c];
        for (int lane = 0; lane < LANES; lane++) begin[4 * lane + c] = what->shift[c];
    }
    /* lanes without a row repeat the last row */
    for (int lane = 0; lane < LANES; lane++, weights += room->most_down) {
        y[lane] = s->e * (float)(s->v0 + s->dv * (number + (lane < rows ? lane : rows - 1))) + s->f;
        counts[lane] = taps_at(reflect ? y[lane] : within(y[lane], s->y0, s->y1), s->sy, s->top_tap, s->bottom_tap, reflect,
                               cubic, weights, &first[lane]);
        if (counts[lane] > n) n = counts[lane];
        if (first[lane] + counts[lane] - 1 > last) last = first[lane] + counts[lane] - 1;
    }
    int64_t size = pixel * BYTES_OF(what->source);
    for (int k = 0; k < n; k++)
        /* a lane with fewer taps repeats its last tap with weight 0 */
        for (int lane = 0; lane < LANES; lane++) {
            int tap = k < counts[lane] ? k : counts[lane] - 1;
            Four weight = scale * (k < counts[lane] ? room->weights_y[lane * room->most_down + k] : 0);
            memcpy(room->lanes_down + 4 * (LANES * k + lane), &weight, 16);
            room->taps_down[LANES * k + lane] = s->image + ((int64_t)(first[lane] + tap) * s->stride + s->lowest) * size;
        }
    int64_t count = s->highest - s->lowest + 1, more = (int64_t)(s->bottom_tap - last) * s->stride * pixel;
    int column = COLUMN(pixel);
    float *sums = room->sums_down;
    weights = LANES > 1 ? room->lanes_down : room->weights_y;
    if (what->source == FLOAT32)
        F(down_float)(sums, (const float **)room->taps_down, weights, n, count, more, pixel, room);
    else
        F(down_uint8_t)(sums, room->taps_down, weights, n, count, more, pixel, room);
    memset(sums + column * count, 0, sizeof *sums * (size_t)(column * s->taps + 4));
    int64_t apart = (int64_t)s->nu * channels;
    F(across)(to, apart, rows, sums, room, s->nu, s->taps, channels, column, begin, lines);
    for (int row = 0; row < rows; row++, to += apart) {
        if (cubic && what->limit > 1)
            for (int i = 0; i < apart; i++) to[i] = within(to[i], 0, what->limit);
        if (!what->framed) continue;
        float covered = edge((y[row] - s->top) * s->ky) * edge((s->bottom - y[row]) * s->ky);
        for (int i = 0; i < s->nu; i++) {
            if (covered == 1 && i == s->from) {
                i = s->to;
                if (i >= s->nu) break;
            }
            float cover = covered * room->cover[i];
            for (int c = 0; c < channels; c++) {
                float *number_at = to + channels * i + c;
                *number_at = cover > 0 ? cover * *number_at + (1 - cover) * what->fill[c] : what->fill[c];
            }
        }
    }
}

/* Corners and fractions of support 1. A corner that equals its neighbour has weight 0. */
TARGET static void
F(corners)(const Sample *s, Room *room)
{
    float *restrict x = room->x, *restrict y = room->y, *restrict fx = room->fx, *restrict fy = room->fy;
    int32_t *restrict i0 = room->i0, *restrict i1 = room->i1, *restrict j0 = room->j0, *restrict j1 = room->j1;
    int n = s->nu, reflect = MIRRORS(s->what);
    if (reflect) {
        for (int i = 0; i < n; i++) {
            float xi = within(x[i], -FAR, FAR), yi = within(y[i], -FAR, FAR);
            int column = whole(xi), row = whole(yi);
            fx[i] = xi - (float)column, fy[i] = yi - (float)row;
            i0[i] = inside(column, s->left_tap, s->right_tap, reflect);
            i1[i] = inside(column + 1, s->left_tap, s->right_tap, reflect);
            j0[i] = inside(row, s->top_tap, s->bottom_tap, reflect);
            j1[i] = inside(row + 1, s->top_tap, s->bottom_tap, reflect);
        }
        return;
    }
    float x0 = s->x0, x1 = s->x1, y0 = s->y0, y1 = s->y1;
    int last_i = s->right_tap, last_j = s->bottom_tap;
    APART_IN_MEMORY
    for (int i = 0; i < n; i++) {
        float xi = within(x[i], x0, x1), yi = within(y[i], y0, y1);
        int32_t column = (int32_t)xi, row = (int32_t)yi; /* both are non-negative */
        fx[i] = xi - (float)column, fy[i] = yi - (float)row;
        i0[i] = column, j0[i] = row;
        i1[i] = column < last_i ? column + 1 : last_i;
        j1[i] = row < last_j ? row + 1 : last_j;
    }
}

TARGET INLINE float
F(number)(const Sample *s, int64_t at)
{
    return s->what->source == UINT8 ? (float)s->image[at] : ((const float *)s->image)[at];
}

TARGET INLINE void
F(bilinear_any)(const Sample *s, const Room *room, int i, float *to, int channels)
{
    float fx = room->fx[i], fy = room->fy[i];
    int64_t top = (int64_t)room->j0[i] * s->stride, bottom = (int64_t)room->j1[i] * s->stride;
    int left = room->i0[i], right = room->i1[i];
    for (int c = 0; c < channels; c++) {
        float one = F(number)(s, (top + left) * channels + c), two = F(number)(s, (top + right) * channels + c);
        float three = F(number)(s, (bottom + left) * channels + c);
        float four = F(number)(s, (bottom + right) * channels + c);
        float upper = one * (1 - fx) + two * fx, lower = three * (1 - fx) + four * fx;
        to[channels * i + c] = upper * (1 - fy) + lower * fy;
    }
}

#ifdef VECTORS
TARGET INLINE void
F(eight)(const uint8_t *bytes, Eight *numbers)
{
#ifdef AVX2 /* GCC converts the lanes one by one */
    *numbers = (Eight)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)bytes)));
#else
    Bytes8 eight;
    memcpy(&eight, bytes, 8);
    *numbers = __builtin_convertvector(eight, Eight);
#endif
}
#endif

TARGET static void
F(bilinear_row)(const Sample *s, Room *room, float *to)
{
    int n = s->nu, channels = s->what->channels, i = 0;
    F(corners)(s, room);
#ifdef VECTORS
    if (channels == 3 && s->what->source == UINT8 && !MIRRORS(s->what)) {
        const int32_t *i0 = room->i0, *j0 = room->j0, *j1 = room->j1;
        int64_t last = ((int64_t)(s->height - 1) * s->stride + s->width) * 3 - 8;
        uint8_t ends[2][8] = {{0}}; /* of the last pixels: rounding must not depend on where an image ends */
        for (; i < n; i++) { /* two pixels, and two bytes that are dropped */
            int64_t top = ((int64_t)j0[i] * s->stride + i0[i]) * 3, bottom = ((int64_t)j1[i] * s->stride + i0[i]) * 3;
            const uint8_t *upper = s->image + top, *lower = s->image + bottom;
            if (top > last) upper = memcpy(ends[0], upper, (size_t)(last + 8 - top));
            if (bottom > last) lower = memcpy(ends[1], lower, (size_t)(last + 8 - bottom));
            Eight one, two;
            F(eight)(upper, &one);
            F(eight)(lower, &two);
            float fx = room->fx[i], fy = room->fy[i];
            one = one * (1 - fy) + two * fy;
            two = NEXT_PIXEL(one);
            one = one * (1 - fx) + two * fx;
            memcpy(to + 3 * i, &one, 16);
        }
    }
#endif
    switch (channels) {
    case 1:
        for (; i < n; i++) F(bilinear_any)(s, room, i, to, 1);
        break;
    case 3:
        for (; i < n; i++) F(bilinear_any)(s, room, i, to, 3);
        break;
    default:
        for (; i < n; i++) F(bilinear_any)(s, room, i, to, channels);
    }
}

/* Lay out the taps of a row's results on one axis, and their weights: one array per tap, so that columns
become vectors. */
TARGET static void
F(wide_taps)(const float *restrict at, int n, float half, float low, float high, int taps, int32_t *restrict index,
             float *restrict weights, float *restrict sums)
{
    float inverse = 1 / half;
    for (int i = 0; i < n; i++) sums[i] = 0;
    for (int k = 0; k < taps; k++) {
        int32_t *restrict index_k = index + k * n;
        float *restrict weights_k = weights + k * n;
        APART_IN_MEMORY
        for (int i = 0; i < n; i++) {
            float x = within(at[i], low, high), tap = floorf(x - half) + (float)(k + 1);
            float weight = 1 - fabsf(tap - x) * inverse, moved = within(tap, low, high);
            weight = weight > 0 ? weight : 0;
            weight = tap == moved ? weight : 0;
            index_k[i] = (int32_t)moved;
            weights_k[i] = weight;
            sums[i] += weight;
        }
    }
    for (int i = 0; i < n; i++) sums[i] = 1 / sums[i];
    for (int k = 0; k < taps; k++) {
        float *restrict weights_k = weights + k * n;
        for (int i = 0; i < n; i++) weights_k[i] *= sums[i];
    }
}

#ifdef VECTORS
TARGET INLINE void
F(four)(const Sample *s, int64_t at, Four *numbers)
{
    if (s->what->source == FLOAT32)
        memcpy(numbers, (const float *)s->image + at, 16);
    else
        F(four_bytes)(s->image + at, numbers);
}
#endif

/* Few taps, not mirrored. Where this is inlined, `channels`, and for support 1 to 1.5 `nx` and `ny`, are
constants. */
TARGET INLINE void
F(wide_any)(const Sample *s, const Room *room, float *to, int nx, int ny, int channels)
{
    int n = s->nu;
    const int32_t *across = room->wide_index, *down = across + MOST_WIDE * n;
    const float *weights_x = room->wide_weights, *weights_y = weights_x + MOST_WIDE * n;
    for (int i = 0; i < n; i++) {
        if (s->what->framed && !(room->cover[i] > 0)) {
            for (int c = 0; c < channels; c++) to[channels * i + c] = 0;
            continue;
        }
#ifdef VECTORS
        /* The last pixel of an image of three channels is followed by no fourth number. */
        int last = down[(ny - 1) * n + i] == s->height - 1 && across[(nx - 1) * n + i] == s->width - 1;
        if (channels == 4 || (channels == 3 && !last)) {
            Four sum = {0};
            for (int j = 0; j < ny; j++) {
                int64_t row = (int64_t)down[j * n + i] * s->stride;
                Four part = {0};
                for (int k = 0; k < nx; k++) {
                    Four pixel;
                    F(four)(s, (row + across[k * n + i]) * channels, &pixel);
                    part += pixel * weights_x[k * n + i];
                }
                sum += part * weights_y[j * n + i];
            }
            memcpy(to + channels * i, &sum, 16);
            continue;
        }
#endif
        float sums[4] = {0};
        for (int j = 0; j < ny; j++) {
            int64_t row = (int64_t)down[j * n + i] * s->stride;
            float part[4] = {0};
            for (int k = 0; k < nx; k++)
                for (int c = 0; c < channels; c++)
                    part[c] += F(number)(s, (row + across[k * n + i]) * channels + c) * weights_x[k * n + i];
            for (int c = 0; c < channels; c++) sums[c] += part[c] * weights_y[j * n + i];
        }
        for (int c = 0; c < channels; c++) to[channels * i + c] = sums[c];
    }
}

TARGET static void
F(wide_row)(const Sample *s, Room *room, float *to)
{
    int n = s->nu, nx = (int)ceilf(2 * s->sx), ny = (int)ceilf(2 * s->sy);
    F(wide_taps)(room->x, n, s->sx, s->x0, s->x1, nx, room->wide_index, room->wide_weights, room->fx);
    F(wide_taps)(room->y, n, s->sy, s->y0, s->y1, ny, room->wide_index + MOST_WIDE * n,
                 room->wide_weights + MOST_WIDE * n, room->fy);
    switch (s->what->channels) {
    case 1: F(wide_any)(s, room, to, nx, ny, 1); break;
    case 3:
        if (nx == 3 && ny == 3)
            F(wide_any)(s, room, to, 3, 3, 3);
        else
            F(wide_any)(s, room, to, nx, ny, 3);
        break;
    case 4: F(wide_any)(s, room, to, nx, ny, 4); break;
    default: F(wide_any)(s, room, to, nx, ny, 2);
    }
}

/* Sum every tap of every pixel. */
TARGET INLINE void
F(direct_any)(const Sample *s, Room *room, float *to, int channels)
{
    int reflect = MIRRORS(s->what), cubic = s->what->sampling == CUBIC, across, down;
    for (int i = 0; i < s->nu; i++) {
        float x = room->x[i], y = room->y[i], sums[4] = {0};
        if (s->what->framed && !(room->cover[i] > 0)) {
            for (int c = 0; c < channels; c++) to[channels * i + c] = 0;
            continue;
        }
        if (!reflect) x = within(x, s->x0, s->x1), y = within(y, s->y0, s->y1);
        int nx = taps_at(x, s->sx, s->left_tap, s->right_tap, reflect, cubic, room->weights_x, &across);
        int ny = taps_at(y, s->sy, s->top_tap, s->bottom_tap, reflect, cubic, room->weights_y, &down);
        for (int j = 0; j < ny; j++) {
            int64_t at = ((int64_t)(down + j) * s->stride + across) * channels;
            float part[4] = {0};
            for (int k = 0; k < nx; k++)
                for (int c = 0; c < channels; c++) part[c] += room->weights_x[k] * F(number)(s, at + channels * k + c);
            for (int c = 0; c < channels; c++) sums[c] += room->weights_y[j] * part[c];
        }
        for (int c = 0; c < channels; c++)
            to[channels * i + c] = cubic && s->what->limit > 1 ? within(sums[c], 0, s->what->limit) : sums[c];
    }
}

TARGET static void
F(direct_row)(const Sample *s, Room *room, float *to)
{
    switch (s->what->channels) {
    case 1: F(direct_any)(s, room, to, 1); break;
    case 3: F(direct_any)(s, room, to, 3); break;
    default: F(direct_any)(s, room, to, s->what->channels);
    }
}

TARGET static void
F(turned_row)(const Sample *s, Room *room, int number, float *to)
{
    int channels = s->what->channels;
    F(positions)(s, room, (float)(s->v0 + s->dv * number));
    if (s->way == BILINEAR)
        F(bilinear_row)(s, room, to);
    else if (s->way == WIDE)
        F(wide_row)(s, room, to);
    else
        F(direct_row)(s, room, to);
    if (!s->what->framed) return;
    for (int i = 0; i < s->nu; i++) {
        float cover = room->cover[i];
        if (cover == 1) continue;
        for (int c = 0; c < channels; c++) {
            float *at = to + channels * i + c;
            *at = cover > 0 ? cover * *at + (1 - cover) * s->what->fill[c] : s->what->fill[c];
        }
    }
}

/* ---- choice of pixels ---- */

/* Choose the method, and lay out its data for each column. */
TARGET static void
F(prepare)(Sample *s, Room *room, int u0, int du, int nu, int v0, int dv)
{
    const What *what = s->what;
    int straight = s->b == 0 && s->d == 0, reflect = MIRRORS(what);
    s->u0 = u0, s->du = du, s->nu = nu, s->v0 = v0, s->dv = dv;
    if (!straight) {
        if (what->sampling < LINEAR)
            s->way = SCATTER;
        else if (what->sampling == CUBIC)
            s->way = DIRECT;
        else if (s->sx == 1 && s->sy == 1)
            s->way = BILINEAR;
        else
            s->way = !reflect && 2 * s->sx <= MOST_WIDE && 2 * s->sy <= MOST_WIDE ? WIDE : DIRECT;
        return;
    }
    if (what->sampling < LINEAR) {
        int32_t *index = room->index;
        s->way = du == 1 && (s->a == 1 || s->a == -1) ? RUN : TABLE;
        s->from = s->to = 0;
        for (int i = 0; i < nu; i++) {
            float x = s->a * (float)(u0 + du * i) + s->c + TIE;
            int tap = whole(x + 0.5f);
            int framed = what->framed && !(x >= s->left && x < s->right);
            index[i] = framed ? -1 : inside(tap, s->left_tap, s->right_tap, reflect);
            if (framed || index[i] != tap) continue;
            /* Fractional positions may round differently: the run then ends. */
            if (s->from == s->to)
                s->from = i, s->to = i + 1;
            else if (s->to == i && index[i] == index[i - 1] + (s->a > 0 ? 1 : -1))
                s->to = i + 1;
        }
        if (s->from == s->to) s->way = TABLE;
        return;
    }
    s->way = APART;
    s->taps = 1;
    s->lowest = s->right_tap, s->highest = s->left_tap;
    s->from = s->to = 0;
    /* First the beginnings of taps and their maximum number, then weights at a stride of that maximum. */
    int most = (int)ceilf(2 * s->sx), box = s->right_tap - s->left_tap + 1;
    int apart = most < box ? most : box < 1 ? 1 : box;
    for (int i = 0; i < nu; i++) {
        float x = s->a * (float)(u0 + du * i) + s->c, *weights = room->weights_x + (int64_t)apart * i;
        int n = taps_at(reflect ? x : within(x, s->x0, s->x1), s->sx, s->left_tap, s->right_tap, reflect,
                        what->sampling == CUBIC, weights, &room->first[i]);
        for (int k = n; k < apart; k++) weights[k] = 0;
        if (n > s->taps) s->taps = n;
        if (room->first[i] < s->lowest) s->lowest = room->first[i];
        if (room->first[i] + n - 1 > s->highest) s->highest = room->first[i] + n - 1;
        if (what->framed) {
            room->cover[i] = edge((x - s->left) * s->kx) * edge((s->right - x) * s->kx);
            if (room->cover[i] == 1) {
                if (s->from == s->to) s->from = i, s->to = i;
                if (s->to == i) s->to = i + 1;
            }
        }
    }
    if (s->from == s->to) s->from = s->to = -1;
    for (int i = 0; i < nu; i++) {
        room->first[i] -= s->lowest;
        if (s->taps < apart)
            memmove(room->weights_x + (int64_t)s->taps * i, room->weights_x + (int64_t)apart * i,
                    sizeof(float) * (size_t)s->taps);
    }
}

/* Steps 1 and 2 for a row, except with APART: floats. */
TARGET static void
F(sampled_row)(const Sample *s, Room *room, int number, float *to)
{
    const What *what = s->what;
    int channels = what->channels, count = s->nu * channels;
    if (s->way >= BILINEAR) {
        F(turned_row)(s, room, number, to);
    } else if (what->source == FLOAT32) {
        const uint8_t *pixels = F(pixel_row)(s, room, number, (const uint8_t *)what->fill);
        memcpy(to, pixels, sizeof(float) * (size_t)count);
    } else {
        static const uint8_t zero[4];
        float y = s->e * (float)(s->v0 + s->dv * number) + s->f + TIE;
        int all = what->framed && s->way != SCATTER && !(y >= s->top && y < s->bottom);
        const uint8_t *restrict pixels = F(pixel_row)(s, room, number, zero);
        float *restrict floats = to;
        for (int i = 0; i < count; i++) floats[i] = (float)pixels[i];
        if (what->framed) /* the fill may be fractional */
            for (int i = 0; i < s->nu; i++)
                if (all || room->index[i] < 0)
                    for (int c = 0; c < channels; c++) to[channels * i + c] = what->fill[c];
    }
}

/* Steps 1 and 2 for rows `number` on: floats. */
TARGET static void
F(sampled_rows)(const Sample *s, Room *room, int number, int rows, float *to)
{
    int64_t apart = (int64_t)s->nu * s->what->channels;
    for (int done = 0; done < rows; done += s->way == APART ? LANES : 1, number += s->way == APART ? LANES : 1) {
        if (s->way == APART)
            F(apart_rows)(s, room, number, rows - done < LANES ? rows - done : LANES, to + done * apart, 0, 0);
        else
            F(sampled_row)(s, room, number, to + done * apart);
    }
}

/* ---- colours ---- */

TARGET static void
F(multiplied)(float *restrict r, float *restrict g, float *restrict b, int n, const float *m, float limit)
{
    float m0 = m[0], m1 = m[1], m2 = m[2], m3 = m[3], m4 = m[4], m5 = m[5], m6 = m[6], m7 = m[7], m8 = m[8];
    float m9 = m[9], m10 = m[10], m11 = m[11];
    if (m1 == 0 && m2 == 0 && m4 == 0 && m6 == 0 && m8 == 0 && m9 == 0) {
        for (int i = 0; i < n; i++) {
            r[i] = within(m0 * r[i] + m3, 0, limit);
            g[i] = within(m5 * g[i] + m7, 0, limit);
            b[i] = within(m10 * b[i] + m11, 0, limit);
        }
        return;
    }
    for (int i = 0; i < n; i++) {
        float x = r[i], y = g[i], z = b[i];
        r[i] = within(m0 * x + m1 * y + m2 * z + m3, 0, limit);
        g[i] = within(m4 * x + m5 * y + m6 * z + m7, 0, limit);
        b[i] = within(m8 * x + m9 * y + m10 * z + m11, 0, limit);
    }
}

/* Return the share of a sixth in the spread; `at` is 0 to 12. */
TARGET INLINE float
F(share)(float at)
{
    float k = at - (at >= 6 ? 6.0f : 0.0f);
    return within(2 - fabsf(k - 2), 0, 1);
}

TARGET static void
F(hue)(float *restrict r, float *restrict g, float *restrict b, int n, float turns)
{
    float sixths = 6 * within(turns - floorf(turns), 0, 1);
    for (int i = 0; i < n; i++) {
        float x = r[i], y = g[i], z = b[i];
        float most = x > y ? x : y, least = x < y ? x : y;
        most = most > z ? most : z;
        least = least < z ? least : z;
        float spread = most - least, inverse = 1 / (spread > 0 ? spread : 1);
        float blue = x - y, green = z - x, red = y - z;
        float away = most == y ? green : blue, begins = most == y ? 2.0f : 4.0f;
        away = most == x ? red : away;
        begins = most == x ? 0.0f : begins;
        float at = away * inverse + begins + sixths; /* -1 to 11 */
        at += at < 0 ? 6.0f : 0.0f;
        at -= at >= 6 ? 6.0f : 0.0f;
        r[i] = most - spread * F(share)(at + 5);
        g[i] = most - spread * F(share)(at + 3);
        b[i] = most - spread * F(share)(at + 1);
    }
}

TARGET static void
F(solarized)(float *restrict x, int n, float threshold, float limit)
{
    for (int i = 0; i < n; i++) {
        float other = limit - x[i];
        x[i] = x[i] >= threshold ? other : x[i];
    }
}

TARGET static void
F(posterized)(float *restrict x, int n, float quantum)
{
    for (int i = 0; i < n; i++) x[i] = quantum * floorf(floorf(x[i] + 0.5f) / quantum);
}

/* Apply a colour step to planes that lie `apart`. */
TARGET static void
F(stepped)(const What *what, float *planes, int apart, int n, const float *step)
{
    const float *m = step + 1;
    int kind = (int)within(step[0], 0, 6);
    if (kind == MATRIX && what->channels == 3) {
        F(multiplied)(planes, planes + apart, planes + 2 * apart, n, m, what->limit);
    } else if (kind == MATRIX) {
        float factor = m[0] + m[1] + m[2];
        for (int i = 0; i < n; i++) planes[i] = within(factor * planes[i] + m[3], 0, what->limit);
    } else if (kind == HUE && what->channels == 3) {
        F(hue)(planes, planes + apart, planes + 2 * apart, n, m[0]);
    } else if (kind == SOLARIZE) {
        for (int c = 0; c < what->channels; c++) F(solarized)(planes + c * apart, n, m[0], what->limit);
    } else if (kind == POSTERIZE) {
        for (int c = 0; c < what->channels; c++) F(posterized)(planes + c * apart, n, m[0]);
    }
}

TARGET static void
F(split)(float *restrict planes, int apart, const float *restrict floats, int n, int channels)
{
    if (channels == 1) {
        memcpy(planes, floats, sizeof(float) * (size_t)n);
        return;
    }
    float *restrict r = planes, *restrict g = planes + apart, *restrict b = planes + 2 * apart;
    int i = 0;
#ifdef VECTORS
    for (; i + 4 <= n; i += 4) {
        Four one, two, three; /* r g b r, g b r g, b r g b */
        memcpy(&one, floats + 3 * i, 16);
        memcpy(&two, floats + 3 * i + 4, 16);
        memcpy(&three, floats + 3 * i + 8, 16);
        Four red = PICK(PICK(one, two, 0, 3, 6, 6), three, 0, 1, 2, 5);
        Four green = PICK(PICK(one, two, 1, 4, 7, 7), three, 0, 1, 2, 6);
        Four blue = PICK(PICK(one, two, 2, 5, 5, 5), three, 0, 1, 4, 7);
        memcpy(r + i, &red, 16);
        memcpy(g + i, &green, 16);
        memcpy(b + i, &blue, 16);
    }
#endif
    for (; i < n; i++) r[i] = floats[3 * i], g[i] = floats[3 * i + 1], b[i] = floats[3 * i + 2];
}

TARGET static void
F(joined)(float *restrict floats, const float *restrict planes, int apart, int n, int channels)
{
    if (channels == 1) {
        memcpy(floats, planes, sizeof(float) * (size_t)n);
        return;
    }
    const float *restrict r = planes, *restrict g = planes + apart, *restrict b = planes + 2 * apart;
    int i = 0;
#ifdef VECTORS
    for (; i + 4 <= n; i += 4) {
        Four red, green, blue;
        memcpy(&red, r + i, 16);
        memcpy(&green, g + i, 16);
        memcpy(&blue, b + i, 16);
        Four early = PICK(red, green, 0, 4, 1, 5), late = PICK(red, green, 2, 6, 3, 7); /* r0 g0 r1 g1, r2 g2 r3 g3 */
        Four one = PICK(early, blue, 0, 1, 4, 2), two = PICK(PICK(early, blue, 3, 5, 3, 5), late, 0, 1, 4, 5);
        Four three = PICK(PICK(late, blue, 6, 2, 3, 7), blue, 0, 1, 2, 7);
        memcpy(floats + 3 * i, &one, 16);
        memcpy(floats + 3 * i + 4, &two, 16);
        memcpy(floats + 3 * i + 8, &three, 16);
    }
#endif
    for (; i < n; i++) floats[3 * i] = r[i], floats[3 * i + 1] = g[i], floats[3 * i + 2] = b[i];
}

/* Replace every CONTRAST of the sample by the equivalent MATRIX. */
TARGET static void
F(means)(Sample *s, Room *room, int last)
{
    const What *what = s->what;
    int p = what->across, q = what->down, channels = what->channels;
    int nu = (what->width - p / 2 + p - 1) / p, nv = (what->height - q / 2 + q - 1) / q, n = nu * nv;
    float *planes = room->grid;
    F(prepare)(s, room, p / 2, p, nu, q / 2, q);
    for (int j = 0; j < nv; j += room->chunk_rows) {
        int rows = nv - j < room->chunk_rows ? nv - j : room->chunk_rows;
        F(sampled_rows)(s, room, j, rows, room->floats);
        F(split)(planes + j * nu, n, room->floats, rows * nu, channels);
    }
    for (int number = 0; number <= last; number++) {
        float *step = room->steps + STEP_WIDTH * number;
        if (step[0] == CONTRAST) {
            const float *g = channels == 3 ? planes + n : planes, *b = channels == 3 ? planes + 2 * n : planes;
            float sums[8] = {0}, factor = step[1];
            double sum = 0;
            int i = 0;
            for (; i + 8 <= n; i += 8)
                for (int k = 0; k < 8; k++)
                    sums[k] += 0.2989f * planes[i + k] + 0.587f * g[i + k] + 0.114f * b[i + k];
            for (; i < n; i++) sum += 0.2989f * planes[i] + 0.587f * g[i] + 0.114f * b[i];
            for (int k = 0; k < 8; k++) sum += sums[k];
            memset(step, 0, sizeof(float) * STEP_WIDTH);
            step[0] = MATRIX;
            for (int c = 0; c < 3; c++) {
                step[1 + 5 * c] = factor;
                step[4 + 4 * c] = (1 - factor) * (float)(sum / n);
            }
        }
        if (number < last) F(stepped)(what, planes, n, n, step);
    }
}

/* ---- writing ---- */

TARGET INLINE uint32_t
F(bits_of)(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

/* Round to nearest, ties to even. Below the normal range of half floats, the float addition rounds. */
TARGET INLINE uint16_t
F(half)(float x)
{
    uint32_t bits = F(bits_of)(x), sign = bits & 0x80000000u, size = bits ^ sign;
    uint32_t normal = (size + 0xC8000FFFu + (size >> 13 & 1)) >> 13;
    float magnitude;
    memcpy(&magnitude, &size, 4);
    uint32_t tiny = F(bits_of)(magnitude + 0.5f) - 0x3F000000u;
    uint32_t huge = size > 0x7F800000u ? 0x7E00 : 0x7C00;
    uint32_t half = size < 0x38800000u ? tiny : normal;
    half = size >= 0x47800000u ? huge : half;
    return (uint16_t)(half | sign >> 16);
}

TARGET INLINE uint16_t
F(brain)(float x)
{
    uint32_t bits = F(bits_of)(x), rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0 : rounded);
}

TARGET INLINE uint8_t
F(byte)(float x)
{
    return (uint8_t)(int32_t)(within(x, 0, 255) + 0.5f);
}

TARGET static void
F(halves)(uint16_t *restrict to, const float *restrict from, int n)
{
    int i = 0;
#ifdef AVX2
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < n; i++) to[i] = F(half)(from[i]);
}

#define WRITE(type, memory, made)                                   \
    {                                                               \
        type *restrict t = (type *)(memory);                        \
        for (int i = 0; i < n; i++) {                               \
            float x = (float)from[i];                               \
            if (scaled) x = x * scale[i] + shift[i];                \
            t[i] = made;                                            \
        }                                                           \
    }

/* For at most BLOCK numbers. */
#define CAST(name, source)                                                                                          \
    TARGET INLINE void F(name##_any)(void *to, const source *restrict from, int n, const float *restrict scale,     \
                                     const float *restrict shift, int scaled, int dtype)                            \
    {                                                                                                               \
        switch (dtype) {                                                                                            \
        case UINT8: WRITE(uint8_t, to, F(byte)(x)) break;                                                            \
        case FLOAT32: WRITE(float, to, x) break;                                                                    \
        case FLOAT16: {                                                                                             \
            float block[BLOCK];                                                                                     \
            WRITE(float, block, x)                                                                                  \
            F(halves)(to, block, n);                                                                                \
            break;                                                                                                  \
        }                                                                                                           \
        default: WRITE(uint16_t, to, F(brain)(x))                                                                   \
        }                                                                                                           \
    }                                                                                                               \
    TARGET static void F(name)(uint8_t * to, const source *from, int64_t count, const Room *room, const What *what) \
    {                                                                                                               \
        int size = BYTES_OF(what->dtype);                                                                           \
        for (; count > 0; count -= BLOCK, from += BLOCK, to += BLOCK * size) {                                      \
            int n = count < BLOCK ? (int)count : BLOCK;                                                             \
            if (what->scaled)                                                                                       \
                F(name##_any)(to, from, n, room->scale, room->shift, 1, what->dtype);                               \
            else                                                                                                    \
                F(name##_any)(to, from, n, room->scale, room->shift, 0, what->dtype);                               \
        }                                                                                                           \
    }
CAST(cast_bytes, uint8_t)
CAST(cast_floats, float)
#undef CAST
#undef WRITE

TARGET INLINE uint32_t
F(hash)(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x85EBCA6Bu;
    x ^= x >> 13;
    x *= 0xC2B2AE35u;
    return x ^ x >> 16;
}

/* Draw N(0, 1) for the numbers from `first` on, accurate to 1e-6. */
TARGET static void
F(noise)(float *restrict to, int n, uint32_t seed, uint32_t first)
{
    for (int i = 0; i < n; i++) {
        uint32_t h = F(hash)(seed + 0x9E3779B9u * (first + (uint32_t)i + 1));
        float a = ((float)(int32_t)(h >> 8) + 0.5f) * 0x1p-24f;
        float b = (float)(int32_t)(F(hash)(h ^ 0x9E3779B9u) >> 8) * 0x1p-24f;
        /* ln a, with a = m 2**e and m about 1; the polynomial is from Cephes. */
        int32_t bits = (int32_t)F(bits_of)(a), e = (bits - 0x3F3504F3) >> 23;
        int32_t rest = bits - e * (1 << 23);
        float m;
        memcpy(&m, &rest, 4);
        m -= 1;
        float p = 7.0376836292E-2f;
        p = p * m - 1.1514610310E-1f;
        p = p * m + 1.1676998740E-1f;
        p = p * m - 1.2420140846E-1f;
        p = p * m + 1.4249322787E-1f;
        p = p * m - 1.6668057665E-1f;
        p = p * m + 2.0000714765E-1f;
        p = p * m - 2.4999993993E-1f;
        p = p * m + 3.3333331174E-1f;
        float logarithm = p * m * m * m - 0.5f * m * m + m + 0.69314718056f * (float)e;
        /* cos(2 pi b) equals the sine of this, which is within a quarter turn. */
        float t = 6.28318530718f * (fabsf(b - 0.5f) - 0.25f), tt = t * t;
        float sine = -2.5052108385E-8f;
        sine = sine * tt + 2.7557319224E-6f;
        sine = sine * tt - 1.9841269841E-4f;
        sine = sine * tt + 8.3333333333E-3f;
        sine = sine * tt - 1.6666666667E-1f;
        sine = (sine * tt + 1) * t;
        float square = -2 * logarithm;
        to[i] = sqrtf(square > 0 ? square : 0) * sine;
    }
}

/* Step 5 for rows v to v + rows - 1, stored at `to` in the result's type. */
TARGET static void
F(erased)(const What *what, Room *room, const float *boxes, int v, int rows, uint8_t *to)
{
    int channels = what->channels, size = BYTES_OF(what->dtype);
    What plain = *what;
    plain.scaled = 0;
    for (const float *box = boxes; box < boxes + BOX_WIDTH * what->boxes; box += BOX_WIDTH) {
        if (!(box[0] < box[2] && box[1] < box[3])) continue;
        int left = (int)ceilf(within(box[0], 0, (float)what->width));
        int right = (int)ceilf(within(box[2], 0, (float)what->width));
        int top = (int)ceilf(within(box[1], (float)v, (float)(v + rows)));
        int bottom = (int)ceilf(within(box[3], (float)v, (float)(v + rows)));
        if (top >= bottom || left >= right) continue;
        int count = (right - left) * channels;
        uint32_t seed = (uint32_t)within(box[4], 0, 16777215);
        if (!what->noise)
            for (int i = 0; i < count; i++) room->floats[i] = what->box_fill[i % channels];
        for (int j = top; j < bottom; j++) {
            if (what->noise)
                F(noise)(room->floats, count, seed, ((uint32_t)j * (uint32_t)what->width + (uint32_t)left) * (uint32_t)channels);
            F(cast_floats)(to + ((int64_t)(j - v) * what->width + left) * channels * size, room->floats, count, room, &plain);
        }
    }
}

/* ---- samples ---- */

TARGET static void
F(sample)(const Job *job, Room *room, int64_t number)
{
    const What *what = &job->what;
    int channels = what->channels, width = what->width, height = what->height, last = -1, active = 0;
    const float *column = job->columns + number * columns_of(what);
    int64_t pixel_bytes = what->pixel * BYTES_OF(what->source);
    int64_t row_bytes = (int64_t)width * channels * BYTES_OF(what->dtype);
    Sample s = {.what = what, .height = (int)job->height, .width = (int)job->width, .stride = (int)job->width};
    if (what->ragged) {
        const float *source = column + STEPS_AT + STEP_WIDTH * what->steps + BOX_WIDTH * what->boxes;
        s.image = job->images + place_of(source) * pixel_bytes;
        s.height = (int)source[2], s.width = (int)source[3], s.stride = (int)source[4];
    } else {
        s.image = job->images + number * job->height * job->width * pixel_bytes;
    }
    s.a = column[0], s.b = column[1], s.c = column[2], s.d = column[3], s.e = column[4], s.f = column[5];
    read_taps(&s, column);
    s.sx = within(column[10], 1, WIDEST), s.sy = within(column[11], 1, WIDEST);
    if (what->sampling == CUBIC) s.x0 -= 0.5f, s.y0 -= 0.5f, s.x1 += 0.5f, s.y1 += 0.5f;
    s.left = column[12], s.top = column[13], s.right = column[14], s.bottom = column[15];
    s.kx = column[16], s.ky = column[17];
    if (what->steps) memcpy(room->steps, column + STEPS_AT, sizeof(float) * STEP_WIDTH * (size_t)what->steps);
    for (int step = 0; step < what->steps; step++) {
        float kind = room->steps[STEP_WIDTH * step];
        if (kind == CONTRAST && !what->contrast) room->steps[STEP_WIDTH * step] = kind = NONE;
        if (kind == CONTRAST) last = step;
        if (kind > NONE) active = 1;
    }
    if (last >= 0) F(means)(&s, room, last);
    F(prepare)(&s, room, 0, 1, width, 0, 1);

    int as_stored = what->sampling < LINEAR && what->source != FLOAT32 && !active;
    uint8_t fill[4] = {0};
    for (int c = 0; c < channels && what->framed; c++) {
        fill[c] = (uint8_t)within(what->fill[c], 0, 255);
        if ((float)fill[c] != what->fill[c]) as_stored = 0;
    }
    const float *boxes = column + STEPS_AT + STEP_WIDTH * what->steps;
    uint8_t *out = job->out + number * height * row_bytes;
    int rows = room->chunk_rows, apart = rows * width;
    /* For these, the sums are the results. */
    int direct = LANES > 1 && s.way == APART && what->sampling == LINEAR && !what->framed && !active && what->dtype == FLOAT32;
    int lines = LANES == 4 && direct && job->past && !what->boxes && channels == 3 && width % 16 == 0 && (uintptr_t)out % LINE == 0;
    for (int v = 0; v < height; v += rows, out += rows * row_bytes) {
        if (rows > height - v) rows = height - v;
        uint8_t *to = job->past && !lines ? room->chunk : out;
        int64_t count = (int64_t)rows * width * channels;
        if (as_stored) {
            for (int j = 0; j < rows; j++) {
                const uint8_t *pixels = F(pixel_row)(&s, room, v + j, fill);
                if (what->dtype == what->source && !what->scaled)
                    memcpy(to + j * row_bytes, pixels, (size_t)row_bytes);
                else
                    F(cast_bytes)(to + j * row_bytes, pixels, (int64_t)width * channels, room, what);
            }
        } else if (direct) {
            for (int j = 0; j < rows; j += LANES) {
                int some = rows - j < LANES ? rows - j : LANES;
                F(apart_rows)(&s, room, v + j, some, (float *)(to + j * row_bytes), what->scaled, lines);
            }
        } else {
            F(sampled_rows)(&s, room, v, rows, room->floats);
            if (active) {
                F(split)(room->planes, apart, room->floats, rows * width, channels);
                for (int step = 0; step < what->steps; step++)
                    F(stepped)(what, room->planes, apart, rows * width, room->steps + STEP_WIDTH * step);
                F(joined)(room->floats, room->planes, apart, rows * width, channels);
            }
            F(cast_floats)(to, room->floats, count, room, what);
        }
        if (what->boxes) F(erased)(what, room, boxes, v, rows, to);
        if (to != out) stream(out, to, (size_t)(rows * row_bytes), 0);
    }
}

TARGET static void
F(samples)(const Job *job, Room *room)
{
    for (int64_t number = job->begin; number < job->end; number++) F(sample)(job, room, number);
}
#undef COLUMN
