/* The loops of codecs/jpeg_parts.py, which specifies them: tiles of a JPEG file between restart markers; and
the header of a plain file, for codecs/jpeg.py.

Invalid bytes never cause a read outside them. The functions return None for unsupported files.
*/
#include "native.h"

enum { SOI = 0xD8, EOI = 0xD9, RST0 = 0xD0, RST7 = 0xD7, SOF0 = 0xC0, SOF1 = 0xC1, DHT = 0xC4, DQT = 0xDB, SOS = 0xDA, DRI = 0xDD };
enum { APP0 = 0xE0, APP1 = 0xE1, APP15 = 0xEF, COM = 0xFE };

#define MOST_COMPONENTS 4
#define MOST_BLOCKS 10 /* per MCU, by the standard */

typedef struct {
    uint8_t id, across, down; /* sampling factors */
    uint8_t dc, ac;           /* numbers of its Huffman tables */
} Component;

/* Content of the segments before the compressed pixels. */
typedef struct {
    size_t frame, scan, pixels; /* offsets of SOF's marker, of SOS's, and of the compressed pixels */
    size_t restart;             /* offset of the interval, 0 if the file has none */
    int width, height, components;
    int interval; /* MCUs between restart markers, 0 if there are none */
    int exif;     /* 1 if it has Exif data, which may ask for a turn */
    int columns, rows, across, down; /* MCUs per row, rows of MCUs; pixels per MCU */
    Component component[MOST_COMPONENTS];
    /* Huffman tables of DC and AC: 16 numbers of codes of 1 to 16 bits, then their symbols */
    const uint8_t *tables[2][4];
} Head;

INLINE int
number(const uint8_t *at)
{
    return at[0] << 8 | at[1];
}

static int
read_frame(Head *head, const uint8_t *segment, int length)
{
    if (length < 8 || segment[2] != 8) return 0; /* bits per sample */
    head->height = number(segment + 3), head->width = number(segment + 5), head->components = segment[7];
    if (head->components < 1 || head->components > MOST_COMPONENTS || length != 8 + 3 * head->components) return 0;
    int across = 1, down = 1;
    for (int i = 0; i < head->components; i++) {
        const uint8_t *own = segment + 8 + 3 * i;
        Component component = {own[0], own[1] >> 4, own[1] & 15, 0, 0};
        if (component.across < 1 || component.across > 4 || component.down < 1 || component.down > 4) return 0;
        if (component.across > across) across = component.across;
        if (component.down > down) down = component.down;
        head->component[i] = component;
    }
    /* an MCU of one component is one block, whatever its factors */
    if (head->components == 1) across = down = 1;
    head->across = 8 * across, head->down = 8 * down;
    head->rows = (head->height + head->down - 1) / head->down;
    head->columns = (head->width + head->across - 1) / head->across;
    return head->height > 0 && head->width > 0;
}

/* Parse the only scan: all components in the frame's order, and all coefficients with all their bits. */
static int
read_scan(Head *head, const uint8_t *segment, int length)
{
    if (!head->frame || length != 6 + 2 * head->components || segment[2] != head->components) return 0;
    for (int i = 0; i < head->components; i++) {
        Component *component = head->component + i;
        component->dc = segment[4 + 2 * i] >> 4, component->ac = segment[4 + 2 * i] & 15;
        if (segment[3 + 2 * i] != component->id || component->dc > 3 || component->ac > 3) return 0;
    }
    const uint8_t *spectrum = segment + length - 3;
    return spectrum[0] == 0 && spectrum[1] == 63 && spectrum[2] == 0;
}

static int
read_tables(Head *head, const uint8_t *segment, int length)
{
    for (int at = 2; at < length;) {
        int kind = segment[at] >> 4, name = segment[at] & 15, symbols = 0;
        if (kind > 1 || name > 3 || length - at < 17) return 0;
        for (int bits = 1; bits <= 16; bits++) symbols += segment[at + bits];
        if (symbols > 256 || length - at < 17 + symbols) return 0;
        head->tables[kind][name] = segment + at + 1;
        at += 17 + symbols;
    }
    return 1;
}

