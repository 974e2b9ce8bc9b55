/* The implementation of a pass (augment/passes/pass_spec.py) in plain C, for native_pass.py. The loops are in
augment_loops.h.

No value of the columns causes a read outside the images: coordinates are clamped to the tap box, and the box to
the image, before they become pixel numbers.

A large batch in memory that is reused is stored past the caches. If the compiler can (x86-64), the loops
are also compiled for AVX2 and AVX-512, and chosen when the extension is loaded; these resize two and four
rows together, in vector lanes.
*/
#include "native.h"

#include <math.h>
#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#if defined(__clang__)
#define APART_IN_MEMORY _Pragma("clang loop vectorize(assume_safety)")
#else
/* with more than a few arrays GCC stops checking whether they overlap */
#define APART_IN_MEMORY _Pragma("GCC ivdep")
#endif

#define CHUNK_PIXELS 512
#define MOST_STEPS 64
#define MOST_SIDE (1 << 24) /* float32 represents every whole number up to here */

#define TARGET
#define F(name) name##_plain
#define LANES 1
#include "augment_loops.h"
#undef TARGET
#undef F
#undef LANES

#if defined(__x86_64__) && defined(VECTORS)
#define BY_PROCESSOR
#define AVX2
#define TARGET __attribute__((target("avx2,fma,f16c"))) /* every processor with the first two has the last */
#define F(name) name##_avx2
#define LANES 2
#include "augment_loops.h"
#undef TARGET
#undef F
#undef LANES
/* Colour steps then take 3/4 of the time. */
#define TARGET __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c")))
#define F(name) name##_avx512
#define LANES 4
#include "augment_loops.h"
#undef TARGET
#undef F
#undef LANES
#endif

/* Return whether memory was written to before. Pages that were not are cleared on first use and are then in
the caches: storing past the caches takes 1.3 times as long there. */
static int
used(const uint8_t *address)
{
#if defined(__linux__)
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)address;
    unsigned char flag = 0;
    return mincore((void *)(at - at % page), 1, &flag) != 0 || (flag & 1);
#else
    (void)address;
    return 1;
#endif
}

static void (*samples)(const Job *, Room *) = samples_plain;
static int lanes = 1; /* rows per group, LANES of the chosen loops */

/* Lay out the arrays of `room` in one piece of memory; with NULL only count its bytes. */
static size_t
lay_out(Room *room, const Job *job, char *memory)
{
    const What *what = &job->what;
    size_t at = 0, width = (size_t)what->width, channels = (size_t)what->channels, rows = CHUNK_PIXELS / width;
    if (rows < (size_t)lanes) rows = (size_t)lanes;
    if (rows > (size_t)what->height) rows = (size_t)what->height;
    size_t count = rows * width * channels, grid = 0, down = (size_t)(lanes * room->most_down);
    if (what->contrast) grid = (width / (size_t)what->across + 1) * ((size_t)what->height / (size_t)what->down + 1);
    room->chunk_rows = (int)rows;
#define ARRAY(name, length)                                             \
    room->name = (void *)(memory ? memory + at : NULL);                 \
    at += ((length) * sizeof *room->name + 2 * LINE - 1) / LINE * LINE;
    ARRAY(index, width)
    ARRAY(first, width)
    ARRAY(i0, width)
    ARRAY(i1, width)
    ARRAY(j0, width)
    ARRAY(j1, width)
    ARRAY(x, width)
    ARRAY(y, width)
    ARRAY(fx, width)
    ARRAY(fy, width)
    ARRAY(cover, width)
    ARRAY(weights_x, (size_t)room->most_across *width)
    ARRAY(weights_y, down)
    ARRAY(taps_down, down)
    ARRAY(lanes_down, 4 * down)
    ARRAY(sums_down, (size_t)(4 * lanes * (job->width + room->most_across + 4)))
    ARRAY(ends, down)
    ARRAY(spread, 4)
    ARRAY(pairs, 2)
    ARRAY(places, 8)
    ARRAY(wide_index, what->sampling >= LINEAR ? 2 * MOST_WIDE *width : 0)
    ARRAY(wide_weights, what->sampling >= LINEAR ? 2 * MOST_WIDE *width : 0)
    ARRAY(floats, count + 8)
    ARRAY(planes, count)
    ARRAY(grid, grid *channels)
    ARRAY(steps, (size_t)what->steps *STEP_WIDTH)
    ARRAY(pixels, width *channels * 4 + 16)
    ARRAY(chunk, count * 4)
#undef ARRAY
    return at;
}

/* The maximum number of taps over all samples and sides. column: half the filter's width. */
static int64_t
most_taps(const Job *job, int column, int64_t side)
{
    const What *what = &job->what;
    int64_t most = 1, width = columns_of(what);
    if (what->sampling < LINEAR) return 1;
    for (int64_t n = job->begin; n < job->end; n++) {
        int64_t taps = (int64_t)ceilf(2 * within(job->columns[n * width + column], 1, WIDEST));
        if (taps > most) most = taps;
    }
    return most < side ? most : side;
}

/* Lay out the lane permutations of `down` and `across_lines`. */
static void
lay_out_moves(Room *room, int pixel)
{
    for (int i = 0; i < 4 * LINE; i++) {
        int number = i % 16 / 4, used = i % 4 == 0 && number < pixel;
        room->spread[i / LINE][i % LINE] = used ? (uint8_t)(i / LINE * pixel + number) : 0x80;
    }
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < 12; i++) {
            /* Combine two vectors of two pixels each to a row; then two of those, whose 12 numbers are
            spread over 48. */
            room->pairs[half][i] = 8 * half + 16 * (i / 3 % 2) + 4 * (i / 6) + i % 3;
            for (int g = 0; g < 4; g++) room->places[4 * half + g][(12 * g + i) % 16] = 6 * half + 16 * (i / 6) + i % 6;
        }
}

