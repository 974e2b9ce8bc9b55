/* The loops of read/gather.py, which specifies them and has them in Python, with the same result.

Each call copies an entire batch without the GIL. The copies are fast because:

  - Rows in random order wait for memory, not for the processor: the next rows are prefetched.
  - A long run in a large batch is stored past the caches, which then neither read its lines first nor keep
    them.
  - A row of eight bytes, a label, is one load and one store.

An unavailable page of a mapped file raises SIGBUS: the file was cut short meanwhile, or its disk failed.
Inside a copy the signal ends the copy; elsewhere it goes to the previous handler.
*/
#include "native.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#if defined(__GLIBC__)
/* Accessible without a call, which could allocate memory in a thread's first signal. */
#define THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))
#else
#define THREAD_LOCAL _Thread_local
#endif

#define DONE (-1) /* returned by copy(), unless it returns a file number */
#define COLD (-2)
#define UNWRITABLE (-3)

#define AHEAD 32             /* runs whose first lines are prefetched */
#define FEW_EXTENTS 8        /* up to here a scan finds the extent, beyond it a search */
#define MOST_LINES 8         /* prefetched lines of a piece; the processor's prefetcher does the rest */
#define STREAM_RUN (64 << 10) /* smallest run, with STREAM_BATCH, that is stored past the caches */
#define STREAM_BATCH (4 << 20)
#define HELD_BYTES (32 << 10) /* up to here the GIL is kept: releasing it costs more than the copy */
#define PROBES 4             /* runs whose pages are looked up */
#define ADVICE (128 << 10)   /* bytes: Linux ignores what exceeds a device's read-ahead */
#define MOST_PASSED 100      /* repeats of a fault at one address that are passed on */
#define AHEAD_BYTES (32 << 20) /* requested before they are read */
#define CALL_BYTES (1 << 30)  /* read at once: macOS refuses 2 GiB */

typedef struct {
    const int64_t (*extents)[3]; /* [count + 1]: first row, file, offset in it; the last has all rows */
    /* descriptor, address of the first byte or 0, bytes up to the last extent's end */
    const int64_t (*files)[3];
    const int64_t *starts, *lengths;
    Py_ssize_t count, file_count, runs;
    int64_t row_bytes, rows, nbytes; /* rows and bytes in the runs */
} Request;

typedef struct {
    int64_t file, offset, nbytes;
} Piece;

/* Place of the next piece in the runs and in the extents. */
typedef struct {
    Py_ssize_t run, extent;
    int64_t done; /* rows of the run */
} Place;