/* Parse the segments before the compressed pixels. Returns 0 unless they belong to a sequential Huffman
picture of 8 bits in one scan. */
static int
read_head(Head *head, const uint8_t *data, size_t size)
{
    memset(head, 0, sizeof *head);
    if (size < 4 || data[0] != 0xFF || data[1] != SOI) return 0;
    for (size_t at = 2; size - at >= 4;) {
        int marker = data[at + 1], length = number(data + at + 2);
        const uint8_t *segment = data + at + 2;
        if (data[at] != 0xFF) return 0;
        if (marker == 0xFF) { /* a fill byte */
            at++;
            continue;
        }
        if (length < 2 || (size_t)length > size - at - 2) return 0;
        if (marker == SOF0 || marker == SOF1) {
            if (head->frame || !read_frame(head, segment, length)) return 0;
            head->frame = at;
        } else if (marker == DRI) {
            if (length != 4) return 0;
            head->interval = number(segment + 2), head->restart = at + 4;
        } else if (marker == SOS) {
            head->scan = at, head->pixels = at + 2 + (size_t)length;
            return read_scan(head, segment, length);
        } else if (marker == DHT) {
            if (!read_tables(head, segment, length)) return 0;
        } else if (marker == APP1) {
            if (length >= 8 && !memcmp(segment + 2, "Exif\0", 6)) head->exif = 1;
        } else if (marker != DQT && marker != COM && !(marker >= APP0 && marker <= APP15))
            return 0;
        at += 2 + (size_t)length;
    }
    return 0;
}

/* Return the pixels on each side of a part that a decoder may need to upsample subsampled components
smoothly. One pixel of such a component is enough; decoding to 1/2 or 1/4 may leave components subsampled
too, and one of their pixels is up to 8 pixels. */
static int
margin(const Head *head)
{
    int most = 0;
    for (int i = 0; i < head->components && head->components > 1; i++) {
        int across = 8 * head->component[i].across, down = 8 * head->component[i].down;
        int both = across * 2 == head->across && down * 2 == head->down;
        int pixels = across == head->across && down == head->down ? 0 : both ? 2 : 8;
        if (pixels > most) most = pixels;
    }
    return most;
}

/* Return whether there are tiles. Tiles of one MCU do not count: of 4 pixels per side, 1/4 and 1/8 are
equally large. */
INLINE int
has_tiles(const Head *head)
{
    return head->interval && head->columns % head->interval == 0 && (head->interval > 1 || head->columns == 1);
}

/* Return where the compressed pixels from `at` end: at the marker of that number, or at EOI after the last. 0
otherwise. */
static size_t
end_of_tile(const uint8_t *data, size_t at, size_t size, int64_t number, int64_t count)
{
    const uint8_t *found;
    for (; at + 1 < size && (found = memchr(data + at, 0xFF, size - 1 - at)); at += 2) {
        at = (size_t)(found - data);
        if (data[at + 1] != 0) return data[at + 1] == (number == count - 1 ? EOI : RST0 + number % 8) ? at : 0;
    }
    return 0;
}

/* Find the MCUs of one axis that hold pixels first to stop - 1 and those around them: [*begin, *end), in
complete tiles. */
static void
needed(int first, int stop, int side, int pixels, int count, int tile, int *begin, int *end)
{
    int all = tile * pixels, last = count / tile;
    *begin = first > side ? (first - side) / all : 0;
    *end = stop + side < count * pixels ? (stop + side + all - 1) / all : last;
    *begin *= tile, *end *= tile;
}

