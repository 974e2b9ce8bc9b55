/* The loops of pixels/resampling.py, which specifies them and has them in NumPy, to the same byte.

Plain C, integers only, so that every compiler and processor computes equal bytes. It is fast because:

  - Weights of 256ths keep every sum within 16 bits, which gives twice as many lanes as 32.
  - Rows are weighted first: that runs along memory and leaves, for the columns, a single row of the
    picture, which
    stays in the first cache.
*/
#include "native.h"

/* of weights in 256ths; longer filters have 65536ths, because 256ths would be too coarse */
#define MOST_SHORT_TAPS 6

typedef struct {
    const int32_t *first;    /* [results]: first tap of each result in the source */
    const uint16_t *weights; /* [results][taps] */
    Py_ssize_t results, taps;
    Py_ssize_t from, to; /* covered part of the source */
    int bits;            /* the weights of a result sum to 1 << bits, 8 or 16 */
} Axis;

/* Weight rows of bytes: (128 + sum) / 256. `taps` is a constant wherever this is inlined. */
INLINE void
short_rows(uint16_t *restrict row, const uint8_t *const *rows, const uint16_t *w, int taps, Py_ssize_t count)
{
    const uint8_t *restrict a = rows[0], *restrict b = rows[1], *restrict c = rows[2];
    const uint8_t *restrict d = rows[3], *restrict e = rows[4], *restrict f = rows[5];
    uint16_t wa = w[0], wb = w[1], wc = w[2], wd = w[3], we = w[4], wf = w[5];
    for (Py_ssize_t i = 0; i < count; i++) {
        uint16_t sum = 128;
        sum += a[i] * wa;
        if (taps > 1) sum += b[i] * wb;
        if (taps > 2) sum += c[i] * wc;
        if (taps > 3) sum += d[i] * wd;
        if (taps > 4) sum += e[i] * we;
        if (taps > 5) sum += f[i] * wf;
        row[i] = sum >> 8;
    }
}

INLINE void
down_short(uint16_t *row, const uint8_t *top, Py_ssize_t stride, const uint16_t *weights, Py_ssize_t taps,
           Py_ssize_t count)
{
    const uint8_t *rows[MOST_SHORT_TAPS];
    uint16_t w[MOST_SHORT_TAPS];
    while (taps > 1 && !weights[taps - 1]) taps--;
    for (int k = 0; k < MOST_SHORT_TAPS; k++) {
        rows[k] = top + (k < taps ? k : 0) * stride;
        w[k] = k < taps ? weights[k] : 0;
    }
    switch (taps) {
    case 1: short_rows(row, rows, w, 1, count); break;
    case 2: short_rows(row, rows, w, 2, count); break;
    case 3: short_rows(row, rows, w, 3, count); break;
    case 4: short_rows(row, rows, w, 4, count); break;
    default: short_rows(row, rows, w, 6, count);
    }
}

INLINE void
down_long(uint16_t *restrict row, uint32_t *restrict sums, const uint8_t *top, Py_ssize_t stride,
          const uint16_t *weights, Py_ssize_t taps, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) sums[i] = 1 << 15;
    for (Py_ssize_t k = 0; k < taps; k++) {
        const uint8_t *restrict source = top + k * stride;
        uint32_t w = weights[k];
        if (w)
            for (Py_ssize_t i = 0; i < count; i++) sums[i] += w * source[i];
    }
    for (Py_ssize_t i = 0; i < count; i++) row[i] = (uint16_t)(sums[i] >> 16);
}

INLINE void
across_any(uint8_t *out, const uint16_t *row, const Axis *axis, int step, int channels)
{
    for (Py_ssize_t x = 0; x < axis->results; x++) {
        const uint16_t *first = row + step * (axis->first[x] - axis->from);
        const uint16_t *w = axis->weights + x * axis->taps;
        uint32_t sums[4];
        for (int c = 0; c < channels; c++) sums[c] = 1u << (axis->bits - 1);
        for (Py_ssize_t k = 0; k < axis->taps; k++)
            for (int c = 0; c < channels; c++) sums[c] += (uint32_t)first[step * k + c] * w[k];
        for (int c = 0; c < channels; c++) *out++ = (uint8_t)(sums[c] >> axis->bits);
    }
}

