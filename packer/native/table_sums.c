/* The loop of tables/transform/column_sums.py, which specifies it and has it in NumPy, to the same bit.

Each column's sums are added row after row, so that adjacent columns are the lanes of a vector, and NumPy
adds in the same order. A product is rounded before it is added: nothing here may be contracted to a fused
operation. Strips of rows stay in the first cache while one group of columns after the other is summed.
*/
#include "native.h"

#include <math.h>

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

#ifdef VECTORS
#define GROUP 4
#else
#define GROUP PY_SSIZE_T_MAX
#endif

#define STRIP 256 /* rows */
enum { COUNT, SHIFT, SUM, SQUARES, LEAST, MOST, FIGURES };

INLINE double
cell(const char *at, int single)
{
    float small;
    double x;
    if (single) {
        memcpy(&small, at, sizeof small);
        return small;
    }
    memcpy(&x, at, sizeof x);
    return x;
}

/* Add a strip of rows to the sums of a column. */
INLINE void
add_one(const char *at, Py_ssize_t itemsize, Py_ssize_t rows, const uint8_t *mask, int single, double *own)
{
    double count = own[COUNT], shift = own[SHIFT], sum = own[SUM], squares = own[SQUARES];
    double least = own[LEAST], most = own[MOST];
    for (Py_ssize_t i = 0; i < rows; i++, at += itemsize) {
        double x = cell(at, single), from = x == x ? x - shift : 0;
        if (mask && !mask[i]) continue;
        count += x == x;
        sum += from;
        squares += from * from;
        least = x < least ? x : least;
        most = x > most ? x : most;
    }
    own[COUNT] = count, own[SUM] = sum, own[SQUARES] = squares, own[LEAST] = least, own[MOST] = most;
}

#ifdef VECTORS
typedef double Lanes __attribute__((vector_size(8 * GROUP)));
typedef float Singles __attribute__((vector_size(4 * GROUP)));
typedef int64_t Bits __attribute__((vector_size(8 * GROUP)));

/* The same for GROUP adjacent columns, one lane each. */
INLINE void
add_group(const char *at, Py_ssize_t itemsize, Py_ssize_t rows, const uint8_t *mask, int single, double *figures)
{
    Lanes shift, sum, squares, least, most;
    Bits count;
    for (int k = 0; k < GROUP; k++) {
        const double *own = figures + k * FIGURES;
        count[k] = (int64_t)own[COUNT], shift[k] = own[SHIFT], sum[k] = own[SUM], squares[k] = own[SQUARES];
        least[k] = own[LEAST], most[k] = own[MOST];
    }
    for (Py_ssize_t i = 0; i < rows; i++, at += itemsize) {
        Lanes x, from;
        Bits present, less, more;
        if (mask && !mask[i]) continue;
        if (single) {
            Singles small;
            memcpy(&small, at, sizeof small);
            x = __builtin_convertvector(small, Lanes);
        } else
            memcpy(&x, at, sizeof x);
        present = x == x, less = x < least, more = x > most;
        from = (Lanes)((Bits)(x - shift) & present);
        count -= present;
        sum += from;
        squares += from * from;
        least = (Lanes)(((Bits)x & less) | ((Bits)least & ~less));
        most = (Lanes)(((Bits)x & more) | ((Bits)most & ~more));
    }
    for (int k = 0; k < GROUP; k++) {
        double *own = figures + k * FIGURES;
        own[COUNT] = (double)count[k], own[SUM] = sum[k], own[SQUARES] = squares[k];
        own[LEAST] = least[k], own[MOST] = most[k];
    }
}
#endif

/* Use the first cell that is not missing as the shift of the others; clear the rest. */
static void
begin(const char *at, Py_ssize_t itemsize, Py_ssize_t rows, const uint8_t *mask, int single, double *own)
{
    own[COUNT] = own[SHIFT] = own[SUM] = own[SQUARES] = 0;
    own[LEAST] = INFINITY, own[MOST] = -INFINITY;
    for (Py_ssize_t i = 0; i < rows; i++, at += itemsize) {
        double x;
        if (mask && !mask[i]) continue;
        x = cell(at, single);
        if (x == x) {
            own[SHIFT] = x;
            return;
        }
    }
}

static int
all_whole(const char *at, Py_ssize_t itemsize, Py_ssize_t rows, const uint8_t *mask, int single)
{
    for (Py_ssize_t i = 0; i < rows; i++, at += itemsize) {
        double x;
        if (mask && !mask[i]) continue;
        x = cell(at, single);
        /* From 2**53 on, and for NaN, there are no decimals. */
        if (x < 9007199254740992.0 && x > -9007199254740992.0 && (double)(int64_t)x != x) return 0;
    }
    return 1;
}

