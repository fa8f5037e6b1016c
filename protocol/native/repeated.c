/* A request held against an earlier one of its connection. */
#include <string.h>

#include "cursor.h"
#include "ordinary.h"

#define CORRELATION_ID_AT 8
#define EPOCH_BYTES 4
#define OFFSET_BYTES 8

/* Whether both frames, of `size` bytes, have the same bytes there. */
static int same(const uint8_t *one, const uint8_t *other, uint64_t size, uint64_t from, uint64_t to) {
    return from <= to && to <= size && memcmp(one + from, other + from, to - from) == 0;
}

int po_repeats(const uint8_t *frame, uint64_t size, const uint8_t *last, uint64_t last_size, uint64_t epoch_at,
               const uint32_t *offset_at, uint64_t offsets, int64_t *out) {
    if (size != last_size || !same(frame, last, size, 0, CORRELATION_ID_AT)) {
        return 0;
    }
    cursor c = {frame, size, CORRELATION_ID_AT, 0, 1};
    out[0] = read_int(&c, 4);
    out[1] = -1;
    if (epoch_at != 0) {
        if (!same(frame, last, size, c.at, epoch_at)) {
            return 0;
        }
        c.at = epoch_at;
        out[1] = read_int(&c, EPOCH_BYTES);
    }
    for (uint64_t i = 0; i < offsets; i++) {
        if (!c.ok || !same(frame, last, size, c.at, offset_at[i])) {
            return 0;
        }
        c.at = offset_at[i];
        out[2 + i] = read_int(&c, OFFSET_BYTES);
    }
    return c.ok && same(frame, last, size, c.at, size);
}