#ifdef VECTORS
typedef uint16_t Lanes __attribute__((vector_size(16)));
typedef uint64_t Halves __attribute__((vector_size(16)));
typedef uint8_t Bytes __attribute__((vector_size(8)));

/* Weight one result's pixels, two at a time: half the lanes hold the even ones, half the odd ones. A pixel is
four lanes; with fewer channels the remaining lanes hold its neighbours', and their results are ignored. */
INLINE Lanes
weigh(const uint16_t *pixels, const uint16_t *weights, int step, int pairs)
{
    Lanes sum = {0};
    for (int k = 0; k < pairs; k++) {
        Lanes two, w;
        if (step == 4) {
            memcpy(&two, pixels + 8 * k, 16);
        } else {
            uint64_t even, odd;
            memcpy(&even, pixels + 2 * step * k, 8);
            memcpy(&odd, pixels + 2 * step * k + step, 8);
            two = (Lanes)(Halves){even, odd};
        }
        memcpy(&w, weights + 8 * k, 16);
        sum += two * w;
    }
    return sum;
}

/* Two neighbouring results, four lanes each. */
INLINE Lanes
finish(Lanes one, Lanes other)
{
    Halves a = (Halves)one, b = (Halves)other;
    return ((Lanes)(Halves){a[0], b[0]} + (Lanes)(Halves){a[1], b[1]} + 128) >> 8;
}

/* `lanes` holds, per result and pair of taps, each of the two weights four times. */
INLINE void
across_short(uint8_t *out, const uint16_t *row, Py_ssize_t results, const Py_ssize_t *offsets, const uint16_t *lanes,
             int step, int channels, int pairs)
{
    Py_ssize_t x = 0;
    for (; x + 2 < results; x += 2) { /* never the last result: four bytes are stored for three channels */
        const uint16_t *w = lanes + 8 * pairs * x;
        Lanes both = finish(weigh(row + offsets[x], w, step, pairs),
                            weigh(row + offsets[x + 1], w + 8 * pairs, step, pairs));
        Bytes bytes = __builtin_convertvector(both, Bytes);
        uint8_t *to = out + channels * x;
        memcpy(to, &bytes, channels == 1 ? 1 : 4);
        memcpy(to + channels, (const uint8_t *)&bytes + 4, channels == 1 ? 1 : 4);
    }
    for (; x < results; x++) {
        Lanes sum = weigh(row + offsets[x], lanes + 8 * pairs * x, step, pairs);
        Lanes one = finish(sum, sum);
        for (int c = 0; c < channels; c++) out[channels * x + c] = (uint8_t)one[c];
    }
}

#define ACROSS(step, channels) \
    (pairs == 1   ? across_short(out, row, axis->results, offsets, lanes, step, channels, 1) \
     : pairs == 2 ? across_short(out, row, axis->results, offsets, lanes, step, channels, 2) \
                  : across_short(out, row, axis->results, offsets, lanes, step, channels, 3))
#else
#define ACROSS(step, channels) ((void)pairs, (void)offsets, (void)lanes, across_any(out, row, axis, step, channels))
#endif

INLINE void
across(uint8_t *out, const uint16_t *row, const Axis *axis, const Py_ssize_t *offsets, const uint16_t *lanes, int step,
       int channels)
{
    int pairs = (int)(axis->taps + 1) / 2;
    if (axis->bits != 8)
        across_any(out, row, axis, step, channels);
    else if (step == 1)
        ACROSS(1, 1);
    else if (step == 3)
        ACROSS(3, 3);
    else if (channels == 3)
        ACROSS(4, 3);
    else
        ACROSS(4, 4);
}

CLONES static void
resample_rows(const uint8_t *source, Py_ssize_t stride, int step, uint8_t *result, Py_ssize_t result_stride,
              int channels, const Axis *down, const Axis *over, const Py_ssize_t *offsets, const uint16_t *lanes,
              uint16_t *row, uint32_t *sums)
{
    Py_ssize_t count = step * (over->to - over->from);
    source += step * over->from;
    for (Py_ssize_t y = 0; y < down->results; y++) {
        const uint8_t *top = source + down->first[y] * stride;
        const uint16_t *w = down->weights + y * down->taps;
        if (down->bits == 8)
            down_short(row, top, stride, w, down->taps, count);
        else
            down_long(row, sums, top, stride, w, down->taps, count);
        across(result + y * result_stride, row, over, offsets, lanes, step, channels);
    }
}

