/* The inner loop of sums.py, which says what it computes and has it in NumPy, to the same bit.

Each column's sums are added up row after row, so that columns beside each other make the lanes of a vector, and NumPy
adds in the same order. A product is rounded before it is added: nothing here may be contracted to a fused operation.
Strips of rows stay in the first cache while one group of columns after the other goes over them.
*/
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

#if defined(__x86_64__) && defined(__GLIBC__) && \
    (defined(__clang__) ? __clang_major__ >= 14 : defined(__GNUC__) && __GNUC__ >= 9)
#define CLONES __attribute__((target_clones("avx2", "default")))
#else
#define CLONES
#endif

#if defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 9)
#define INLINE static inline __attribute__((always_inline))
#define VECTORS
#define GROUP 4
#else
#define INLINE static inline
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

/* Add a strip of rows to the sums of one column. */
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

/* The same for GROUP columns that lie side by side: a lane each. */
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

/* Take the first cell that is not missing as what the others are counted from; clear the rest. */
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
        /* From 2**53 on, and wherever it is no number, there is nothing behind the point. */
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
        double *own = figures + c * FIGURES; /* no minus zeros: NumPy may find another first */
        own[SUM] += 0.0, own[LEAST] += 0.0, own[MOST] += 0.0;
    }
}

static PyObject *
block_sums(PyObject *self, PyObject *args)
{
    Py_buffer records = {0}, mask = {0}, offsets = {0}, single = {0}, figures = {0}, whole = {0};
    Py_ssize_t itemsize, block;
    PyObject *chosen, *result = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*nnOy*y*w*w*", &records, &itemsize, &block, &chosen, &offsets, &single, &figures, &whole))
        return NULL;
    if (chosen == Py_None || PyObject_GetBuffer(chosen, &mask, PyBUF_SIMPLE) == 0) {
        Py_ssize_t columns = single.len, rows = itemsize > 0 ? records.len / itemsize : -1;
        const int64_t *at = offsets.buf;
        int fits = rows >= 0 && block > 0 && records.len == rows * itemsize && (!mask.obj || mask.len == rows) &&
                   offsets.len == columns * 8 && whole.len == columns &&
                   figures.len == (rows + block - 1) / block * columns * FIGURES * 8;
        for (Py_ssize_t c = 0; fits && c < columns; c++)
            fits = at[c] >= 0 && at[c] + (((uint8_t *)single.buf)[c] ? 4 : 8) <= itemsize;
        if (fits) {
            Py_BEGIN_ALLOW_THREADS
            double *own = figures.buf;
            for (Py_ssize_t first = 0; first < rows; first += block, own += columns * FIGURES)
                add_block((const char *)records.buf + first * itemsize, itemsize,
                          rows - first < block ? rows - first : block,
                          mask.obj ? (const uint8_t *)mask.buf + first : NULL, at, single.buf, columns, own, whole.buf);
            Py_END_ALLOW_THREADS
            result = Py_NewRef(Py_None);
        } else
            PyErr_SetString(PyExc_ValueError, "the arrays' sizes do not go together");
        if (mask.obj) PyBuffer_Release(&mask);
    }
    PyBuffer_Release(&records);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&single);
    PyBuffer_Release(&figures);
    PyBuffer_Release(&whole);
    return result;
}

static PyMethodDef methods[] = {
    {"block_sums", block_sums, METH_VARARGS, "As block_sums_numpy in sums.py."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "packer.tables._sums", .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__sums(void)
{
    return PyModuleDef_Init(&module);
}
