/* The loops of codecs/jpeg_rows.py, which says what they are for: restart markers between the rows of MCUs of a JPEG file; and what
the header says of a plain one, for codecs/jpeg.py.

Whatever the bytes are, nothing outside them is read; what is out of the ordinary is refused with None.
*/
#include "native.h"

enum { SOI = 0xD8, EOI = 0xD9, RST0 = 0xD0, RST7 = 0xD7, SOF0 = 0xC0, SOF1 = 0xC1, DHT = 0xC4, DQT = 0xDB, SOS = 0xDA, DRI = 0xDD };
enum { APP0 = 0xE0, APP1 = 0xE1, APP15 = 0xEF, COM = 0xFE };

#define MOST_COMPONENTS 4
#define MOST_ROWS (1 << 13) /* of MCUs: 65,535 pixels have 8,192 rows of 8 */

#define MOST_BLOCKS 10      /* of an MCU, by the standard */

typedef struct {
    uint8_t id, across, down; /* sampling factors */
    uint8_t dc, ac;           /* numbers of its Huffman tables */
} Component;

/* What the segments before the compressed pixels say. */
typedef struct {
    size_t frame, scan, pixels; /* where SOF's marker begins, that of SOS, and the compressed pixels */
    int width, height, components, interval; /* interval: -1 if nothing is said of it */
    int exif;                      /* 1 if it has Exif data, which may say that it is to be turned */
    int columns, rows, row_pixels; /* MCUs in a row, rows of MCUs, pixels in one of these */
    Component component[MOST_COMPONENTS];
    const uint8_t *tables[2][4]; /* Huffman tables of DC and AC: 16 numbers of codes of 1 to 16 bits, then their symbols */
} Head;

INLINE int
number(const uint8_t *at)
{
    return at[0] << 8 | at[1];
}

static int
read_frame(Head *head, const uint8_t *segment, int length)
{
    if (length < 8 || segment[2] != 8) return 0; /* bits a sample */
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
    if (head->components == 1) across = down = 1; /* an MCU of one component is one block, whatever its factors say */
    head->row_pixels = 8 * down;
    head->rows = (head->height + 8 * down - 1) / (8 * down);
    head->columns = (head->width + 8 * across - 1) / (8 * across);
    return head->height > 0 && head->width > 0;
}

/* The one scan: all components in the frame's order, and all coefficients with all their bits. */
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