/* bytes: complete pixels of 1, 3 and 4 channels, so that each lane sees one channel only */
#define TURN 48
#define MOST_TURNS 256 /* until 16 bits are full */

/* Squares are summed as two separate bytes: everything stays within 16 bits, with as many lanes as that
allows. */
INLINE void
sum_turns(const uint8_t *bytes, Py_ssize_t turns, int lanes, int channels, uint64_t *sums, uint64_t *squares)
{
    uint16_t values[TURN] = {0}, low[TURN] = {0}, high[TURN] = {0};
    for (Py_ssize_t i = 0; i < turns; i++)
        for (int lane = 0; lane < lanes; lane++) {
            uint16_t value = bytes[lanes * i + lane], square = value * value;
            values[lane] += value;
            low[lane] += square & 255;
            high[lane] += square >> 8;
        }
    for (int lane = 0; lane < lanes; lane++) {
        sums[lane % channels] += values[lane];
        squares[lane % channels] += low[lane] + 256u * high[lane];
    }
}

CLONES static void
sum_bytes(const uint8_t *bytes, Py_ssize_t count, int channels, uint64_t *sums, uint64_t *squares)
{
    for (; count >= TURN * MOST_TURNS; bytes += TURN * MOST_TURNS, count -= TURN * MOST_TURNS)
        sum_turns(bytes, MOST_TURNS, TURN, channels, sums, squares);
    sum_turns(bytes, count / TURN, TURN, channels, sums, squares);
    sum_turns(bytes + count / TURN * TURN, 1, (int)(count % TURN), channels, sums, squares);
}

static const Py_buffer *
get_axis_array(Buffers *buffers, PyObject *object, Py_ssize_t itemsize, int dimensions)
{
    const Py_buffer *view = get_buffer(buffers, object, PyBUF_ND);
    if (!view || (view->itemsize == itemsize && view->ndim == dimensions)) return view;
    PyErr_SetString(PyExc_ValueError, "an axis: its shape or dtype is not that of triangle().");
    return NULL;
}

/* Parse an axis from three arguments (first, weights, bits). Nothing in it may lead outside the source. */
static int
get_axis(Buffers *buffers, PyObject *const *args, Py_ssize_t size, Py_ssize_t results, Axis *axis)
{
    long bits = PyLong_AsLong(args[2]);
    if (bits == -1 && PyErr_Occurred()) return -1;
    const Py_buffer *first = get_axis_array(buffers, args[0], 4, 1);
    const Py_buffer *weights = first ? get_axis_array(buffers, args[1], 2, 2) : NULL;
    if (!weights) return -1;
    axis->first = first->buf;
    axis->weights = weights->buf;
    axis->results = first->shape[0];
    axis->taps = weights->shape[1];
    axis->bits = (int)bits;
    int sound = axis->results == results && weights->shape[0] == results && axis->taps > 0 &&
                (bits == 16 || (bits == 8 && axis->taps <= MOST_SHORT_TAPS));
    axis->from = size;
    axis->to = 0;
    for (Py_ssize_t i = 0; sound && i < results; i++) {
        Py_ssize_t at = axis->first[i], last = at + axis->taps;
        if (at < axis->from) axis->from = at;
        if (last > axis->to) axis->to = last;
        sound = at >= 0 && last <= size;
    }
    return sound ? 0 : refuse(PyExc_ValueError, "an axis: does not fit the pictures.");
}

/* Return whether the view is uint8 [h, w, C] with adjacent pixels; rows may be apart. */
static int
is_picture(const Py_buffer *view)
{
    return view->itemsize == 1 && view->ndim == 3 && view->shape[0] > 0 && view->shape[1] > 0 &&
           (view->shape[2] == 1 || view->strides[2] == 1) &&
           (view->shape[1] == 1 || view->strides[1] == view->shape[2]);
}