/* Return the extent that holds a row. last: the extent of another row. Few extents are scanned without
unpredictable branches. */
static inline Py_ssize_t
extent_of(const Request *request, int64_t row, Py_ssize_t last)
{
    const int64_t(*extents)[3] = request->extents;
    Py_ssize_t low = 0, high = request->count;
    if (high <= FEW_EXTENTS) {
        for (Py_ssize_t e = 1; e < high; e++) low += extents[e][0] <= row;
        return low;
    }
    if (row >= extents[last][0] && row < extents[last + 1][0]) return last;
    while (high - low > 1) {
        Py_ssize_t middle = low + (high - low) / 2;
        if (extents[middle][0] <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Find the next piece: the rows of a run that lie in one extent. Returns 0 if there is none. */
static inline int
next_piece(const Request *request, Place *place, Piece *piece)
{
    if (place->run == request->runs) return 0;
    int64_t row = request->starts[place->run] + place->done, left = request->lengths[place->run] - place->done;
    const int64_t(*extents)[3] = request->extents;
    Py_ssize_t e = place->extent = extent_of(request, row, place->extent);
    int64_t here = extents[e + 1][0] - row;
    if (left <= here) {
        here = left;
        place->run++;
        place->done = 0;
    } else {
        place->done += here;
    }
    piece->file = extents[e][1];
    piece->offset = extents[e][2] + (row - extents[e][0]) * request->row_bytes;
    piece->nbytes = here * request->row_bytes;
    return 1;
}

static inline const uint8_t *
address(const Request *request, const Piece *piece)
{
    return (const uint8_t *)(intptr_t)request->files[piece->file][1] + piece->offset;
}

static inline void
prefetch(const uint8_t *from, int64_t nbytes)
{
    int64_t most = nbytes < MOST_LINES * LINE ? nbytes : MOST_LINES * LINE;
    for (int64_t at = 0; at < most; at += LINE) __builtin_prefetch(from + at);
}

static inline void
copy_run(uint8_t *out, const uint8_t *from, int64_t nbytes, int past)
{
    if (nbytes == 8) /* a label */
        memcpy(out, from, 8);
    else if (past && nbytes >= STREAM_RUN)
        stream(out, from, (size_t)nbytes, 16 * LINE), FENCE();
    else
        memcpy(out, from, (size_t)nbytes);
}

/* Copy from a single extent. */
NOINLINE static void
copy_runs(const Request *request, uint8_t *out, int past)
{
    const int64_t *starts = request->starts, *lengths = request->lengths, row_bytes = request->row_bytes;
    const uint8_t *base = (const uint8_t *)(intptr_t)request->files[request->extents[0][1]][1] + request->extents[0][2];
    for (Py_ssize_t i = 0; i < request->runs; i++) {
        Py_ssize_t later = i + AHEAD;
        if (later < request->runs) prefetch(base + starts[later] * row_bytes, lengths[later] * row_bytes);
        copy_run(out, base + starts[i] * row_bytes, lengths[i] * row_bytes, past);
        out += lengths[i] * row_bytes;
    }
}

/* Prefetch a run's first lines and return its address; NULL if it continues in the next extent. */
static inline const uint8_t *
begin_of(const Request *request, Py_ssize_t run, Py_ssize_t *extent, uint8_t *touched)
{
    const int64_t(*extents)[3] = request->extents;
    int64_t row = request->starts[run], length = request->lengths[run];
    Py_ssize_t e = *extent = extent_of(request, row, *extent);
    if (row + length > extents[e + 1][0]) return NULL;
    Piece piece = {extents[e][1], extents[e][2] + (row - extents[e][0]) * request->row_bytes, length * request->row_bytes};
    const uint8_t *from = address(request, &piece);
    prefetch(from, piece.nbytes);
    touched[piece.file] = 1;
    return from;
}

/* Copy from several extents. */
NOINLINE static void
copy_pieces(const Request *request, uint8_t *out, int past, uint8_t *touched)
{
    const uint8_t *ring[AHEAD];
    Py_ssize_t extent = 0, runs = request->runs;
    for (Py_ssize_t i = 0; i < AHEAD && i < runs; i++) ring[i] = begin_of(request, i, &extent, touched);
    for (Py_ssize_t i = 0; i < runs; i++) {
        const uint8_t *from = ring[i % AHEAD];
        int64_t nbytes = request->lengths[i] * request->row_bytes;
        if (i + AHEAD < runs) ring[i % AHEAD] = begin_of(request, i + AHEAD, &extent, touched);
        if (from) {
            copy_run(out, from, nbytes, past);
            out += nbytes;
            continue;
        }
        Place place = {i, extent, 0};
        Piece piece;
        while (place.run == i && next_piece(request, &place, &piece)) {
            touched[piece.file] = 1;
            copy_run(out, address(request, &piece), piece.nbytes, past);
            out += piece.nbytes;
        }
    }
}

/* SIGBUS. While this thread copies, `landing` is the place to which the handler jumps to end the copy. */
static THREAD_LOCAL sigjmp_buf *volatile landing;
static THREAD_LOCAL void *volatile fault;
static struct sigaction before; /* previous handler of the signal */
static THREAD_LOCAL volatile sig_atomic_t passing; /* while `before` is called */
static THREAD_LOCAL void *volatile unmended; /* address of the last fault passed to `before` */
static THREAD_LOCAL volatile int passed; /* number of its repeats */

static void
end_by(int number)
{
    struct sigaction ending;
    memset(&ending, 0, sizeof ending);
    ending.sa_handler = SIG_DFL;
    sigaction(number, &ending, NULL);
    raise(number);
}

/* Call the previous handler like the system would have. */
static void
pass_on(int number, siginfo_t *info, void *context)
{
    struct sigaction next = before;
    sigset_t mask = next.sa_mask, old;
    if (!(next.sa_flags & SA_SIGINFO) && next.sa_handler == SIG_IGN) return;
    /* faulthandler, if installed after this handler, passes the signal back to it once it has written its
    lines. */
    if (passing || (!(next.sa_flags & SA_SIGINFO) && next.sa_handler == SIG_DFL)) {
        end_by(number);
        return;
    }
    /* Another signal waits until this handler returns. sigprocmask is older than pthread_sigmask in glibc, and
    changes the mask of the calling thread too. */
    if (!(next.sa_flags & SA_NODEFER)) sigaddset(&mask, number);
    sigprocmask(SIG_BLOCK, &mask, &old);
    passing = 1;
    if (next.sa_flags & SA_SIGINFO)
        next.sa_sigaction(number, info, context);
    else
        next.sa_handler(number);
    passing = 0;
    sigprocmask(SIG_SETMASK, &old, NULL);
}

static void
on_fault(int number, siginfo_t *info, void *context)
{
    int saved = errno;
    if (info->si_code <= 0) { /* sent by a process; running copies still need this handler */
        pass_on(number, info, context);
        errno = saved;
        return;
    }
    if (landing) {
        sigjmp_buf *to = landing;
        fault = info->si_addr;
        landing = NULL;
        siglongjmp(*to, 1);
    }
    /* Not from a copy. A handler that returns without a remedy, such as a disabled faulthandler's, would be
    called forever. */
    int handled = (before.sa_flags & SA_SIGINFO) || (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN);
    passed = info->si_addr == unmended ? passed + 1 : 0;
    unmended = info->si_addr;
    if (!handled || passed > MOST_PASSED) {
        struct sigaction ending;
        memset(&ending, 0, sizeof ending);
        ending.sa_handler = SIG_DFL;
        sigaction(number, &ending, NULL); /* the fault repeats and ends the process */
        return;
    }
    passing = 0; /* a handler that jumped out has left it set */
    pass_on(number, info, context);
    errno = saved;
}

static int
guards(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) && action->sa_sigaction == on_fault;
}

/* Reinstall the handler if another replaced it, which would end the process. Takes 0.2 us. Several threads may
call it at once: the exchange gives the replaced handler to one of them. */
static void
guard(void)
{
    struct sigaction now, ours;
    if (sigaction(SIGBUS, NULL, &now) == 0 && guards(&now)) return;
    memset(&ours, 0, sizeof ours);
    ours.sa_sigaction = on_fault;
    sigemptyset(&ours.sa_mask);
    /* Not masked while it runs, so a jump out of it leaves nothing blocked. */
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    if (sigaction(SIGBUS, &ours, &now) == 0 && !guards(&now)) before = now;
}

/* Return the file whose mapping holds an address, or -1. A mapping begins with the page of the file's first
extent; before it, where the file's first byte would be, there is other memory, perhaps another file's. */
static Py_ssize_t
file_at(const Request *request, uintptr_t at)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (Py_ssize_t e = 0; e < request->count; e++) {
        const int64_t *extent = request->extents[e], *file = request->files[extent[1]];
        uintptr_t first = (uintptr_t)file[1] + (uintptr_t)extent[2], stop = (uintptr_t)file[1] + (uintptr_t)file[2];
        if (at >= first - first % page && at < stop) return (Py_ssize_t)extent[1];
    }
    return -1;
}

/* Copy all pieces. Returns DONE, UNWRITABLE, or an unreadable file. */
NOINLINE static Py_ssize_t
guarded_copy(const Request *request, uint8_t *out, uint8_t *touched)
{
    sigjmp_buf here;
    if (sigsetjmp(here, 0)) {
        Py_ssize_t file = file_at(request, (uintptr_t)fault);
        return file < 0 ? UNWRITABLE : file;
    }
    landing = &here;
    atomic_signal_fence(memory_order_seq_cst);
    int past = request->nbytes >= STREAM_BATCH; /* past the caches */
    if (request->count == 1) {
        touched[request->extents[0][1]] = 1;
        copy_runs(request, out, past);
    } else {
        copy_pieces(request, out, past, touched);
    }
    atomic_signal_fence(memory_order_seq_cst);
    landing = NULL;
    /* After its end, but in its last page, a file reads as zeros. lseek returns its size, or -1; fstat of a new
    glibc would make wheels that older systems (RHEL 8) cannot load. Nothing reads at the offset that it sets. */
    for (Py_ssize_t f = 0; f < request->file_count; f++)
        if (touched[f] && lseek((int)request->files[f][0], 0, SEEK_END) < request->files[f][2]) return f;
    return DONE;
}

/* Return whether a byte of a file is available without waiting for a disk. */
static int
at_hand(const Request *request, int64_t file, int64_t offset)
{
    const int64_t *entry = request->files[file];
#if defined(RWF_NOWAIT)
    uint8_t byte;
    struct iovec into = {&byte, 1};
    ssize_t got = preadv2((int)entry[0], &into, 1, offset, RWF_NOWAIT);
    if (got >= 0) return 1; /* also at the end of a truncated file: the copy will report it */
    if (errno == EAGAIN) return 0;
#endif
    /* Some file systems lack that call. mincore answers yes for all pages to callers who may not write the
    file. */
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)entry[1] + (uintptr_t)offset;
    unsigned char flag = 0;
    if (!entry[1]) return 0;
    return mincore((void *)(at - at % page), 1, (void *)&flag) != 0 || (flag & 1);
}