/* Read the segments up to the compressed pixels: 1, or 0 if they are no sequential Huffman picture of 8 bits in one scan. */
static int
read_head(Head *head, const uint8_t *data, size_t size)
{
    memset(head, 0, sizeof *head);
    head->interval = -1;
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
            head->interval = number(segment + 2);
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

/* Rows of pixels on both sides of a part that a decoder may need, to enlarge components of fewer rows smoothly. One row of
such a component is enough. Where decoders to 1/2 or 1/4 leave components smaller too, a row of them is up to 8 pixels. */
static int
margin(const Head *head)
{
    int across = 1, down = 1, most = 0;
    for (int i = 0; i < head->components; i++) {
        if (head->component[i].across > across) across = head->component[i].across;
        if (head->component[i].down > down) down = head->component[i].down;
    }
    for (int i = 0; i < head->components && head->components > 1; i++) {
        const Component *own = head->component + i;
        int both = own->across * 2 == across && own->down * 2 == down;
        int rows = own->down == down ? 0 : both ? 2 : 8;
        if (rows > most) most = rows;
    }
    return most;
}

/* Note where each row of MCUs ends, at its RST or EOI: 1, or 0 if there is another marker, or too few or too many. */
static int
find_rows(const Head *head, const uint8_t *data, size_t size, size_t *ends)
{
    const uint8_t *at = data + head->pixels, *last = data + size - 1;
    int row = 0;
    for (; (at = memchr(at, 0xFF, (size_t)(last - at))); at += 2) {
        if (at[1] == 0) {
            if (last - at < 2) return 0;
            continue;
        }
        ends[row] = (size_t)(at - data);
        if (++row == head->rows) return at[1] == EOI;
        if (at[1] != RST0 + (row - 1) % 8 || last - at < 2) return 0;
    }
    return 0;
}

/* jpeg_plain_size(data) */
LOOP(jpeg_plain_size)
{
    if (check_count(count, 1, "jpeg_plain_size(data)") < 0) return NULL;
    Buffers buffers = {0};
    const Py_buffer *view = get_buffer(&buffers, args[0], PyBUF_SIMPLE);
    if (!view) return NULL;
    Head head;
    int plain = read_head(&head, view->buf, (size_t)view->len) && !head.exif && (head.components == 1 || head.components == 3);
    release_buffers(&buffers);
    return plain ? Py_BuildValue("ii", head.height, head.width) : Py_NewRef(Py_None);
}

/* jpeg_rows(data, first, stop) */
LOOP(jpeg_rows)
{
    if (check_count(count, 3, "jpeg_rows(data, first, stop)") < 0) return NULL;
    Py_ssize_t first = PyNumber_AsSsize_t(args[1], PyExc_OverflowError);
    Py_ssize_t stop = PyNumber_AsSsize_t(args[2], PyExc_OverflowError);
    if (PyErr_Occurred()) return NULL;
    Buffers buffers = {0};
    const Py_buffer *view = get_buffer(&buffers, args[0], PyBUF_SIMPLE);
    if (!view) return NULL;
    const uint8_t *data = view->buf;
    size_t size = (size_t)view->len, ends[MOST_ROWS];
    PyObject *result = NULL;
    Head head;
    if (!read_head(&head, data, size) || head.pixels >= size || head.interval != head.columns) goto done;
    if (first < 0 || first >= stop || stop > head.height) goto done;
    int side = margin(&head), pixels = head.row_pixels, from = (int)first - side, to = (int)stop + side;
    int begin = from > 0 ? from / pixels : 0, end = to < head.height ? (to + pixels - 1) / pixels : head.rows;
    if (begin == 0 && end == head.rows) goto done;
    if (!find_rows(&head, data, size, ends)) goto done;
    size_t start = begin ? ends[begin - 1] + 2 : head.pixels, length = ends[end - 1] - start;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(head.pixels + length + 2));
    if (!bytes) goto done;
    uint8_t *part = (uint8_t *)PyBytes_AS_STRING(bytes);
    memcpy(part, data, head.pixels);
    memcpy(part + head.pixels, data + start, length);
    int bottom = end * pixels < head.height ? end * pixels : head.height, height = bottom - begin * pixels;
    part[head.frame + 5] = (uint8_t)(height >> 8), part[head.frame + 6] = (uint8_t)height;
    for (int row = begin; row < end - 1; row++)
        part[head.pixels + ends[row] - start + 1] = (uint8_t)(RST0 + (row - begin) % 8);
    part[head.pixels + length] = 0xFF, part[head.pixels + length + 1] = EOI;
    result = Py_BuildValue("Nii", bytes, begin * pixels, bottom);
done:
    release_buffers(&buffers);
    return result || PyErr_Occurred() ? result : Py_NewRef(Py_None);
}

/* ---- markers for a file that has none ----

The differences between DC values are all that goes from one row to the next: at the beginning of a row they count from 0. So of
each row the first code of each component is written anew, and all other bits are copied, shifted. To find where the rows
begin all codes are read. */

#define INDEX_BITS 11
#define LONGEST 31                                  /* bits of a code and of the number behind it */
#define BEYOND (64 * LONGEST / 8 + 3 * 8)           /* bytes behind the compressed pixels that reading one block may touch */
#define ROW_BYTES (2 * (MOST_COMPONENTS * LONGEST / 8 + 2) + 2) /* that a row may grow by, where every second one is a 0 after 0xFF */

/* An entry says what the next bits are: BITS of them are codes with their numbers, which stand for COEFFICIENTS, and END if the last
of them ends the block. 0: the code is longer, or none. */
#define BITS(entry) ((entry) & 63)
#define COEFFICIENTS(entry) ((entry) >> 6 & 127)
#define END 0x8000

/* A Huffman table. One code is looked up in `one` (in a DC table without the number's bits), as many as INDEX_BITS show in `many`. */
typedef struct {
    uint16_t one[1 << INDEX_BITS], many[1 << INDEX_BITS];
    uint32_t limits[17]; /* of 16 bits that begin with a code of so many bits, or a shorter one: they are less */
    int first[17];       /* of codes of so many bits: index of the first one's symbol - the code */
    const uint8_t *symbols;
    uint16_t code[16]; /* of symbols below 16, and how many bits it has, 0 if it has none */
    uint8_t bits[16];
} Table;

