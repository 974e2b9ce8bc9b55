/* The loops of codecs/jpeg_rows.py, which says what they are for: restart markers between the rows of MCUs of a JPEG file.

Whatever the bytes are, nothing outside them is read; what is out of the ordinary is refused with None.
*/
#include "native.h"

enum { SOI = 0xD8, EOI = 0xD9, RST0 = 0xD0, RST7 = 0xD7, SOF0 = 0xC0, SOF1 = 0xC1, DHT = 0xC4, DQT = 0xDB, SOS = 0xDA, DRI = 0xDD };
enum { APP0 = 0xE0, APP15 = 0xEF, COM = 0xFE };

#define MOST_COMPONENTS 4
#define MOST_ROWS (1 << 13) /* of MCUs: 65,535 pixels have 8,192 rows of 8 */

typedef struct {
    uint8_t id, across, down; /* sampling factors */
} Component;

/* What the segments before the compressed pixels say. */
typedef struct {
    size_t frame, scan, pixels; /* where SOF's marker begins, that of SOS, and the compressed pixels */
    int width, height, components, interval;
    int columns, rows, row_pixels; /* MCUs in a row, rows of MCUs, pixels in one of these */
    Component component[MOST_COMPONENTS];
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
        Component component = {own[0], own[1] >> 4, own[1] & 15};
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
read_scan(const Head *head, const uint8_t *segment, int length)
{
    if (!head->frame || length != 6 + 2 * head->components || segment[2] != head->components) return 0;
    for (int i = 0; i < head->components; i++)
        if (segment[3 + 2 * i] != head->component[i].id) return 0;
    const uint8_t *spectrum = segment + length - 3;
    return spectrum[0] == 0 && spectrum[1] == 63 && spectrum[2] == 0;
}

/* Read the segments up to the compressed pixels: 1, or 0 if they are no sequential Huffman picture of 8 bits in one scan. */
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
            head->interval = number(segment + 2);
        } else if (marker == SOS) {
            head->scan = at, head->pixels = at + 2 + (size_t)length;
            return read_scan(head, segment, length);
        } else if (marker != DHT && marker != DQT && marker != COM && !(marker >= APP0 && marker <= APP15))
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