/* Return whether all files are mapped. */
static int
mapped(const Request *request)
{
    for (Py_ssize_t f = 0; f < request->file_count; f++)
        if (!request->files[f][1]) return 0;
    return 1;
}

/* Return whether both ends and the middle of some of the runs are in the page cache. The beginning alone
proves nothing: the kernel's read-ahead has brought in the first pages of what follows. */
static int
resident(const Request *request)
{
    Py_ssize_t step = (request->runs + PROBES - 1) / PROBES;
    for (Py_ssize_t run = 0; run < request->runs; run += step) {
        int64_t length = request->lengths[run] * request->row_bytes, last = -1;
        if (!length) continue;
        for (int part = 2; part >= 0; part--) {
            int64_t inside = part == 2 ? length - 1 : part * (length / 2);
            if (last >= 0 && last - inside < 4096) continue;
            last = inside;
            Place place = {run, 0, inside / request->row_bytes};
            Piece piece = {0, 0, 0};
            next_piece(request, &place, &piece);
            if (!at_hand(request, piece.file, piece.offset + inside % request->row_bytes)) return 0;
        }
    }
    return 1;
}

static void
advise(const Request *request, int64_t file, int64_t offset, int64_t nbytes)
{
    int fd = (int)request->files[file][0];
#if defined(POSIX_FADV_WILLNEED)
    for (int64_t at = 0; at < nbytes; at += ADVICE)
        posix_fadvise(fd, offset + at, nbytes - at < ADVICE ? nbytes - at : ADVICE, POSIX_FADV_WILLNEED);
#elif defined(F_RDADVISE)
    for (int64_t at = 0; at < nbytes; at += ADVICE) {
        struct radvisory advice = {offset + at, (int)(nbytes - at < ADVICE ? nbytes - at : ADVICE)};
        fcntl(fd, F_RDADVISE, &advice);
    }
#else
    (void)fd, (void)offset, (void)nbytes;
#endif
}