static int
run(const Py_buffer *source, const Py_buffer *result, const Axis *down, const Axis *over)
{
    int step = (int)source->shape[2];
    Py_ssize_t pairs = (over->taps + 1) / 2, count = step * (over->to - over->from);
    /* Vectors are read in full, with weights of 0 after the last pixel. */
    size_t row_bytes = 2 * (size_t)count + 32, sums_bytes = down->bits == 8 ? 0 : 4 * (size_t)count;
    size_t offsets_bytes = sizeof(Py_ssize_t) * (size_t)over->results;
    size_t lanes_bytes = over->bits == 8 ? 16 * (size_t)(pairs * over->results) : 0;
    char *memory = malloc(offsets_bytes + lanes_bytes + sums_bytes + row_bytes);
    if (!memory) {
        PyErr_NoMemory();
        return -1;
    }
    Py_ssize_t *offsets = (Py_ssize_t *)memory;
    uint16_t *lanes = (uint16_t *)(memory + offsets_bytes);
    uint32_t *sums = (uint32_t *)(memory + offsets_bytes + lanes_bytes);
    uint16_t *row = (uint16_t *)(memory + offsets_bytes + lanes_bytes + sums_bytes);
    Py_BEGIN_ALLOW_THREADS
    memset(row + count, 0, 32);
    for (Py_ssize_t x = 0; lanes_bytes && x < over->results; x++) {
        offsets[x] = step * (over->first[x] - over->from);
        for (Py_ssize_t k = 0; k < 2 * pairs; k++)
            for (int lane = 0; lane < 4; lane++)
                lanes[(x * 2 * pairs + k) * 4 + lane] = k < over->taps ? over->weights[x * over->taps + k] : 0;
    }
    resample_rows(source->buf, source->strides[0], step, result->buf, result->strides[0], (int)result->shape[2], down,
                  over, offsets, lanes, row, sums);
    Py_END_ALLOW_THREADS
    free(memory);
    return 0;
}

/* resample(source, result, *down, *across) */
LOOP(resample)
{
    Buffers buffers = {0};
    Axis down, over;
    int done = -1;
    if (check_count(count, 8, "resample(source, result, *down, *across)") < 0) return NULL;
    const Py_buffer *source = get_buffer(&buffers, args[0], PyBUF_STRIDES);
    const Py_buffer *result = source ? get_buffer(&buffers, args[1], PyBUF_STRIDES | PyBUF_WRITABLE) : NULL;
    if (result) {
        if (!is_picture(source) || !is_picture(result) ||
            !(source->shape[2] == result->shape[2] || (source->shape[2] == 4 && result->shape[2] == 3)) ||
            !(result->shape[2] == 1 || result->shape[2] == 3 || result->shape[2] == 4))
            refuse(PyExc_ValueError, "resample: pictures are uint8 [h, w, 1, 3 or 4], with pixels side by side.");
        else if (get_axis(&buffers, args + 2, source->shape[0], result->shape[0], &down) == 0 &&
                 get_axis(&buffers, args + 5, source->shape[1], result->shape[1], &over) == 0)
            done = run(source, result, &down, &over);
    }
    release_buffers(&buffers);
    if (done < 0) return NULL;
    Py_RETURN_NONE;
}

/* channel_sums(pixels) -> ([C] sums, [C] sums of squares) */
LOOP(channel_sums)
{
    Buffers buffers = {0};
    uint64_t sums[4] = {0}, squares[4] = {0};
    if (check_count(count, 1, "channel_sums(pixels)") < 0) return NULL;
    const Py_buffer *view = get_buffer(&buffers, args[0], PyBUF_ND);
    if (!view) return NULL;
    Py_ssize_t channels = view->ndim ? view->shape[view->ndim - 1] : 0;
    if (view->itemsize != 1 || !(channels == 1 || channels == 3 || channels == 4)) {
        release_buffers(&buffers);
        PyErr_SetString(PyExc_ValueError, "channel_sums: pixels are uint8 [..., 1, 3 or 4].");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    sum_bytes(view->buf, view->len, (int)channels, sums, squares);
    Py_END_ALLOW_THREADS
    release_buffers(&buffers);
    PyObject *both = Py_BuildValue("([][])");
    for (Py_ssize_t c = 0; both && c < channels; c++) {
        PyObject *sum = PyLong_FromUnsignedLongLong(sums[c]), *square = PyLong_FromUnsignedLongLong(squares[c]);
        if (!sum || !square || PyList_Append(PyTuple_GetItem(both, 0), sum) < 0 ||
            PyList_Append(PyTuple_GetItem(both, 1), square) < 0)
            Py_CLEAR(both);
        Py_XDECREF(sum);
        Py_XDECREF(square);
    }
    return both;
}
