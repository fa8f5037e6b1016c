/* A request held against the one before it on its connection. */
#include <string.h>

#include "cursor.h"
#include "ordinary.h"

#define CORRELATION_ID_AT 8
#define CORRELATION_ID_BYTES 4
#define EPOCH_BYTES 4
#define OFFSET_BYTES 8

_Static_assert(sizeof(po_changed) == 3 * 8, "po_changed is words");

static int same(const uint8_t *one, const uint8_t *other, uint64_t from, uint64_t to) {
    return from >= to || memcmp(one + from, other + from, to - from) == 0;
}

int po_repeats(const uint8_t *frame, uint64_t size, const uint8_t *last, uint64_t last_size, uint64_t epoch_at,
               uint64_t offset_at, po_changed *out) {
    uint64_t behind_id = CORRELATION_ID_AT + CORRELATION_ID_BYTES;
    if (size != last_size || size < behind_id || offset_at > size || epoch_at > offset_at) {
        return 0;
    }
    if (!same(frame, last, behind_id, epoch_at) || !same(frame, last, epoch_at + EPOCH_BYTES, offset_at) ||
        !same(frame, last, offset_at + OFFSET_BYTES, size) || !same(frame, last, 0, CORRELATION_ID_AT)) {
        return 0;
    }
    cursor c = {frame, size, CORRELATION_ID_AT, 0, 1};
    out->correlation_id = read_int(&c, 4);
    c.at = epoch_at;
    out->session_epoch = has(&c, EPOCH_BYTES) ? read_int(&c, EPOCH_BYTES) : 0;
    c.at = offset_at;
    out->fetch_offset = has(&c, OFFSET_BYTES) ? read_int(&c, OFFSET_BYTES) : 0;
    return 1;
}
