/* The loops of randomness.permute and unpermute, which specify them and have them in NumPy, to the same bit.

Plain C on 64-bit integers, so that every compiler and processor computes equal numbers. The six rounds of
a position depend on each other, those of different positions do not: BATCH positions go through a round
together, in vectors where possible.
*/
#include "native.h"

#define ROUNDS 6
#define BATCH 64
#define SORTED_ROWS 256 /* randomness._SORTED_ROWS */
#define FEW 2000        /* positions, 20 us of work */

typedef struct {
    uint64_t n, a, b;
    uint64_t keys[ROUNDS];
} Network;

/* Apply the network to `count` <= BATCH numbers in place, or its inverse if `back`, a compile-time constant. */
INLINE void
rounds(uint64_t *restrict numbers, int count, const Network *net, const int back)
{
    _Alignas(64) uint64_t lefts[BATCH], rights[BATCH];
    uint64_t *restrict left = lefts, *restrict right = rights;
    uint64_t a = net->a, b = net->b;
    double inverse = 1.0 / (double)b;
    for (int i = 0; i < count; i++) {
        /* A division is slow and has no vector form. This quotient is off by at most 1, which the remainder
        shows. */
        int64_t number = (int64_t)numbers[i];
        int64_t quotient = (int64_t)((double)number * inverse);
        int64_t rest = number - quotient * (int64_t)b;
        int64_t low = rest < 0, high = rest >= (int64_t)b;
        left[i] = (uint64_t)(quotient - low + high);
        right[i] = (uint64_t)(rest + (low - high) * (int64_t)b);
    }
    for (int round = 0; round < ROUNDS; round++) {
        int k = back ? ROUNDS - 1 - round : round;
        uint64_t modulus = k % 2 ? b : a, key = net->keys[k];
        uint64_t *swap = left;
        if (back) {
            left = right;
            right = swap;
        }
        for (int i = 0; i < count; i++) {
            uint64_t mixed = (right[i] + key) * MIX_1;
            mixed = (mixed ^ mixed >> 32) * MIX_2;
            mixed = (mixed >> 32) * modulus >> 32;
            uint64_t moved = back ? left[i] - mixed : left[i] + mixed;
            uint64_t other = back ? moved + modulus : moved - modulus;
            left[i] = moved < other ? moved : other;
        }
        if (!back) {
            swap = left;
            left = right;
            right = swap;
        }
    }
    for (int i = 0; i < count; i++) numbers[i] = left[i] * b + right[i];
}

CLONES_AVX512 static void
pass(uint64_t *restrict numbers, int count, const Network *net)
{
    rounds(numbers, count, net, 0);
}

CLONES_AVX512 static void
pass_back(uint64_t *restrict numbers, int count, const Network *net)
{
    rounds(numbers, count, net, 1);
}

static void
walk(const int64_t *given, int64_t *found, Py_ssize_t count, const Network *net, int back)
{
    _Alignas(64) uint64_t batch[BATCH]; /* a vector that crosses cache lines costs 5 % */
    void (*through)(uint64_t *restrict, int, const Network *) = back ? pass_back : pass;
    for (Py_ssize_t at = 0; at < count; at += BATCH) {
        int some = count - at < BATCH ? (int)(count - at) : BATCH;
        memcpy(batch, given + at, (size_t)some * sizeof *batch);
        through(batch, some, net);
        for (int i = 0; i < some; i++)
            while (batch[i] >= net->n) through(batch + i, 1, net);
        memcpy(found + at, batch, (size_t)some * sizeof *batch);
    }
}

/* 0..n-1 in the order of their hashes, which all differ: a bottom-up merge sort. */
static void
sort_hashes(uint64_t key, int n, uint8_t *sorted)
{
    uint64_t hashes[SORTED_ROWS];
    uint8_t space[SORTED_ROWS], *from = sorted, *to = space;
    for (int i = 0; i < n; i++) {
        hashes[i] = random_word((uint64_t)i, key);
        from[i] = (uint8_t)i;
    }
    for (int width = 1; width < n; width *= 2) {
        for (int begin = 0; begin < n; begin += 2 * width) {
            int i = begin, middle = begin + width < n ? begin + width : n;
            int j = middle, end = middle + width < n ? middle + width : n;
            for (int k = begin; k < end; k++)
                to[k] = from[j >= end || (i < middle && hashes[from[i]] < hashes[from[j]]) ? i++ : j++];
        }
        uint8_t *swap = from;
        from = to;
        to = swap;
    }
    if (from != sorted) memcpy(sorted, from, (size_t)n);
}

static void
permute_all(const int64_t *given, int64_t *found, Py_ssize_t count, const Network *net, uint64_t key, int back)
{
    if (net->n > SORTED_ROWS) {
        walk(given, found, count, net, back);
    } else {
        uint8_t sorted[SORTED_ROWS], places[SORTED_ROWS];
        sort_hashes(key, (int)net->n, sorted);
        for (int i = 0; i < (int)net->n; i++) places[sorted[i]] = (uint8_t)i;
        for (Py_ssize_t i = 0; i < count; i++) found[i] = (back ? places : sorted)[given[i]];
    }
}

/* permute(positions, numbers, n, a, b, key, round_keys) -> the first position outside 0..n-1, or -1;
   unpermute(numbers, positions, ...) -> the first number outside, or -1 */
static PyObject *
either(PyObject *const *args, Py_ssize_t count, int back)
{
    Buffers buffers = {0};
    Network net;
    char *keys;
    Py_ssize_t keys_length, wrong = -1;
    if (check_count(count, 7, "permute(given, found, n, a, b, key, round_keys)") < 0) return NULL;
    net.n = PyLong_AsUnsignedLongLong(args[2]);
    net.a = PyLong_AsUnsignedLongLong(args[3]);
    net.b = PyLong_AsUnsignedLongLong(args[4]);
    uint64_t key = PyLong_AsUnsignedLongLong(args[5]);
    if (PyErr_Occurred() || PyBytes_AsStringAndSize(args[6], &keys, &keys_length) < 0) return NULL;
    if (keys_length != sizeof net.keys || net.n < 1 || net.n > (uint64_t)1 << 62) {
        PyErr_SetString(PyExc_ValueError, "permute: 6 round keys of 8 bytes, and n from 1 to 2**62, are allowed.");
        return NULL;
    }
    memcpy(net.keys, keys, sizeof net.keys);
    Py_buffer *given = get_buffer(&buffers, args[0], PyBUF_ND);
    Py_buffer *found = given ? get_buffer(&buffers, args[1], PyBUF_ND | PyBUF_WRITABLE) : NULL;
    if (found && (given->itemsize != 8 || found->itemsize != 8 || given->len != found->len ||
                  (uintptr_t)given->buf % 8 || (uintptr_t)found->buf % 8)) {
        PyErr_SetString(PyExc_ValueError, "permute: an array is not int64 or not aligned, or their lengths differ.");
    } else if (found) {
        const int64_t *from = given->buf;
        int64_t *to = found->buf;
        Py_ssize_t many = given->len / 8;
        BEGIN_WITHOUT_GIL_IF(many >= FEW)
        for (Py_ssize_t i = 0; i < many && wrong < 0; i++)
            if ((uint64_t)from[i] >= net.n) wrong = i;
        if (wrong < 0) permute_all(from, to, many, &net, key, back);
        END_WITHOUT_GIL
    }
    release_buffers(&buffers);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(wrong);
}

LOOP(permute)
{
    return either(args, count, 0);
}

LOOP(unpermute)
{
    return either(args, count, 1);
}
