/* The loop of orders/mixture.py, which specifies it and has it in NumPy (_turned, then _deal), with the same
result. */
#include "native.h"

#define PIECE_ROWS 4096        /* interleaving.PIECE_ROWS */
#define MOST (INT64_C(1) << 31) /* mixture._LARGE: products of two such numbers fit */

/* A node of the tree of packs: draws of all its packs, of the first half, and the halves: a node, or -1 - a
pack. */
typedef struct {
    int64_t whole, own, first, second;
} Node;

/* A global batch: its first position, its end, and the rotation of its positions. */
typedef struct {
    int64_t first, stop, turn;
} Batch;

static Batch
batch_of(int64_t position, int64_t batch, int64_t length, uint64_t key)
{
    int64_t number = position / batch, first = number * batch;
    uint64_t size = (uint64_t)(length - first < batch ? length - first : batch), hash = random_word((uint64_t)number, key);
    uint64_t turn = ((hash >> 32) * size + ((hash & UINT32_MAX) * size >> 32)) >> 32; /* randomness.integers */
    return (Batch){first, first + (int64_t)size, (int64_t)turn};
}

/* Return whether a walk ends at a pack, and stays within numbers that fit. */
static int
sound(const Node *nodes, Py_ssize_t count, int64_t packs)
{
    for (Py_ssize_t k = 0; k < count; k++) {
        const Node *node = nodes + k;
        if (node->whole < 1 || node->whole > MOST || node->own < 0 || node->own > node->whole) return 0;
        for (int half = 0; half < 2; half++) {
            int64_t next = half ? node->second : node->first;
            if (next < 0 ? -1 - next >= packs : next <= k || next >= count) return 0;
        }
    }
    return packs > 0;
}

/* Deal a place: return its pack, and change it to the pack's draw. */
static inline int64_t
pack_of(const Node *nodes, int64_t next, int64_t *place)
{
    while (next >= 0) {
        const Node *node = nodes + next;
        int64_t line = *place * node->own + node->whole / 2, before = line / node->whole;
        int64_t first = line - before * node->whole >= node->whole - node->own;
        *place = first ? before : *place - before;
        next = first ? node->first : node->second;
    }
    return -1 - next;
}

/* deal(positions, key, batch, length, nodes, draws, where, ends) */
LOOP(deal)
{
    static const int places[] = {0, 4, 5, 6, 7};
    Buffers buffers = {0};
    const Py_buffer *views[5] = {NULL};
    if (check_count(count, 8, "deal(positions, key, batch, length, nodes, draws, where, ends)") < 0) return NULL;
    uint64_t key = PyLong_AsUnsignedLongLong(args[1]);
    int64_t batch = PyLong_AsLongLong(args[2]), length = PyLong_AsLongLong(args[3]);
    if (PyErr_Occurred()) return NULL;
    for (int i = 0; i < 5; i++) {
        views[i] = get_buffer(&buffers, args[places[i]], i < 2 ? PyBUF_ND : PyBUF_ND | PyBUF_WRITABLE);
        if (!views[i]) goto done;
        if (views[i]->itemsize != 8 || (uintptr_t)views[i]->buf % 8) {
            PyErr_SetString(PyExc_ValueError, "deal: an array is not int64, or not aligned.");
            goto done;
        }
    }
    const int64_t *positions = views[0]->buf;
    const Node *nodes = views[1]->buf;
    int64_t *draws = views[2]->buf, *where = views[3]->buf, *ends = views[4]->buf;
    Py_ssize_t rows = views[0]->len / 8, inner = views[1]->len / (Py_ssize_t)sizeof *nodes, packs = views[4]->len / 8;
    int64_t place[PIECE_ROWS], root = inner ? 0 : -1;
    int32_t pack[PIECE_ROWS];
    int fits = rows <= PIECE_ROWS && views[2]->len == views[0]->len && views[3]->len == views[0]->len && batch > 0 &&
               batch <= MOST && length <= MOST && packs <= INT32_MAX && sound(nodes, inner, packs) &&
               (!inner || nodes[0].whole == length);
    for (Py_ssize_t i = 0; fits && i < rows; i++) fits = positions[i] >= 0 && positions[i] < length;
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "deal: the arguments do not match.");
        goto done;
    }
    memset(ends, 0, (size_t)packs * sizeof *ends);
    Batch now = {0, 0, 0};
    for (Py_ssize_t i = 0; i < rows; i++) {
        int64_t position = positions[i];
        if (position < now.first || position >= now.stop) now = batch_of(position, batch, length, key);
        position += now.turn;
        if (position >= now.stop) position -= now.stop - now.first;
        int64_t own = pack_of(nodes, root, &position);
        place[i] = position;
        pack[i] = (int32_t)own;
        ends[own]++;
    }
    int64_t at = 0;
    for (Py_ssize_t k = 0; k < packs; k++) {
        int64_t own = ends[k];
        ends[k] = at;
        at += own;
    }
    for (Py_ssize_t i = 0; i < rows; i++) {
        int64_t to = ends[pack[i]]++;
        draws[to] = place[i];
        where[to] = i;
    }
done:
    release_buffers(&buffers);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}