/* jpeg_plain_shape(data) */
LOOP(jpeg_plain_shape)
{
    if (check_count(count, 1, "jpeg_plain_shape(data)") < 0) return NULL;
    Buffers buffers = {0};
    const Py_buffer *view = get_buffer(&buffers, args[0], PyBUF_SIMPLE);
    if (!view) return NULL;
    Head head;
    int plain = read_head(&head, view->buf, (size_t)view->len) && !head.exif && (head.components == 1 || head.components == 3);
    release_buffers(&buffers);
    return plain ? Py_BuildValue("iii", head.height, head.width, head.components) : Py_NewRef(Py_None);
}

/* jpeg_part(data, left, top, right, bottom) */
LOOP(jpeg_part)
{
    if (check_count(count, 5, "jpeg_part(data, left, top, right, bottom)") < 0) return NULL;
    Py_ssize_t box[4];
    for (int i = 0; i < 4; i++) box[i] = PyNumber_AsSsize_t(args[i + 1], PyExc_OverflowError);
    if (PyErr_Occurred()) return NULL;
    Buffers buffers = {0};
    const Py_buffer *view = get_buffer(&buffers, args[0], PyBUF_SIMPLE);
    if (!view) return NULL;
    const uint8_t *data = view->buf;
    size_t size = (size_t)view->len;
    uint8_t *part = NULL;
    PyObject *result = NULL;
    int left = 0, top = 0, right = 0, bottom = 0;
    Head head;
    if (!read_head(&head, data, size) || !has_tiles(&head)) goto refused;
    if (box[0] < 0 || box[0] >= box[2] || box[2] > head.width || box[1] < 0 || box[1] >= box[3] || box[3] > head.height)
        goto refused;
    int tile = head.interval, side = margin(&head);
    needed((int)box[0], (int)box[2], side, head.across, head.columns, tile, &left, &right);
    needed((int)box[1], (int)box[3], side, head.down, head.rows, 1, &top, &bottom);
    if (left == 0 && top == 0 && right == head.columns && bottom == head.rows) goto refused;
    part = malloc(size);
    if (!part) {
        PyErr_NoMemory();
        goto refused;
    }
    uint8_t *to = part + head.pixels;
    memcpy(part, data, head.pixels);
    int64_t tiles = (int64_t)head.rows * head.columns / tile, number = 0, taken = 0;
    size_t at = head.pixels;
    for (int row = 0; row < bottom; row++)
        for (int column = 0; column < head.columns; column += tile, number++) {
            size_t end = end_of_tile(data, at, size, number, tiles);
            if (!end) goto refused;
            if (row >= top && column >= left && column < right) {
                memcpy(to, data + at, end - at);
                to += end - at;
                *to++ = 0xFF, *to++ = (uint8_t)(RST0 + taken++ % 8);
            }
            at = end + 2;
        }
    to[-1] = EOI;
    left *= head.across, right *= head.across, top *= head.down, bottom *= head.down;
    if (right > head.width) right = head.width;
    if (bottom > head.height) bottom = head.height;
    uint8_t *sides = part + head.frame + 5;
    sides[0] = (uint8_t)((bottom - top) >> 8), sides[1] = (uint8_t)(bottom - top);
    sides[2] = (uint8_t)((right - left) >> 8), sides[3] = (uint8_t)(right - left);
    result = Py_BuildValue("y#iiii", part, (Py_ssize_t)(to - part), left, top, right, bottom);
refused:
    free(part);
    release_buffers(&buffers);
    return result || PyErr_Occurred() ? result : Py_NewRef(Py_None);
}

/* ---- adding or replacing restart markers ----

Only the differences between DC values carry over from one MCU to the next: after a marker they count from
0. So the first code of each component in a tile, and at each old marker, is recomputed; all other bits are
copied, shifted. All codes are read to find where the tiles begin. */