typedef struct {
    const Table *dc, *ac;
    int component, is_first;
} Block;

/* A code at the beginning of a row that is written anew: bits [begin, end), the DC value. */
typedef struct {
    size_t begin, end;
    int value;
} Renewed;

typedef struct {
    const uint8_t *at;
    uint64_t word; /* its highest `count` bits are those before `at` that are to be read */
    int count;
} Reader;

typedef struct {
    uint8_t *at;
    uint64_t pending;
    int count; /* the last so many bits of `pending` are to be written, 0 to 7 between two calls */
} Writer;

INLINE uint64_t
big_endian(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return __builtin_bswap64(word);
}

/* The entry of a code of AC coefficients: a run of zeros, then a number of so many bits. */
static uint16_t
ac_entry(int symbol, int bits)
{
    int run = symbol >> 4, size = symbol & 15;
    if (!size && run != 0 && run != 15) return 0; /* of progressive files */
    return (uint16_t)(symbol ? bits + size + ((run + 1) << 6) : bits | END);
}

/* Read a table as libjpeg does: 1, or 0 if its codes do not fit into their bits, or a symbol is none of DC. */
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

/* Read a code that has more bits than the index: its symbol, and its bits; -1 if there is none such. */
static SLOW int
long_code(const Table *table, uint64_t word, int *bits)
{
    uint32_t next = (uint32_t)(word >> 48);
    if (next < table->limits[INDEX_BITS]) return -1;
    for (*bits = INDEX_BITS + 1; *bits <= 16; ++*bits)
        if (next < table->limits[*bits]) return table->symbols[(int)(next >> (16 - *bits)) + table->first[*bits]];
    return -1;
}

/* Take more bits in, so that there are 56 or more. */
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

/* Read the codes of a block's AC coefficients: 1, or 0 if there are no such. */
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

/* Read the code of a block's DC difference, and add it: 1, or 0 if there is no such, or the value is out of all bounds. */
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

/* Write bits, at most 56; those above them are 0. */
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

/* The next 57 bits or more, from the highest one down. */
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

/* Write a row of MCUs, to its last byte, which is filled up with ones: 1, or 0 if there is no code for one of the values. */
static int
write_row(Writer *writer, const Head *head, const Table *dc, const uint8_t *bytes, const Renewed *renewed, size_t begin, size_t end)
{
    for (int i = 0; i < head->components; i++) {
        const Table *table = dc + head->component[i].dc;
        int value = renewed[i].value, size = value ? 32 - __builtin_clz((unsigned)abs(value)) : 0;
        if (!table->bits[size]) return 0;
        copy_bits(writer, bytes, begin, renewed[i].begin);
        put(writer, table->code[size], table->bits[size]);
        put(writer, (uint64_t)(value < 0 ? value + (1 << size) - 1 : value), size);
        begin = renewed[i].end;
    }
    copy_bits(writer, bytes, begin, end);
    if (writer->count) put(writer, 0xFF >> writer->count, 8 - writer->count);
    return 1;
}

/* Take the 0 behind each 0xFF out, up to the end of the picture. Returns: where EOI is, or 0 if another marker comes first. */
static size_t
unescape(const uint8_t *data, size_t at, size_t size, uint8_t *bytes, size_t *count)
{
    uint8_t *to = bytes;
    while (at < size) {
        const uint8_t *found = memchr(data + at, 0xFF, size - at);
        size_t next = found ? (size_t)(found - data) : size;
        if (next + 2 > size) return 0;
        memcpy(to, data + at, next - at);
        to += next - at;
        if (data[next + 1] == EOI) {
            *count = (size_t)(to - bytes);
            memset(to, 0, BEYOND);
            return next;
        }
        if (data[next + 1] != 0) return 0;
        *to++ = 0xFF;
        at = next + 2;
    }
    return 0;
}

