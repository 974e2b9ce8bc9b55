/* The loops of tables/reading/record_parser.py: parse the text of a table to records, byte for byte like its
Python code.

A call parses millions of cells without the GIL. It is fast because:

  - The ends of cells are located 64 bytes at a time and kept in a list: the work on a cell waits for no
    earlier cell.
  - Numbers are read without a test of each digit: see csv_numbers.h.

Rare cases (quotes, spaces, "NA") have separate slow functions.
*/
#include "csv_numbers.h"

#define BLOCK 16384     /* bytes whose cell ends are listed at a time: a multiple of 64 */
#define VALUE_BYTES 320 /* kept of a bad cell: enough for 80 characters */
#define MOST_BAD 1000

enum { SKIP, SINGLE, DOUBLE, INTEGER, CATEGORY, TEXT, EMPTY };
/* Flag. On DOUBLE and INTEGER: whole numbers are stored exactly, or are an error; on CATEGORY and TEXT: with
the spaces around them. */
#define EXACT 8
/* Flag on CATEGORY and TEXT: only an empty cell is missing. */
#define VERBATIM 16
#define KIND 7
enum { FINE, NOT_NUMBER, NOT_WHOLE, TOO_LONG, IS_INFINITE, BEYOND_SINGLE, LEADING_ZEROS, ROUNDED, NOT_UTF8, AFTER_QUOTE,
       UNCLOSED, RAGGED };

typedef struct {
    int32_t kind, offset; /* offset in a record */
} Cell;

typedef struct {
    const uint8_t *text;
    uint32_t length, hash;
} Entry;

typedef struct {
    Entry *entries;
    int32_t *slots; /* numbers of entries by hash, -1: free; a power of two, never full */
    uint32_t count, mask;
} Dictionary;

typedef struct Kept { /* a text that differs from its bytes in the data */
    struct Kept *before;
    uint8_t bytes[];
} Kept;

typedef struct {
    int64_t line;
    int32_t column, reason, cells;
    uint32_t length;
    uint8_t value[VALUE_BYTES];
} Bad;

typedef struct {
    const uint8_t *data;
    size_t length;
    int delimiter, quote, point, thousands, comment; /* -1: none */
    size_t width;
    Cell *cells; /* [width + 1]: the last is for surplus cells */
    const uint64_t (*powers)[2];

    uint8_t *out;
    size_t size, room, rows; /* bytes per record; number of records */
    int64_t *lines;          /* of each record */

    const Entry *na; /* by ascending length */
    size_t na_count;
    /* bits: there are (number-like) texts of that length; last bit: or longer */
    uint32_t na_lengths, numeric_na_lengths;

    uint32_t *ends;             /* of cells: BLOCK and a few */
    const uint32_t *next, *stop; /* those not yet used */
    size_t scanned;

    int64_t line;
    Dictionary *dictionaries; /* [width] */
    uint32_t *fresh;          /* [width]: columns whose dictionary grew with this record */
    size_t fresh_count;
    Kept *kept;
    uint8_t *scratch, *blob;
    size_t scratch_room, blob_room, blob_used;

    Bad fault; /* of this record; reason FINE: none */
    Bad *bad;
    size_t bad_count, bad_room;
    int out_of_memory;
    PyThreadState *thread;
} Job;

/* ---- ends of cells ---- */

/* List the ends of cells in the next block (at least one), and the end of the data if the block reaches
it. */
static void
find_ends(Job *job, size_t from)
{
    const uint8_t *data = job->data;
    const int delimiter = job->delimiter;
    uint32_t *end = job->ends;
    do {
        size_t to = job->length - from > BLOCK ? from + BLOCK : job->length;
        for (; from < to; from += 64) {
            uint64_t bits;
            if (to - from >= 64) {
                bits = equal64(data + from, delimiter) | equal64(data + from, '\n');
            } else {
                uint8_t last[64] = {0};
                memcpy(last, data + from, to - from);
                bits = equal64(last, delimiter) | equal64(last, '\n');
                bits &= ((uint64_t)1 << (to - from)) - 1;
            }
            for (; bits; bits &= bits - 1) *end++ = (uint32_t)(from + (unsigned)__builtin_ctzll(bits));
        }
        from = to;
    } while (end == job->ends && from < job->length);
    if (from == job->length) *end++ = (uint32_t)from;
    job->scanned = from;
    job->next = job->ends;
    job->stop = end;
}