#define INDEX_BITS 11
#define LONGEST 31                                  /* bits of a code and of the number after it */
/* bytes after the compressed pixels that reading a block may touch */
#define BEYOND (64 * LONGEST / 8 + 3 * 8)
/* added at most by a recomputed code, if every second byte is a 0 after 0xFF */
#define CUT_BYTES (2 * (LONGEST / 8 + 2) + 2)
#define EXTRA_BYTES (6 + 4 * (2 + 2 + 17 + 16)) /* of additional segments: DRI, DHT */

/* An entry describes the next bits: BITS of them are codes with their numbers, which stand for COEFFICIENTS,
and END if the last one ends the block. 0: the code is longer, or there is none. */
#define BITS(entry) ((entry) & 63)
#define COEFFICIENTS(entry) ((entry) >> 6 & 127)
#define END 0x8000

/* A Huffman table. A code is looked up in `one` (in a DC table without the number's bits), all codes that
INDEX_BITS show in `many`. */
typedef struct {
    uint16_t one[1 << INDEX_BITS], many[1 << INDEX_BITS];
    uint32_t limits[17]; /* 16 bits that begin with a code of so many bits, or fewer, are below this */
    int first[17];       /* per number of bits: index of the first code's symbol - the code */
    const uint8_t *symbols;
    uint16_t code[16]; /* of symbols below 16, and its number of bits, 0 if it has none */
    uint8_t bits[16];
} Table;

typedef struct {
    const Table *dc, *ac;
    int component, is_first;
} Block;

/* The ends of the unchanged bits before and after a recomputed DC code. */
typedef struct {
    size_t stop, resume;
    int16_t value;
    uint8_t table, begins; /* 1: a tile begins with it */
} Cut;

/* The data between the markers of a file: compressed pixels, without the 0 after each 0xFF. */
typedef struct {
    uint8_t *bytes;
    size_t *ends; /* of each stretch, in bytes */
    int64_t count;
} Stretches;

typedef struct {
    const uint8_t *at;
    uint64_t word; /* its highest `count` bits are those before `at` that are not yet read */
    int count;
} Reader;

typedef struct {
    uint8_t *at;
    uint64_t pending;
    int count; /* unwritten bits at the end of `pending`, 0 to 7 between calls */
} Writer;

INLINE uint64_t
big_endian(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return __builtin_bswap64(word);
}

/* Return the entry of a code of AC coefficients: a run of zeros, then a number of so many bits. */
static uint16_t
ac_entry(int symbol, int bits)
{
    int run = symbol >> 4, size = symbol & 15;
    if (!size && run != 0 && run != 15) return 0; /* of progressive files */
    return (uint16_t)(symbol ? bits + size + ((run + 1) << 6) : bits | END);
}

/* Read a table like libjpeg. Returns 0 if its codes do not fit their bits, or a DC symbol is invalid. */
static int
make_table(Table *table, const uint8_t *counts, int is_ac)
{
    uint8_t lengths[1 << INDEX_BITS] = {0};
    memset(table, 0, sizeof *table);
    if (!counts) return 0;
    table->symbols = counts + 16;
    uint32_t code = 0;
    for (int bits = 1, index = 0; bits <= 16; bits++, code <<= 1) {
        table->first[bits] = index - (int)code;
        for (int i = 0; i < counts[bits - 1]; i++, index++, code++) {
            int symbol = table->symbols[index], spare = INDEX_BITS - bits;
            if (!is_ac) {
                if (symbol > 15) return 0;
                table->code[symbol] = (uint16_t)code, table->bits[symbol] = (uint8_t)bits;
            }
            if (spare < 0 || code >> bits) continue;
            uint16_t entry = is_ac ? ac_entry(symbol, bits) : (uint16_t)(bits | symbol << 6);
            for (uint32_t k = code << spare; k < (code + 1) << spare; k++)
                table->one[k] = entry, lengths[k] = (uint8_t)bits;
        }
        if (code >> bits) return 0;
        table->limits[bits] = code << (16 - bits);
    }
    for (uint32_t k = 0; is_ac && k < 1 << INDEX_BITS; k++) {
        uint32_t entry = table->one[k], next = entry;
        while (next && !(next & END) && BITS(entry) < INDEX_BITS) {
            uint32_t rest = k << BITS(entry) & ((1 << INDEX_BITS) - 1);
            next = table->one[rest];
            if (BITS(entry) + lengths[rest] > INDEX_BITS || COEFFICIENTS(entry) + COEFFICIENTS(next) > 63) break;
            if (next) entry += next; /* only the last one has END */
        }
        table->many[k] = (uint16_t)entry;
    }
    return 1;
}