static CLONES void
add_block(const char *records, Py_ssize_t itemsize, Py_ssize_t rows, const uint8_t *mask, const int64_t *offsets,
          const uint8_t *single, Py_ssize_t columns, double *figures, uint8_t *whole)
{
    for (Py_ssize_t c = 0; c < columns; c++) {
        begin(records + offsets[c], itemsize, rows, mask, single[c], figures + c * FIGURES);
        if (whole[c]) whole[c] = all_whole(records + offsets[c], itemsize, rows, mask, single[c]);
    }
    for (Py_ssize_t first = 0; first < rows; first += STRIP) {
        Py_ssize_t count = rows - first < STRIP ? rows - first : STRIP;
        const char *strip = records + first * itemsize;
        const uint8_t *chosen = mask ? mask + first : NULL;
        for (Py_ssize_t c = 0; c < columns;) {
            Py_ssize_t beside = 1, size = single[c] ? 4 : 8;
            const char *at = strip + offsets[c];
            double *own = figures + c * FIGURES;
            while (beside < GROUP && c + beside < columns && single[c + beside] == single[c] &&
                   offsets[c + beside] == offsets[c] + beside * size)
                beside++;
            if (beside < GROUP) {
                beside = 1;
                if (single[c]) add_one(at, itemsize, count, chosen, 1, own);
                else add_one(at, itemsize, count, chosen, 0, own);
            }
#ifdef VECTORS
            else if (single[c]) add_group(at, itemsize, count, chosen, 1, own);
            else add_group(at, itemsize, count, chosen, 0, own);
#endif
            c += beside;
        }
    }
    for (Py_ssize_t c = 0; c < columns; c++) {
        double *own = figures + c * FIGURES; /* no negative zeros: NumPy may meet another zero first */
        own[SUM] += 0.0, own[LEAST] += 0.0, own[MOST] += 0.0;
    }
}

/* block_sums(records, itemsize, block, mask or None, offsets, single, figures, whole) */
LOOP(block_sums)
{
    static const int places[] = {0, 4, 5, 6, 7, 3};
    Buffers buffers = {0};
    const Py_buffer *views[6] = {NULL};
    if (check_count(count, 8, "block_sums(records, itemsize, block, mask, offsets, single, figures, whole)") < 0) return NULL;
    Py_ssize_t itemsize = PyLong_AsSsize_t(args[1]), block = PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred()) return NULL;
    for (int i = 0; i < (args[3] == Py_None ? 5 : 6); i++) {
        views[i] = get_buffer(&buffers, args[places[i]], i == 3 || i == 4 ? PyBUF_WRITABLE : PyBUF_SIMPLE);
        if (!views[i]) goto done;
    }
    const Py_buffer *records = views[0], *offsets = views[1], *figures = views[3], *whole = views[4], *mask = views[5];
    const uint8_t *single = views[2]->buf, *chosen = mask ? mask->buf : NULL;
    const int64_t *at = offsets->buf;
    Py_ssize_t columns = views[2]->len, rows = itemsize > 0 ? records->len / itemsize : -1;
    /* No sum or product of given numbers: they may be as large as 2**63 - 1. */
    int fits = rows >= 0 && block > 0 && records->len % itemsize == 0 && (!mask || mask->len == rows) &&
               offsets->len / 8 == columns && offsets->len % 8 == 0 && whole->len == columns &&
               !((uintptr_t)at % 8) && !((uintptr_t)figures->buf % 8);
    Py_ssize_t blocks = fits ? rows / block + (rows % block != 0) : 0, each = columns * FIGURES * 8;
    fits = fits && (each ? figures->len / each == blocks && figures->len % each == 0 : !figures->len);
    for (Py_ssize_t c = 0; fits && c < columns; c++) fits = at[c] >= 0 && at[c] <= itemsize - (single[c] ? 4 : 8);
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "the arrays' sizes do not match");
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    double *own = figures->buf;
    for (Py_ssize_t b = 0, first = 0; b < blocks; b++, first += block, own += columns * FIGURES)
        add_block((const char *)records->buf + first * itemsize, itemsize, rows - first < block ? rows - first : block,
                  chosen ? chosen + first : NULL, at, single, columns, own, whole->buf);
    Py_END_ALLOW_THREADS
done:
    release_buffers(&buffers);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}