/* ---- numbers ---- */

/* Return whether the bytes that quick_number may load are there. */
INLINE int
is_inside(const Job *job, const uint8_t *text)
{
    size_t at = (size_t)(text - job->data);
    return at >= AROUND && at < job->length && job->length - at >= AROUND;
}

/* Return the double nearest to a number of more than 19 digits. */
SLOW static double
long_to_double(Job *job, const uint8_t *s, size_t n, const Number *number)
{
    uint64_t low = nearest(job->powers, number->digits, number->power);
    double value = as_double(low);
    if (low != nearest(job->powers, number->digits + 1, number->power)) {
        char *text = malloc(n + 1), *to = text;
        if (!text) {
            job->out_of_memory = 1;
            return value;
        }
        for (size_t i = *s == '-' || *s == '+'; i < n; i++)
            if (s[i] != job->thousands) *to++ = s[i] == job->point ? '.' : (char)s[i];
        *to = 0;
        PyEval_RestoreThread(job->thread);
        value = PyOS_string_to_double(text, NULL, NULL);
        PyErr_Clear();
        job->thread = PyEval_SaveThread();
        free(text);
    }
    return number->negative ? -value : value;
}

INLINE int
store_number(int kind, double value, uint8_t *out)
{
    if (kind == SINGLE) {
        float single = (float)value;
        uint32_t bits;
        memcpy(&bits, &single, 4);
        memcpy(out, &bits, 4);
        if (RARE((bits & 0x7f800000u) == 0x7f800000u)) return value - value == 0 ? BEYOND_SINGLE : IS_INFINITE;
    } else {
        memcpy(out, &value, 8);
        if (RARE(value - value != 0)) return IS_INFINITE;
    }
    return FINE;
}

INLINE int
store_integer(const Number *number, uint8_t *out)
{
    if (!number->whole) return NOT_WHOLE;
    if (number->power || number->digits > INT64_MAX) return TOO_LONG;
    int64_t value = number->negative ? -(int64_t)number->digits : (int64_t)number->digits;
    memcpy(out, &value, 8);
    return FINE;
}

/* ---- texts ---- */

/* Make room for at least one more item. Returns NULL if there is no memory; the old array then stays. */
static void *
more_room(void *array, size_t *room, size_t wanted, size_t size)
{
    if (wanted <= *room) return array;
    size_t now = *room ? *room : 64;
    while (now < wanted) now *= 2;
    void *larger = realloc(array, now * size);
    if (larger) *room = now;
    return larger;
}

static int
is_utf8(const uint8_t *s, size_t n)
{
    const uint8_t *end = s + n;
    while (s < end) {
        if (end - s >= 8 && !(load8(s) & 0x8080808080808080u)) {
            s += 8;
            continue;
        }
        uint8_t lead = *s++;
        if (lead < 0x80) continue;
        int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
        if (lead < 0xc2 || lead > 0xf4 || end - s < more) return 0;
        /* Shortest form, no surrogates, at most U+10FFFF. */
        uint8_t least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
        uint8_t most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
        if (*s < least || *s > most) return 0;
        for (s++; --more; s++)
            if ((*s & 0xc0) != 0x80) return 0;
    }
    return 1;
}

static int
is_na(const Job *job, const uint8_t *s, size_t n)
{
    if (!(job->na_lengths >> (n < 31 ? n : 31) & 1)) return 0;
    for (size_t i = 0; i < job->na_count && job->na[i].length <= n; i++)
        if (job->na[i].length == n && !memcmp(job->na[i].text, s, n)) return 1;
    return 0;
}