/* Request all pieces, adjacent ones together. */
static void
advise_pieces(const Request *request)
{
    Place place = {0};
    Piece piece, wanted = {0, 0, 0};
    while (next_piece(request, &place, &piece)) {
        if (piece.file == wanted.file && piece.offset == wanted.offset + wanted.nbytes) {
            wanted.nbytes += piece.nbytes;
            continue;
        }
        advise(request, wanted.file, wanted.offset, wanted.nbytes);
        wanted = piece;
    }
    advise(request, wanted.file, wanted.offset, wanted.nbytes);
}

/* Read all pieces, one call each, after requesting the next ones. Returns DONE or an unreadable file;
`reason` is an errno, 0 for the file's end. */
static Py_ssize_t
read_pieces(const Request *request, uint8_t *out, int *reason)
{
    Place place = {0}, beyond = {0};
    Piece piece, later;
    int64_t asked = 0, read = 0;
    int more = !resident(request);
    while (next_piece(request, &place, &piece)) {
        while (more && asked < read + AHEAD_BYTES) {
            more = next_piece(request, &beyond, &later);
            if (more) {
                advise(request, later.file, later.offset, later.nbytes);
                asked += later.nbytes;
            }
        }
        read += piece.nbytes;
        while (piece.nbytes) {
            size_t some = piece.nbytes < CALL_BYTES ? (size_t)piece.nbytes : CALL_BYTES;
            ssize_t got = pread((int)request->files[piece.file][0], out, some, piece.offset);
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) {
                *reason = got ? errno : 0;
                return (Py_ssize_t)piece.file;
            }
            out += got;
            piece.offset += got;
            piece.nbytes -= got;
        }
    }
    return DONE;
}

