/* cursor: one frame, read from its beginning to its end, in either of Kafka's encodings. For the scanners in this folder.
 *
 * Owns: integers, lengths, texts and tagged sections, and that nothing is read beyond `size`. Must not know: any message.
 * Invariants: at <= size; once something was not as it must be, `ok` is 0, and what is read after that means nothing. */
#ifndef CURSOR_H
#define CURSOR_H
#include <stdint.h>

typedef struct {
    const uint8_t *bytes;
    uint64_t size, at;          /* at <= size */
    int flexible;
    int ok;                     /* 0 once something was not as it must be: what is read after that means nothing */
} cursor;

static inline int has(cursor *c, uint64_t width) {
    c->ok = c->ok && width <= c->size - c->at;
    return c->ok;
}

static inline int64_t read_int(cursor *c, unsigned width) {
    uint64_t value = 0;
    if (!has(c, width)) {
        return 0;
    }
    for (unsigned i = 0; i < width; i++) {
        value = value << 8 | c->bytes[c->at + i];
    }
    c->at += width;
    unsigned shift = 64 - 8 * width;
    return (int64_t)(value << shift) >> shift;
}

static inline void skip(cursor *c, uint64_t width) {
    c->at += has(c, width) ? width : 0;
}

static inline void expect(cursor *c, int is_so) {
    c->ok = c->ok && is_so;
}

/* At most five bytes (ByteUtils.readUnsignedVarint). */
static inline int64_t read_uvarint(cursor *c) {
    int64_t value = 0;
    for (unsigned shift = 0; shift < 35; shift += 7) {
        int64_t byte = read_int(c, 1) & 0xff;
        value |= (byte & 0x7f) << shift;
        if (byte < 0x80) {
            return value;
        }
    }
    c->ok = 0;
    return 0;
}

/* A length or count, -1 for null. */
static inline int64_t read_count(cursor *c, unsigned classic_width) {
    return c->flexible ? read_uvarint(c) - 1 : read_int(c, classic_width);
}

/* A count of an array that must not be null; no element takes less than a byte. */
static inline int64_t read_array(cursor *c) {
    int64_t count = read_count(c, 4);
    expect(c, count >= 0 && (uint64_t)count <= c->size - c->at);
    return c->ok ? count : 0;
}

static inline void skip_text(cursor *c, int64_t length, int may_be_null) {
    expect(c, length >= (may_be_null ? -1 : 0));
    skip(c, c->ok && length > 0 ? (uint64_t)length : 0);
}

static inline void expect_no_tags(cursor *c) {
    if (c->flexible) {
        expect(c, read_int(c, 1) == 0);
    }
}
#endif