static uint32_t
hash_of(const uint8_t *s, size_t n)
{
    uint64_t hash = n * 0x9e3779b97f4a7c15u, word = 0;
    for (; n > 8; s += 8, n -= 8) {
        hash = (hash ^ load8(s)) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    for (size_t i = 0; i < n; i++) word |= (uint64_t)s[i] << 8 * i;
    hash = (hash ^ word) * 0xc4ceb9fe1a85ec53u;
    return (uint32_t)(hash ^ hash >> 32);
}

static int
rehash(Dictionary *dictionary)
{
    uint32_t slots = dictionary->slots ? 2 * (dictionary->mask + 1) : 64;
    int32_t *larger = malloc(slots * sizeof *larger);
    Entry *entries = realloc(dictionary->entries, slots / 2 * sizeof *entries);
    if (entries) dictionary->entries = entries;
    if (!larger || !entries) {
        free(larger);
        return 0;
    }
    memset(larger, -1, slots * sizeof *larger);
    for (uint32_t i = 0; i < dictionary->count; i++) {
        uint32_t slot = entries[i].hash & (slots - 1);
        while (larger[slot] >= 0) slot = (slot + 1) & (slots - 1);
        larger[slot] = (int32_t)i;
    }
    free(dictionary->slots);
    dictionary->slots = larger;
    dictionary->mask = slots - 1;
    return 1;
}

/* Return the number of a text, a new one if needed; -1 if it is not UTF-8, or there is no memory. */
static int32_t
code_of(Job *job, size_t column, const uint8_t *s, size_t n)
{
    Dictionary *dictionary = job->dictionaries + column;
    uint32_t hash = hash_of(s, n), slot = 0;
    if (dictionary->slots)
        for (slot = hash & dictionary->mask; dictionary->slots[slot] >= 0; slot = (slot + 1) & dictionary->mask) {
            const Entry *entry = dictionary->entries + dictionary->slots[slot];
            if (entry->hash == hash && entry->length == n && !memcmp(entry->text, s, n)) return dictionary->slots[slot];
        }
    if (!is_utf8(s, n)) return -1;
    if (!dictionary->slots || dictionary->count >= (dictionary->mask + 1) / 2) {
        if (!rehash(dictionary)) goto no_memory;
        for (slot = hash & dictionary->mask; dictionary->slots[slot] >= 0; slot = (slot + 1) & dictionary->mask) {}
    }
    if (!(s >= job->data && s <= job->data + job->length)) {
        Kept *kept = malloc(sizeof *kept + n);
        if (!kept) goto no_memory;
        kept->before = job->kept;
        job->kept = kept;
        s = memcpy(kept->bytes, s, n);
    }
    job->fresh[job->fresh_count++] = (uint32_t)column;
    dictionary->entries[dictionary->count] = (Entry){s, (uint32_t)n, hash};
    dictionary->slots[slot] = (int32_t)dictionary->count;
    return (int32_t)dictionary->count++;
no_memory:
    job->out_of_memory = 1;
    return -1;
}

/* Remove the entries that a bad record added to dictionaries. */
SLOW static void
forget(Job *job)
{
    while (job->fresh_count) {
        Dictionary *dictionary = job->dictionaries + job->fresh[--job->fresh_count];
        uint32_t slot = dictionary->entries[--dictionary->count].hash & dictionary->mask;
        while (dictionary->slots[slot] != (int32_t)dictionary->count) slot = (slot + 1) & dictionary->mask;
        dictionary->slots[slot] = -1; /* the most recent entry: no other was placed behind it */
    }
}

static int
take_text(Job *job, const uint8_t *s, size_t n, int missing, uint8_t *out)
{
    int64_t at = (int64_t)job->blob_used;
    int32_t length = missing ? 0 : (int32_t)n;
    if (!is_utf8(s, (size_t)length)) return NOT_UTF8;
    uint8_t *blob = more_room(job->blob, &job->blob_room, job->blob_used + (size_t)length, 1);
    if (!blob && length) {
        job->out_of_memory = 1;
        return FINE;
    }
    if (length) {
        job->blob = blob;
        memcpy(blob + at, s, (size_t)length);
        job->blob_used += (size_t)length;
    }
    memcpy(out, &at, 8);
    memcpy(out + 8, &length, 4);
    return FINE;
}

static int
take_category(Job *job, size_t column, const uint8_t *s, size_t n, int missing, uint8_t *out)
{
    int32_t code = -1;
    if (!missing) {
        code = code_of(job, column, s, n);
        if (code < 0) return NOT_UTF8;
    }
    memcpy(out, &code, 4);
    return FINE;
}

/* ---- cells ---- */

INLINE int
is_space(uint8_t byte)
{
    return byte == ' ' || byte == '\t';
}

/* Return whether a whole number has leading zeros. */
static int
is_padded(const uint8_t *s, size_t n)
{
    size_t sign = *s == '-' || *s == '+';
    return n > sign + 1 && s[sign] == '0';
}

/* Store a cell's value, whatever it looks like. Returns its error, if any. */
static int
take_cell(Job *job, size_t column, const uint8_t *s, size_t n, uint8_t *row)
{
    int kind = job->cells[column].kind & KIND, exact = job->cells[column].kind & EXACT;
    uint8_t *out = row + job->cells[column].offset;
    if (kind == SKIP) return FINE;
    if (!(exact && kind >= CATEGORY)) {
        while (n && is_space(s[n - 1])) n--;
        while (n && is_space(*s)) s++, n--;
    }
    if (kind == EMPTY) return n ? RAGGED : FINE;
    int missing = job->cells[column].kind & VERBATIM ? !n : is_na(job, s, n);
    if (kind == CATEGORY) return take_category(job, column, s, n, missing, out);
    if (kind == TEXT) return take_text(job, s, n, missing, out);
    if (missing) {
        static const uint64_t values[] = {
            [SINGLE] = 0x7fc00000, [DOUBLE] = 0x7ff8000000000000, [INTEGER] = (uint64_t)1 << 63};
        memcpy(out, &values[kind], kind == SINGLE ? 4 : 8);
        return FINE;
    }
    Number number;
    number.cut = 0;
    if (!(is_inside(job, s) && quick_number(s, n, job->point, &number)) &&
        !slow_number(s, n, job->point, job->thousands, &number))
        return kind == INTEGER ? NOT_WHOLE : is_infinity(s, n) ? IS_INFINITE : NOT_NUMBER;
    if (kind == INTEGER) return exact && number.whole && is_padded(s, n) ? LEADING_ZEROS : store_integer(&number, out);
    if (exact && number.whole && (number.power || (uint64_t)(double)number.digits != number.digits)) return ROUNDED;
    return store_number(kind, number.cut ? long_to_double(job, s, n, &number) : to_double(job->powers, &number), out);
}

/* Record the first error of a record; an error of its quotes takes precedence. */
SLOW static void
blame(Job *job, size_t column, int reason, const uint8_t *s, size_t n)
{
    Bad *fault = &job->fault;
    if (fault->reason >= AFTER_QUOTE || (fault->reason && reason < AFTER_QUOTE)) return;
    fault->reason = reason;
    fault->column = (int32_t)column;
    fault->length = (uint32_t)(n < VALUE_BYTES ? n : VALUE_BYTES);
    memcpy(fault->value, s, fault->length);
}

static size_t
count_lines(const uint8_t *s, size_t n)
{
    size_t lines = 0;
    for (const uint8_t *end = s + n; (s = memchr(s, '\n', (size_t)(end - s))); s++) lines++;
    return lines;
}

/* Parse a cell that begins with a quote. end: of the cell, if it contains no mark. Returns the cell's end. */
static size_t
take_quoted(Job *job, size_t column, size_t start, size_t end, uint8_t *row)
{
    const uint8_t *data = job->data, *text = data + start + 1, *close = text;
    size_t length = job->length, n;
    int doubled = 0;
    for (;; close += 2) {
        close = memchr(close, job->quote, (size_t)(data + length - close));
        if (!close) {
            blame(job, column, UNCLOSED, data + start, length - start);
            job->line += (int64_t)count_lines(text, length - start - 1);
            job->next = job->stop;
            job->scanned = length;
            return length;
        }
        if (close + 1 == data + length || close[1] != job->quote) break;
        doubled = 1;
    }
    size_t after = (size_t)(close - data) + 1;
    n = after - start - 2;
    if (end < after) { /* it contains marks */
        job->line += (int64_t)count_lines(text, n);
        while (job->next < job->stop && *job->next < after) job->next++;
        if (job->next == job->stop) find_ends(job, after > job->scanned ? after : job->scanned);
        end = *job->next++;
    }
    if (after != end) {
        size_t last = after;
        if (end == length || data[end] == '\n')
            while (last < end && data[last] == '\r') last++;
        if (last != end) {
            blame(job, column, AFTER_QUOTE, data + start, end - start);
            return end;
        }
    }
    if (column >= job->width) return end;
    if (doubled) {
        uint8_t *scratch = more_room(job->scratch, &job->scratch_room, n, 1), *to = scratch;
        if (!scratch) {
            job->out_of_memory = 1;
            return end;
        }
        job->scratch = scratch;
        for (size_t i = 0; i < n; i++) {
            *to++ = text[i];
            i += text[i] == job->quote;
        }
        text = scratch;
        n = (size_t)(to - scratch);
    }
    int reason = take_cell(job, column, text, n, row);
    if (RARE(reason)) blame(job, column, reason, text, n);
    return end;
}

/* Record a bad record. Returns 0 if there is no memory. */
SLOW static int
note_bad(Job *job, int64_t line, size_t cells)
{
    Bad *fault = &job->fault;
    forget(job);
    fault->line = line;
    if (fault->reason < AFTER_QUOTE && cells != job->width) {
        fault->reason = RAGGED;
        fault->column = -1;
        fault->length = 0;
    }
    fault->cells = (int32_t)cells;
    if (job->bad_count++ < MOST_BAD) {
        Bad *bad = more_room(job->bad, &job->bad_room, job->bad_count, sizeof *bad);
        if (!bad) return 0;
        job->bad = bad;
        bad[job->bad_count - 1] = *fault;
    }
    fault->reason = FINE;
    return 1;
}

/* Return whether there are only spaces between. */
static int
is_blank(const uint8_t *s, const uint8_t *end)
{
    while (s < end && (is_space(*s) || *s == '\r')) s++;
    return s == end;
}

/* Parse all records. Returns 0 if there is no memory, or no room for the records. */
static int
parse_all(Job *job)
{
    const uint8_t *data = job->data;
    const size_t length = job->length, width = job->width;
    const Cell *cells = job->cells;
    const int quote = job->quote, point = job->point;
    const uint32_t numeric_na = job->numeric_na_lengths;
    /* like is_inside, with one comparison */
    const size_t inside = length > 2 * AROUND ? length - 2 * AROUND : 0;
    const uint32_t *next = NULL, *stop = NULL;
    uint8_t *row = job->out;
    for (size_t start = 0; start < length;) {
        size_t column = 0, end, blob_used = job->blob_used;
        int64_t line = job->line;
        if (next == stop) {
            find_ends(job, job->scanned > start ? job->scanned : start);
            next = job->next, stop = job->stop;
        }
        if (RARE(data[start] <= ' ') && is_blank(data + start, data + *next) &&
            (*next == length || data[*next] == '\n')) {
            job->line += *next < length;
            start = (size_t)*next++ + 1;
            continue;
        }
        if (RARE(data[start] == job->comment)) {
            do {
                if (next == stop) {
                    find_ends(job, job->scanned > start ? job->scanned : start);
                    next = job->next, stop = job->stop;
                }
                end = *next++;
            } while (end < length && data[end] != '\n');
            job->line += end < length;
            start = end + 1;
            continue;
        }
        if (RARE(job->rows == job->room)) return 0;
        job->fresh_count = 0;
        for (;;) {
            if (RARE(next == stop)) {
                find_ends(job, job->scanned > start ? job->scanned : start);
                next = job->next, stop = job->stop;
            }
            end = *next++;
            const Cell *cell = cells + (column < width ? column : width);
            const uint8_t *text = data + start;
            size_t n = end - start;
            if (column + 1 == width && n && text[n - 1] == '\r' && (end == length || data[end] == '\n'))
                while (n && text[n - 1] == '\r') n--;
            int reason = FINE;
            Number number;
            if (cell->kind && cell->kind <= INTEGER && start - AROUND < inside &&
                !(numeric_na && numeric_na >> (n < 31 ? n : 31) & 1) && quick_number(text, n, point, &number)) {
                uint8_t *out = row + cell->offset;
                reason = cell->kind == INTEGER ? store_integer(&number, out)
                                               : store_number(cell->kind, to_double(job->powers, &number), out);
            } else if (start < end && *text == quote) {
                job->next = next, job->stop = stop;
                end = take_quoted(job, column, start, end, row);
                next = job->next, stop = job->stop;
            } else if (cell->kind) {
                reason = take_cell(job, column, text, n, row);
            }
            if (RARE(reason)) blame(job, column, reason, text, n);
            start = end + 1;
            column++;
            if (end == length || data[end] == '\n') break;
        }
        job->line += end < length;
        if (RARE(column != width || job->fault.reason)) {
            job->blob_used = blob_used;
            if (!note_bad(job, line, column)) return 0;
        } else {
            job->lines[job->rows++] = line;
            row += job->size;
        }
        if (RARE(job->out_of_memory)) return 0;
    }
    return 1;
}

/* ---- where records end ---- */

/* Return whether an offset, at or after `from`, lies in a comment line. from: after a closing quote, unless
is_record. */
static int
in_comment(const uint8_t *data, size_t from, int is_record, size_t at, int comment)
{
    while (at > from && data[at - 1] != '\n') at--;
    return data[at] == comment && (at > from || is_record);
}

/* Return the offset after the last end of a record; `from`, where a record begins, if there is none. */
static size_t
end_of_records(const uint8_t *data, size_t length, size_t from, int delimiter, int quote, int comment)
{
    if (quote < 0 || !memchr(data + from, quote, length - from)) {
        while (length > from && data[length - 1] != '\n') length--;
        return length;
    }
    size_t found = from, closed = length; /* closed: after the last closing quote */
    uint64_t inside = 0;                  /* all bits, or none */
    for (size_t at = from; at < length; at += 64) {
        uint8_t last[64] = {0};
        const uint8_t *block = data + at;
        if (length - at < 64) block = memcpy(last, block, length - at);
        uint64_t within = inside, quotes = equal64(block, quote), lines = equal64(block, '\n');
        for (; quotes; quotes &= quotes - 1) {
            size_t mark = at + (unsigned)__builtin_ctzll(quotes);
            if (inside)
                closed = mark + 1; /* a doubled quote opens again at once */
            else if (mark != from && mark != closed && data[mark - 1] != delimiter && data[mark - 1] != '\n')
                continue; /* no meaning inside a cell */
            else if (comment >= 0 &&
                     in_comment(data, closed < length ? closed : from, closed == length, mark, comment))
                continue;
            inside = ~inside;
            within ^= ~(uint64_t)0 << (mark - at);
        }
        if (lines & ~within) found = at + 64 - (unsigned)__builtin_clzll(lines & ~within);
    }
    return found;
}

/* ---- Python ---- */

/* Return a job's entries for texts that mean "missing": a tuple of bytes, by ascending length. */
static Entry *
get_na(Job *job, PyObject *texts)
{
    Py_ssize_t count = PyTuple_Check(texts) ? PyTuple_Size(texts) : -1;
    Entry *entries = count < 0 ? NULL : calloc((size_t)count + 1, sizeof *entries);
    if (!entries) {
        PyErr_SetString(PyExc_ValueError, "na: not a tuple, or no memory.");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *text = PyTuple_GetItem(texts, i);
        if (!PyBytes_Check(text) || (i && (size_t)PyBytes_Size(text) < entries[i - 1].length)) {
            PyErr_SetString(PyExc_ValueError, "na: is not bytes, sorted by length.");
            free(entries);
            return NULL;
        }
        size_t n = (size_t)PyBytes_Size(text);
        entries[i] = (Entry){(const uint8_t *)PyBytes_AsString(text), (uint32_t)n, 0};
        uint32_t bit = (uint32_t)1 << (n < 31 ? n : 31);
        Number number;
        job->na_lengths |= bit;
        if (slow_number(entries[i].text, n, job->point, job->thousands, &number)) job->numeric_na_lengths |= bit;
    }
    job->na = entries;
    job->na_count = (size_t)count;
    return entries;
}

/* Return whether every value lies in its record. */
static int
cells_fit(const Job *job)
{
    static const int32_t sizes[] = {0, 4, 8, 8, 4, 12, 0};
    for (size_t i = 0; i < job->width; i++) {
        Cell cell = job->cells[i];
        int kind = cell.kind & KIND;
        if (cell.kind & ~(KIND | (kind >= DOUBLE && kind <= TEXT ? EXACT : 0) | (kind >= CATEGORY ? VERBATIM : 0))) return 0;
        cell.kind = kind;
        if (cell.kind < SKIP || cell.kind > EMPTY || cell.offset < 0) return 0;
        if ((size_t)cell.offset + (size_t)sizes[cell.kind] > job->size) return 0;
    }
    return 1;
}

static PyObject *
texts_of(const Dictionary *dictionary)
{
    PyObject *texts = PyList_New((Py_ssize_t)dictionary->count);
    for (uint32_t i = 0; texts && i < dictionary->count; i++) {
        const Entry *entry = dictionary->entries + i;
        PyObject *text = PyUnicode_DecodeUTF8((const char *)entry->text, (Py_ssize_t)entry->length, NULL);
        if (!text) Py_CLEAR(texts);
        else PyList_SetItem(texts, (Py_ssize_t)i, text);
    }
    return texts;
}

static PyObject *
dictionaries_of(const Job *job)
{
    PyObject *all = PyDict_New();
    for (size_t i = 0; all && i < job->width; i++) {
        if ((job->cells[i].kind & KIND) != CATEGORY) continue;
        PyObject *column = PyLong_FromSize_t(i), *texts = column ? texts_of(job->dictionaries + i) : NULL;
        if (!texts || PyDict_SetItem(all, column, texts) < 0) Py_CLEAR(all);
        Py_XDECREF(column);
        Py_XDECREF(texts);
    }
    return all;
}

static PyObject *
bad_of(const Job *job)
{
    size_t count = job->bad_count < MOST_BAD ? job->bad_count : MOST_BAD;
    PyObject *all = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; all && i < count; i++) {
        const Bad *bad = job->bad + i;
        PyObject *one = Py_BuildValue("Liy#ii", (long long)bad->line, (int)bad->column, (const char *)bad->value,
                                      (Py_ssize_t)bad->length, (int)bad->reason, (int)bad->cells);
        if (!one) Py_CLEAR(all);
        else PyList_SetItem(all, (Py_ssize_t)i, one);
    }
    return all;
}