/* Read a code longer than the index. Returns its symbol and its bits; -1 if there is no such code. */
static SLOW int
long_code(const Table *table, uint64_t word, int *bits)
{
    uint32_t next = (uint32_t)(word >> 48);
    if (next < table->limits[INDEX_BITS]) return -1;
    for (*bits = INDEX_BITS + 1; *bits <= 16; ++*bits)
        if (next < table->limits[*bits]) return table->symbols[(int)(next >> (16 - *bits)) + table->first[*bits]];
    return -1;
}

/* Refill to 56 or more bits. */
INLINE void
refill(Reader *reader)
{
    reader->word |= big_endian(reader->at) >> reader->count;
    reader->at += (63 - reader->count) >> 3;
    reader->count |= 56;
}

INLINE size_t
position(const Reader *reader, const uint8_t *bytes)
{
    return (size_t)(reader->at - bytes) * 8 - (size_t)reader->count;
}

/* Read the codes of a block's AC coefficients. Returns 0 if they are invalid. */
INLINE int
skip_ac(const Table *table, Reader *reader)
{
    int k = 1;
    while (k < 64) {
        refill(reader);
        uint32_t index = (uint32_t)(reader->word >> (64 - INDEX_BITS)), entry = table->many[index];
        if (RARE(!entry)) {
            int bits, symbol = long_code(table, reader->word, &bits);
            if (symbol < 0 || !(entry = ac_entry(symbol, bits))) return 0;
        } else if (RARE(k + COEFFICIENTS(entry) > 63))
            entry = table->one[index];
        reader->word <<= BITS(entry), reader->count -= BITS(entry);
        k += COEFFICIENTS(entry);
        if (entry & END) return 1;
    }
    return k == 64;
}

/* Read the code of a block's DC difference, and add it. Returns 0 if it is invalid, or the value is out of
range. */
INLINE int
read_dc(const Table *table, Reader *reader, int *value)
{
    refill(reader);
    uint32_t entry = table->one[reader->word >> (64 - INDEX_BITS)];
    int bits = BITS(entry), size = COEFFICIENTS(entry);
    if (RARE(!entry) && (size = long_code(table, reader->word, &bits)) < 0) return 0;
    if (size) {
        int number = (int)(reader->word << bits >> (64 - size));
        *value += number >> (size - 1) ? number : number + 1 - (1 << size);
    }
    reader->word <<= bits + size, reader->count -= bits + size;
    return *value >= -32767 && *value <= 32767;
}

/* Write bits, at most 56; higher bits are 0. */
INLINE void
put(Writer *writer, uint64_t bits, int count)
{
    uint64_t pending = writer->pending << count | bits;
    int left = writer->count + count, bytes = left >> 3;
    uint64_t word = left ? pending << (64 - left) : 0, zeros = ~word; /* a byte of 0xFF is a 0 here */
    if (((zeros - 0x0101010101010101u) & ~zeros & 0x8080808080808080u) == 0) {
        word = __builtin_bswap64(word);
        memcpy(writer->at, &word, sizeof word);
        writer->at += bytes;
    } else
        for (int i = 0; i < bytes; i++, word <<= 8) {
            *writer->at++ = (uint8_t)(word >> 56);
            if (word >> 56 == 0xFF) *writer->at++ = 0;
        }
    writer->pending = pending, writer->count = left & 7;
}