static const Py_buffer *
get_table(Buffers *buffers, PyObject *object, Py_ssize_t columns)
{
    const Py_buffer *view = get_buffer(buffers, object, PyBUF_ND | PyBUF_FORMAT);
    if (!view) return NULL;
    /* NumPy's format letters for int64 in native byte order; for others it puts the byte order first. */
    int ours = view->format && (!strcmp(view->format, "l") || !strcmp(view->format, "q")) && view->itemsize == 8 &&
               (uintptr_t)view->buf % 8 == 0;
    if (ours && view->ndim == (columns > 1 ? 2 : 1) && (columns == 1 || view->shape[1] == columns)) return view;
    PyErr_SetString(PyExc_ValueError, "a table: its shape or dtype is not that of gather.py.");
    return NULL;
}

/* Return whether the extents begin with row 0, are consecutive, and lie in the files. No sum or product
overflows. */
static int
extents_fit(const Request *request)
{
    int64_t most = INT64_MAX / request->row_bytes;
    if (request->extents[0][0] != 0) return 0;
    for (Py_ssize_t e = 0; e < request->count; e++) {
        const int64_t *extent = request->extents[e];
        int64_t stop = request->extents[e + 1][0], file = extent[1], offset = extent[2];
        if (stop < extent[0] || stop - extent[0] > most || file < 0 || file >= request->file_count) return 0;
        int64_t size = request->files[file][2];
        if (offset < 0 || offset > size || (stop - extent[0]) * request->row_bytes > size - offset) return 0;
    }
    return 1;
}

/* Parse five arguments: extents, files, starts, lengths, row_bytes. No run may lead outside the extents. */
static int
get_request(Buffers *buffers, PyObject *const *args, Request *request)
{
    const Py_buffer *tables[4];
    request->row_bytes = PyLong_AsLongLong(args[4]);
    if (request->row_bytes == -1 && PyErr_Occurred()) return -1;
    for (int i = 0; i < 4; i++)
        if (!(tables[i] = get_table(buffers, args[i], i < 2 ? 3 : 1))) return -1;
    request->extents = tables[0]->buf;
    request->files = tables[1]->buf;
    request->starts = tables[2]->buf;
    request->lengths = tables[3]->buf;
    request->count = tables[0]->shape[0] - 1;
    request->file_count = tables[1]->shape[0];
    request->runs = tables[2]->shape[0];
    request->rows = 0;
    if (request->count < 0 || request->runs != tables[3]->shape[0] || request->row_bytes < 1 || !extents_fit(request))
        return refuse(PyExc_ValueError, "runs: do not match the extents, or the extents do not match the files.");
    int64_t rows = request->extents[request->count][0], most = INT64_MAX / request->row_bytes;
    for (Py_ssize_t i = 0; i < request->runs; i++) {
        int64_t start = request->starts[i], length = request->lengths[i];
        if (start < 0 || length < 0 || start > rows || length > rows - start) {
            PyErr_Format(PyExc_IndexError, "rows %lld to %lld of %lld", (long long)start,
                         (long long)((uint64_t)start + (uint64_t)length), (long long)rows);
            return -1;
        }
        if (length > most - request->rows) return refuse(PyExc_ValueError, "runs: their total number of bytes overflows.");
        request->rows += length;
    }
    request->nbytes = request->rows * request->row_bytes;
    return 0;
}

