/* Shared by the files of the extension: compilers and processors, copies past the caches, arguments from
Python.

Each file begins with the Python module that calls it. That module has the same loops in Python or NumPy,
with the same results.
*/
#ifndef NATIVE_H
#define NATIVE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* preadv2, mincore */
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if !defined(__GNUC__) || !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Files hold little-endian numbers, which are read as they are; NumPy and Python do the work here."
#endif

#define INLINE static inline __attribute__((always_inline))
#define SLOW __attribute__((noinline, cold))
/* inlined into a larger function, GCC ignores `restrict` and uses no vectors */
#define NOINLINE __attribute__((noinline))
#define RARE(condition) __builtin_expect(!!(condition), 0)
#if defined(__clang__) || __GNUC__ >= 9
#define VECTORS /* __builtin_convertvector, and vectors beyond the processor's */
#endif

/* Functions that are also compiled for AVX2, or for AVX2 and AVX-512, and chosen when the extension is
loaded. GCC knows the latter's name from version 12 on; older ones fail. */
#if defined(__x86_64__) && defined(__GLIBC__) && (defined(__clang__) ? __clang_major__ >= 14 : __GNUC__ >= 9)
#define CLONES __attribute__((target_clones("avx2", "default")))
#else
#define CLONES NOINLINE
#endif
#if defined(__clang__)
#define CLONES_AVX512
#elif defined(__x86_64__) && defined(__GLIBC__) && __GNUC__ >= 12
#define CLONES_AVX512 __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define CLONES_AVX512 CLONES
#endif

/* ---- memory ---- */

#define LINE 64 /* bytes; with other line sizes there are only a few more or fewer prefetches */

/* Copy past the caches, which then neither read the lines of `to` first nor keep them. ahead: bytes that are
prefetched, or 0. FENCE() makes the bytes visible to threads that learn of them. */
#if defined(__SSE2__)
#define FENCE() _mm_sfence()
INLINE void
stream(uint8_t *to, const uint8_t *from, size_t n, size_t ahead)
{
    size_t odd = -(uintptr_t)to & 15;
    if (odd > n) odd = n;
    memcpy(to, from, odd);
    to += odd, from += odd, n -= odd;
    for (; n >= LINE; to += LINE, from += LINE, n -= LINE) {
        if (ahead) _mm_prefetch((const char *)from + ahead, _MM_HINT_T0);
        __m128i a = _mm_loadu_si128((const __m128i *)from), b = _mm_loadu_si128((const __m128i *)(from + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(from + 32)), d = _mm_loadu_si128((const __m128i *)(from + 48));
        _mm_stream_si128((__m128i *)to, a);
        _mm_stream_si128((__m128i *)(to + 16), b);
        _mm_stream_si128((__m128i *)(to + 32), c);
        _mm_stream_si128((__m128i *)(to + 48), d);
    }
    memcpy(to, from, n);
}
#else
#define FENCE() ((void)0)
#define stream(to, from, n, ahead) memcpy(to, from, n)
#endif

/* ---- arguments ---- */

/* The argument buffers of a call. Initialise with {0}. */
typedef struct {
    int count;
    Py_buffer views[8];
} Buffers;

/* Get the buffer of a further argument. Returns NULL with an exception set if it has none. */
static inline Py_buffer *
get_buffer(Buffers *buffers, PyObject *object, int flags)
{
    Py_buffer *view = buffers->views + buffers->count;
    if (PyObject_GetBuffer(object, view, flags) < 0) return NULL;
    buffers->count++;
    return view;
}

static inline void
release_buffers(Buffers *buffers)
{
    while (buffers->count) PyBuffer_Release(buffers->views + --buffers->count);
}

/* Set an exception; return -1. */
static inline int
refuse(PyObject *type, const char *sentence)
{
    PyErr_SetString(type, sentence);
    return -1;
}

static inline int
check_count(Py_ssize_t count, Py_ssize_t wanted, const char *call)
{
    return count == wanted ? 0 : refuse(PyExc_TypeError, call);
}

/* ---- random numbers, as in randomness.py ---- */

#define MIX_1 0xBF58476D1CE4E5B9u
#define MIX_2 0x94D049BB133111EBu

/* randomness._hashes */
INLINE uint64_t
random_word(uint64_t counter, uint64_t key)
{
    uint64_t x = (counter + 1) * 0x9E3779B97F4A7C15u + key;
    x = (x ^ x >> 30) * MIX_1;
    x = (x ^ x >> 27) * MIX_2;
    return x ^ x >> 31;
}

/* ---- the GIL ---- */

/* Run long work without the GIL. Short work keeps it: taking it back can take 5 ms while another thread
computes. */
#define BEGIN_WITHOUT_GIL_IF(is_long)                                   \
    {                                                                   \
        PyThreadState *released = (is_long) ? PyEval_SaveThread() : NULL;
#define END_WITHOUT_GIL                                 \
        if (released) PyEval_RestoreThread(released);   \
    }

/* ---- what module.c registers ---- */

#define LOOP(name) PyObject *native_##name(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)

LOOP(permute);
LOOP(unpermute);
LOOP(copy_rows);
LOOP(read_rows);
LOOP(willneed_rows);
LOOP(resample);
LOOP(channel_sums);
LOOP(jpeg_plain_shape);
LOOP(jpeg_part);
LOOP(jpeg_with_restarts);
LOOP(parse_csv);
LOOP(end_of_csv_records);
LOOP(block_sums);
LOOP(augment);
void native_choose_processor(void);

#endif