/* Return the next 57 or more bits, left-aligned. */
INLINE uint64_t
bits_at(const uint8_t *bytes, size_t bit)
{
    return big_endian(bytes + (bit >> 3)) << (bit & 7);
}

static void
copy_bits(Writer *writer, const uint8_t *bytes, size_t from, size_t to)
{
    for (; to - from >= 56; from += 56) put(writer, bits_at(bytes, from) >> 8, 56);
    if (to > from) put(writer, bits_at(bytes, from) >> (64 - (to - from)), (int)(to - from));
}

INLINE int
category(int value)
{
    return value ? 32 - __builtin_clz((unsigned)abs(value)) : 0;
}

/* Return the MCUs per tile: the divisor, from 2 on, of a row's MCUs that is closest to 4; or all. Like
interval_of in codecs/jpeg_parts.py. */
static int
tile_of(int columns)
{
    for (int away = 0; 4 + away <= columns; away++) {
        if (away <= 2 && columns % (4 - away) == 0) return 4 - away;
        if (columns % (4 + away) == 0) return 4 + away;
    }
    return columns;
}

/* Copy the stretches between markers. Returns the place of EOI; 0 if another marker comes first, or their
number differs. */
static size_t
unescape(const uint8_t *data, size_t at, size_t size, Stretches *stretches)
{
    uint8_t *to = stretches->bytes;
    for (int64_t number = 0; number < stretches->count; at += 2) {
        const uint8_t *found = at < size ? memchr(data + at, 0xFF, size - at) : NULL;
        if (!found || data + size - found < 2) return 0;
        size_t next = (size_t)(found - data);
        memcpy(to, data + at, next - at);
        to += next - at, at = next;
        int marker = data[at + 1], is_last = number == stretches->count - 1;
        if (marker == 0) {
            *to++ = 0xFF;
            continue;
        }
        if (marker != (is_last ? EOI : RST0 + (int)(number % 8))) return 0;
        stretches->ends[number++] = (size_t)(to - stretches->bytes);
    }
    memset(to, 0, BEYOND);
    return at - 2;
}

/* Read all codes up to bit *end, and record those to recompute. Returns their number, or -1 if the picture is
damaged. */
static int64_t
find_cuts(const Head *head, const Table *dc, const Table *ac, const Stretches *stretches, int tile, Cut *cuts, size_t *end)
{
    Block blocks[MOST_BLOCKS];
    int a_unit = 0, values[MOST_COMPONENTS] = {0}, before[MOST_COMPONENTS];
    for (int i = 0; i < head->components; i++) {
        const Component *own = head->component + i;
        int all = head->components == 1 ? 1 : own->across * own->down;
        if (a_unit + all > MOST_BLOCKS) return -1;
        for (int k = 0; k < all; k++) blocks[a_unit++] = (Block){dc + own->dc, ac + own->ac, i, k == 0};
    }
    const uint8_t *bytes = stretches->bytes;
    Reader reader = {bytes, 0, 0};
    int64_t units = (int64_t)head->rows * head->columns, stretch = 0, left = head->interval ? head->interval : units;
    size_t all_bits = stretches->ends[0] * 8;
    Cut *cut = cuts;
    for (int64_t unit = 0; unit < units; unit++, left--) {
        size_t stop = position(&reader, bytes);
        int begins = unit % tile == 0;
        memcpy(before, values, sizeof values);
        if (left == 0) {
            if (all_bits - stop >= 8) return -1;
            reader = (Reader){bytes + stretches->ends[stretch], 0, 0};
            all_bits = stretches->ends[++stretch] * 8;
            left = head->interval;
            memset(values, 0, sizeof values);
        }
        int anew = begins || left == head->interval;
        for (int k = 0; k < a_unit; k++) {
            const Block *block = blocks + k;
            int c = block->component;
            if (k) stop = position(&reader, bytes);
            if (!read_dc(block->dc, &reader, values + c)) return -1;
            if (anew && block->is_first) {
                int value = begins ? values[c] : values[c] - before[c];
                if (category(value) > 15) return -1;
                *cut++ = (Cut){stop, position(&reader, bytes), (int16_t)value, head->component[c].dc, begins && k == 0};
            }
            if (!skip_ac(block->ac, &reader) || position(&reader, bytes) > all_bits) return -1;
        }
    }
    *end = position(&reader, bytes);
    return all_bits - *end < 8 ? cut - cuts : -1;
}