/* Find the maximum height and width of ragged images in a memory of so many pixels. Returns false if the taps
of an image lead outside it, or if it is turned and has wider pixels. */
static int
measure(Job *job, int64_t pixels)
{
    int64_t width = columns_of(&job->what);
    job->height = job->width = 1;
    for (int64_t n = job->begin; n < job->end; n++) {
        const float *column = job->columns + n * width, *source = column + width - SOURCE_WIDTH;
        if (job->what.pixel != job->what.channels && !(column[1] == 0 && column[3] == 0)) return 0;
        for (int i = 0; i < SOURCE_WIDTH; i++)
            if (!(source[i] >= (i == 0 ? -MOST_SIDE : i > 1) && source[i] <= MOST_SIDE)) return 0;
        int64_t place = place_of(source), stride = (int64_t)source[4];
        Sample s = {.height = (int)source[2], .width = (int)source[3]};
        read_taps(&s, column);
        int64_t end = (s.height - 1) * stride + s.width;
        if (end > INT32_MAX || place + end > pixels || place + s.top_tap * stride + s.left_tap < 0) return 0;
        if (s.height > job->height) job->height = s.height;
        if (s.width > job->width) job->width = s.width;
    }
    return 1;
}

/* augment(what, images, height, width, columns, out, begin, end, past): addresses of memory that
native_pass.py holds. For ragged images, height is the number of pixels in the memory. */
LOOP(augment)
{
    Job job;
    Room room = {0};
    Buffers buffers = {0};
    long long numbers[8];
    if (check_count(count, 9, "augment(what, images, height, width, columns, out, begin, end, past)") < 0) return NULL;
    for (int i = 0; i < 8; i++) {
        numbers[i] = PyLong_AsLongLong(args[i + 1]);
        if (numbers[i] == -1 && PyErr_Occurred()) return NULL;
    }
    const Py_buffer *what = get_buffer(&buffers, args[0], PyBUF_SIMPLE);
    if (!what) return NULL;
    int sound = what->len == sizeof job.what;
    if (sound) memcpy(&job.what, what->buf, sizeof job.what);
    release_buffers(&buffers);
    job.images = (const uint8_t *)(intptr_t)numbers[0];
    job.height = numbers[1], job.width = numbers[2];
    job.columns = (const float *)(intptr_t)numbers[3];
    job.out = (uint8_t *)(intptr_t)numbers[4];
    job.begin = numbers[5], job.end = numbers[6], job.past = numbers[7] != 0;
    if (sound && job.what.steps >= 0 && job.what.steps <= MOST_STEPS && job.what.boxes >= 0 && job.what.ragged &&
        !measure(&job, job.height)) {
        PyErr_SetString(PyExc_ValueError, "a pass: its columns point outside the images' memory. Pass those of these images.");
        return NULL;
    }
    int wider = sound && job.what.pixel == 4 && job.what.channels == 3 && job.what.ragged && job.what.sampling == LINEAR;
    if (!sound || (job.what.pixel != job.what.channels && !wider) || job.what.channels < 1 || job.what.channels > 4 || job.what.height < 1 || job.what.width < 1 ||
        job.what.height > MOST_SIDE || job.what.width > MOST_SIDE || job.height < 1 || job.width < 1 ||
        job.height > MOST_SIDE || job.width > MOST_SIDE || (!job.what.ragged && job.height > INT32_MAX / job.width) ||
        job.what.steps < 0 || job.what.steps > MOST_STEPS || (job.what.steps && !(job.what.channels == 1 || job.what.channels == 3)) ||
        !(job.what.source == UINT8 || job.what.source == FLOAT32) || job.what.boxes < 0 || job.what.across < 1 || job.what.down < 1) {
        PyErr_SetString(PyExc_ValueError, "a pass: does not have the layout of native_pass.py.");
        return NULL;
    }
    if (job.begin >= job.end) Py_RETURN_NONE;
    for (int i = 0; i < BLOCK; i++) {
        room.scale[i] = job.what.scale[i % job.what.channels];
        room.shift[i] = job.what.shift[i % job.what.channels];
    }
    char *memory;
    int64_t numbers_each = (int64_t)job.what.height * job.what.width * job.what.channels;
    int64_t bytes_each = numbers_each * BYTES_OF(job.what.dtype);
    Py_BEGIN_ALLOW_THREADS
    if (job.past) job.past = used(job.out + (job.begin + job.end) / 2 * bytes_each);
    room.most_across = most_taps(&job, 10, job.width), room.most_down = most_taps(&job, 11, job.height);
    memory = malloc(lay_out(&room, &job, NULL) + LINE);
    if (memory) {
        lay_out(&room, &job, memory + (-(uintptr_t)memory & (LINE - 1)));
        lay_out_moves(&room, job.what.pixel);
        samples(&job, &room);
        if (job.past) FENCE();
        free(memory);
    }
    Py_END_ALLOW_THREADS
    if (!memory) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

void
native_choose_processor(void)
{
#ifdef BY_PROCESSOR
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) samples = samples_avx2, lanes = 2;
    if (samples == samples_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
        samples = samples_avx512, lanes = 4;
#endif
}