static void
free_job(Job *job)
{
    for (size_t i = 0; job->dictionaries && i < job->width; i++) {
        free(job->dictionaries[i].entries);
        free(job->dictionaries[i].slots);
    }
    for (Kept *kept = job->kept, *before; kept; kept = before) {
        before = kept->before;
        free(kept);
    }
    free(job->dictionaries);
    free(job->fresh);
    free(job->cells);
    free(job->ends);
    free((void *)job->na);
    free(job->scratch);
    free(job->blob);
    free(job->bad);
}

/* parse_csv(data, out, size, lines, cells, delimiter, quote, point, thousands, comment, na, powers)
   -> records, ends of lines, bad records, listed bad records, dictionaries, texts */
LOOP(parse_csv)
{
    static const int places[] = {0, 1, 3, 4, 11};
    Job job = {0};
    Buffers buffers = {0};
    Py_buffer *views[5];
    PyObject *result = NULL;
    if (check_count(count, 12, "parse_csv(data, out, size, lines, cells, *marks, na, powers)") < 0) return NULL;
    Py_ssize_t size = PyLong_AsSsize_t(args[2]);
    int *marks[] = {&job.delimiter, &job.quote, &job.point, &job.thousands, &job.comment};
    for (int i = 0; i < 5; i++) *marks[i] = (int)PyLong_AsLong(args[5 + i]);
    if (PyErr_Occurred()) return NULL;
    for (int i = 0; i < 5; i++)
        if (!(views[i] = get_buffer(&buffers, args[places[i]], i == 1 || i == 2 ? PyBUF_WRITABLE : PyBUF_SIMPLE))) goto done;
    const Py_buffer *data = views[0], *out = views[1], *lines = views[2], *cells = views[3], *powers = views[4];
    job.data = data->buf;
    job.length = (size_t)data->len;
    job.out = out->buf;
    job.size = (size_t)size;
    job.room = size > 0 ? (size_t)(out->len / size) : SIZE_MAX;
    job.width = (size_t)cells->len / sizeof(Cell);
    job.powers = powers->buf;
    job.lines = lines->buf;
    if ((size_t)lines->len / 8 < job.room) job.room = (size_t)lines->len / 8;
    job.cells = calloc(job.width + 1, sizeof(Cell));
    job.ends = malloc((BLOCK + 1) * sizeof *job.ends);
    job.dictionaries = calloc(job.width, sizeof(Dictionary));
    job.fresh = calloc(job.width, sizeof *job.fresh);
    if (!job.cells || !job.ends || !job.dictionaries || !job.fresh) {
        PyErr_NoMemory();
        goto done;
    }
    memcpy(job.cells, cells->buf, job.width * sizeof(Cell));
    if (size < 0 || data->len > INT32_MAX || !job.width || !cells_fit(&job) || (uintptr_t)powers->buf % 8 ||
        powers->len != (LARGEST_POWER - SMALLEST_POWER + 1) * 16 || (uintptr_t)job.lines % 8) {
        PyErr_SetString(PyExc_ValueError, "parse: the arguments do not match; record_parser.py builds them.");
        goto done;
    }
    if (!get_na(&job, args[10])) goto done;
    int well;
    job.thread = PyEval_SaveThread();
    well = parse_all(&job);
    PyEval_RestoreThread(job.thread);
    if (!well && job.rows == job.room && !job.out_of_memory)
        PyErr_SetString(PyExc_ValueError, "out: has no room for all records.");
    else if (!well)
        PyErr_NoMemory();
    else
        result = Py_BuildValue("nLnNNy#", (Py_ssize_t)job.rows, (long long)job.line, (Py_ssize_t)job.bad_count,
                               bad_of(&job), dictionaries_of(&job), job.blob ? (const char *)job.blob : "",
                               (Py_ssize_t)job.blob_used);
done:
    free_job(&job);
    release_buffers(&buffers);
    return result;
}

/* end_of_csv_records(data, start, delimiter, quote, comment) -> offset */
LOOP(end_of_csv_records)
{
    Buffers buffers = {0};
    size_t end = 0;
    if (check_count(count, 5, "end_of_csv_records(data, start, delimiter, quote, comment)") < 0) return NULL;
    Py_ssize_t start = PyLong_AsSsize_t(args[1]);
    int delimiter = (int)PyLong_AsLong(args[2]), quote = (int)PyLong_AsLong(args[3]);
    int comment = (int)PyLong_AsLong(args[4]);
    const Py_buffer *data = PyErr_Occurred() ? NULL : get_buffer(&buffers, args[0], PyBUF_SIMPLE);
    if (data && (start < 0 || start > data->len)) {
        PyErr_SetString(PyExc_ValueError, "start: is not in the data.");
    } else if (data) {
        Py_BEGIN_ALLOW_THREADS
        end = end_of_records(data->buf, (size_t)data->len, (size_t)start, delimiter, quote, comment);
        Py_END_ALLOW_THREADS
    }
    release_buffers(&buffers);
    return PyErr_Occurred() ? NULL : PyLong_FromSize_t(end);
}