/* Add codes for more values to a table, longer than its own. Returns the bytes of a segment with the table, 0
if there is no room. */
static size_t
extend(Table *table, int name, unsigned missing, uint8_t *out)
{
    const uint8_t *counts = table->symbols - 16;
    uint32_t all = 0, more = (uint32_t)__builtin_popcount(missing), code = 0;
    int bits = 0;
    for (int i = 1; i <= 16; i++)
        if (counts[i - 1]) bits = i;
    for (int i = 1; i <= bits; i++) code = (code << 1) + counts[i - 1], all += counts[i - 1];
    if (all + more > 16) return 0; /* a symbol occurs twice */
    for (; (1u << bits) - code <= more; bits++, code <<= 1) /* a code of ones only is not allowed */
        if (bits == 16) return 0;
    size_t length = 2 + 17 + all + more;
    uint8_t start[] = {0xFF, DHT, (uint8_t)(length >> 8), (uint8_t)length, (uint8_t)name};
    memcpy(out, start, sizeof start);
    memcpy(out + sizeof start, counts, 16 + all);
    out[sizeof start + (size_t)bits - 1] += (uint8_t)more;
    for (int symbol = 0, at = (int)(sizeof start + 16 + all); symbol < 16; symbol++)
        if (missing >> symbol & 1) {
            out[at++] = (uint8_t)symbol;
            table->code[symbol] = (uint16_t)code++, table->bits[symbol] = (uint8_t)bits;
        }
    return 2 + length;
}

/* Fill the last byte with ones. */
INLINE void
end_byte(Writer *writer)
{
    if (writer->count) put(writer, 0xFF >> writer->count, 8 - writer->count);
}

/* Write all tiles with markers between them. Returns the number of bytes. */
static size_t
write_tiles(const Table *dc, const uint8_t *bytes, const Cut *cuts, int64_t count, size_t end, uint8_t *out)
{
    Writer writer = {out, 0, 0};
    size_t from = 0;
    for (int64_t i = 0, tile = 0; i < count; i++) {
        const Cut *cut = cuts + i;
        copy_bits(&writer, bytes, from, cut->stop);
        if (cut->begins && tile++) {
            end_byte(&writer);
            *writer.at++ = 0xFF, *writer.at++ = (uint8_t)(RST0 + (tile - 2) % 8);
        }
        const Table *table = dc + cut->table;
        int value = cut->value, size = category(value);
        put(&writer, table->code[size], table->bits[size]);
        put(&writer, (uint64_t)(value < 0 ? value + (1 << size) - 1 : value), size);
        from = cut->resume;
    }
    copy_bits(&writer, bytes, from, end);
    end_byte(&writer);
    return (size_t)(writer.at - out);
}