/* Write all rows, with markers between them: the number of bytes, or 0 if the picture is damaged. */
static size_t
write_rows(const Head *head, const uint8_t *bytes, size_t count, uint8_t *out)
{
    Table dc[4], ac[4];
    Block blocks[MOST_BLOCKS];
    int a_unit = 0, made[2][4] = {{0}}, values[MOST_COMPONENTS] = {0};
    for (int i = 0; i < head->components; i++) {
        const Component *own = head->component + i;
        int all = head->components == 1 ? 1 : own->across * own->down;
        if (a_unit + all > MOST_BLOCKS) return 0;
        if (!made[0][own->dc]++ && !make_table(dc + own->dc, head->tables[0][own->dc], 0)) return 0;
        if (!made[1][own->ac]++ && !make_table(ac + own->ac, head->tables[1][own->ac], 1)) return 0;
        for (int k = 0; k < all; k++) blocks[a_unit++] = (Block){dc + own->dc, ac + own->ac, i, k == 0};
    }
    Writer writer = {out, 0, 0};
    Renewed renewed[MOST_COMPONENTS];
    Reader reader = {bytes, 0, 0};
    size_t all_bits = count * 8;
    for (int row = 0; row < head->rows; row++) {
        size_t begin = position(&reader, bytes);
        for (int column = 0; column < head->columns; column++)
            for (int k = 0; k < a_unit; k++) {
                const Block *block = blocks + k;
                size_t before = position(&reader, bytes);
                if (!read_dc(block->dc, &reader, values + block->component)) return 0;
                if (column == 0 && block->is_first)
                    renewed[block->component] = (Renewed){before, position(&reader, bytes), values[block->component]};
                if (!skip_ac(block->ac, &reader) || position(&reader, bytes) > all_bits) return 0;
            }
        if (!write_row(&writer, head, dc, bytes, renewed, begin, position(&reader, bytes))) return 0;
        if (row < head->rows - 1) *writer.at++ = 0xFF, *writer.at++ = (uint8_t)(RST0 + row % 8);
    }
    return all_bits - position(&reader, bytes) < 8 ? (size_t)(writer.at - out) : 0;
}

/* jpeg_with_restarts(data) */
LOOP(jpeg_with_restarts)
{
    if (check_count(count, 1, "jpeg_with_restarts(data)") < 0) return NULL;
    Buffers buffers = {0};
    const Py_buffer *view = get_buffer(&buffers, args[0], PyBUF_SIMPLE);
    if (!view) return NULL;
    const uint8_t *data = view->buf;
    size_t size = (size_t)view->len, ends[MOST_ROWS], end = 0, bytes = 0, written = 0;
    PyObject *result = NULL;
    uint8_t *plain = NULL, *out = NULL;
    Head head;
    if (!read_head(&head, data, size) || head.pixels >= size || head.rows == 1) goto done;
    if (head.interval >= 0) {
        if (head.interval == head.columns && find_rows(&head, data, size, ends)) result = Py_NewRef(args[0]);
        goto done;
    }
    size_t room = size - head.pixels, rows = (size_t)head.rows;
    plain = PyMem_RawMalloc(room + BEYOND);
    out = PyMem_RawMalloc(2 * room + rows * ROW_BYTES + sizeof(uint64_t));
    if (!plain || !out) {
        PyErr_NoMemory();
        goto done;
    }
    BEGIN_WITHOUT_GIL_IF(room > 1 << 13)
    end = unescape(data, head.pixels, size, plain, &bytes);
    if (end) written = write_rows(&head, plain, bytes, out);
    END_WITHOUT_GIL
    if (!written) goto done;
    uint8_t interval[] = {0xFF, DRI, 0, 4, (uint8_t)(head.columns >> 8), (uint8_t)head.columns};
    size_t header = head.pixels - head.scan;
    result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(head.pixels + sizeof interval + written + size - end));
    if (!result) goto done;
    uint8_t *to = (uint8_t *)PyBytes_AS_STRING(result);
    memcpy(to, data, head.scan);
    memcpy(to += head.scan, interval, sizeof interval);
    memcpy(to += sizeof interval, data + head.scan, header);
    memcpy(to += header, out, written);
    memcpy(to + written, data + end, size - end);
done:
    PyMem_RawFree(plain);
    PyMem_RawFree(out);
    release_buffers(&buffers);
    return result || PyErr_Occurred() ? result : Py_NewRef(Py_None);
}