/* The same with `out` as the sixth argument. Returns NULL with an exception set if the arguments do not
match. */
static const Py_buffer *
get_request_and_out(Buffers *buffers, PyObject *const *args, Request *request)
{
    const Py_buffer *out = get_request(buffers, args, request) < 0 ? NULL : get_buffer(buffers, args[5], PyBUF_WRITABLE);
    if (!out || (out->len == request->nbytes && out->itemsize == 1)) return out;
    PyErr_SetString(PyExc_ValueError, "out: is not uint8, or differs in size from the rows of the runs.");
    return NULL;
}

/* copy_rows(extents, files, starts, lengths, row_bytes, out) -> DONE, COLD, UNWRITABLE, or an unreadable
file */
LOOP(copy_rows)
{
    Buffers buffers = {0};
    Request request;
    uint8_t few[64], *touched = few;
    Py_ssize_t found = DONE;
    if (check_count(count, 6, "copy_rows(extents, files, starts, lengths, row_bytes, out)") < 0) return NULL;
    const Py_buffer *out = get_request_and_out(&buffers, args, &request);
    if (out && request.file_count > (Py_ssize_t)sizeof few && !(touched = malloc((size_t)request.file_count))) {
        PyErr_NoMemory();
    } else if (out && out->len && !mapped(&request)) {
        found = COLD;
    } else if (out && out->len) {
        memset(touched, 0, (size_t)request.file_count);
        guard();
        BEGIN_WITHOUT_GIL_IF(out->len > HELD_BYTES || request.runs > PROBES)
        found = resident(&request) ? guarded_copy(&request, out->buf, touched) : COLD;
        END_WITHOUT_GIL
    }
    release_buffers(&buffers);
    if (touched != few) free(touched);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(found);
}

/* read_rows(extents, files, starts, lengths, row_bytes, out) -> DONE or an unreadable file, and an errno */
LOOP(read_rows)
{
    Buffers buffers = {0};
    Request request;
    Py_ssize_t found = DONE;
    int reason = 0;
    if (check_count(count, 6, "read_rows(extents, files, starts, lengths, row_bytes, out)") < 0) return NULL;
    const Py_buffer *out = get_request_and_out(&buffers, args, &request);
    if (out && out->len) {
        Py_BEGIN_ALLOW_THREADS
        found = read_pieces(&request, out->buf, &reason);
        Py_END_ALLOW_THREADS
    }
    release_buffers(&buffers);
    return out ? Py_BuildValue("ni", found, reason) : NULL;
}

/* willneed_rows(extents, files, starts, lengths, row_bytes) */
LOOP(willneed_rows)
{
    Buffers buffers = {0};
    Request request;
    if (check_count(count, 5, "willneed_rows(extents, files, starts, lengths, row_bytes)") < 0) return NULL;
    int sound = get_request(&buffers, args, &request) == 0;
    if (sound && request.rows) {
        Py_BEGIN_ALLOW_THREADS
        if (!resident(&request)) advise_pieces(&request);
        Py_END_ALLOW_THREADS
    }
    release_buffers(&buffers);
    if (!sound) return NULL;
    Py_RETURN_NONE;
}