/* Write the compressed pixels and the segments that they need before them. Returns the bytes of both, 0 if
the picture is damaged. */
static size_t
write_anew(const Head *head, Stretches *stretches, int tile, Cut *cuts, uint8_t *out, uint8_t *extra, size_t *extras)
{
    Table dc[4], ac[4];
    unsigned made[2] = {0}, used[4] = {0};
    for (int i = 0; i < head->components; i++) {
        int names[2] = {head->component[i].dc, head->component[i].ac};
        for (int kind = 0; kind < 2; kind++) {
            if (made[kind] >> names[kind] & 1) continue;
            made[kind] |= 1u << names[kind];
            if (!make_table((kind ? ac : dc) + names[kind], head->tables[kind][names[kind]], kind)) return 0;
        }
    }
    size_t end;
    int64_t count = find_cuts(head, dc, ac, stretches, tile, cuts, &end);
    if (count < 0) return 0;
    for (int64_t i = 0; i < count; i++) used[cuts[i].table] |= 1u << category(cuts[i].value);
    *extras = 0;
    if (!head->restart) {
        uint8_t interval[] = {0xFF, DRI, 0, 4, (uint8_t)(tile >> 8), (uint8_t)tile};
        memcpy(extra, interval, *extras = sizeof interval);
    }
    for (int name = 0; name < 4; name++) {
        unsigned missing = used[name];
        for (int symbol = 0; symbol < 16; symbol++)
            if (missing >> symbol & 1 && dc[name].bits[symbol]) missing ^= 1u << symbol;
        if (!missing) continue;
        size_t length = extend(dc + name, name, missing, extra + *extras);
        if (!length) return 0;
        *extras += length;
    }
    return write_tiles(dc, stretches->bytes, cuts, count, end, out);
}

/* jpeg_with_restarts(data) */
LOOP(jpeg_with_restarts)
{
    if (check_count(count, 1, "jpeg_with_restarts(data)") < 0) return NULL;
    Buffers buffers = {0};
    const Py_buffer *view = get_buffer(&buffers, args[0], PyBUF_SIMPLE);
    if (!view) return NULL;
    const uint8_t *data = view->buf;
    size_t size = (size_t)view->len, end = 0, written = 0, extras = 0;
    uint8_t extra[EXTRA_BYTES], *out = NULL;
    PyObject *result = NULL;
    Stretches stretches = {NULL, NULL, 1};
    Cut *cuts = NULL;
    Head head;
    if (!read_head(&head, data, size) || head.pixels >= size) goto done;
    int tile = tile_of(head.columns);
    int64_t units = (int64_t)head.rows * head.columns;
    if (units == tile || units / 4 > (int64_t)size) goto done; /* an MCU has at least two bits */
    if (head.interval <= tile && has_tiles(&head)) {
        result = Py_NewRef(args[0]);
        goto done;
    }
    size_t room = size - head.pixels, anew = (size_t)(units / tile);
    if (head.interval) stretches.count = (units + head.interval - 1) / head.interval, anew += (size_t)stretches.count;
    anew *= (size_t)head.components;
    stretches.bytes = malloc(room + BEYOND);
    stretches.ends = malloc((size_t)stretches.count * sizeof *stretches.ends);
    cuts = malloc(anew * sizeof *cuts);
    out = malloc(2 * room + anew * CUT_BYTES + sizeof(uint64_t));
    if (!stretches.bytes || !stretches.ends || !cuts || !out) {
        PyErr_NoMemory();
        goto done;
    }
    BEGIN_WITHOUT_GIL_IF(room > 1 << 13)
    end = unescape(data, head.pixels, size, &stretches);
    if (end) written = write_anew(&head, &stretches, tile, cuts, out, extra, &extras);
    END_WITHOUT_GIL
    if (!written) goto done;
    size_t header = head.pixels - head.scan;
    result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(head.pixels + extras + written + size - end));
    if (!result) goto done;
    uint8_t *to = (uint8_t *)PyBytes_AsString(result);
    memcpy(to, data, head.scan);
    if (head.restart) to[head.restart] = (uint8_t)(tile >> 8), to[head.restart + 1] = (uint8_t)tile;
    memcpy(to += head.scan, extra, extras);
    memcpy(to += extras, data + head.scan, header);
    memcpy(to += header, out, written);
    memcpy(to + written, data + end, size - end);
done:
    free(stretches.bytes);
    free(stretches.ends);
    free(cuts);
    free(out);
    release_buffers(&buffers);
    return result || PyErr_Occurred() ? result : Py_NewRef(Py_None);
}
