/* The two messages of a Produce of the ordinary form (ProduceRequest.json, ProduceResponse.json). */
#include <string.h>

#include "cursor.h"
#include "ordinary.h"

#define PRODUCE 0
#define FIRST_VERSION 3
#define LOG_START_FROM 5
#define RECORD_ERRORS_FROM 8
#define FLEXIBLE_FROM 9
#define TOPIC_IDS_FROM 13
#define TOPIC_ID_BYTES 16
#define BATCH_HEADER 61
#define MAGIC_AT 16
#define TAGS_BEHIND 3 /* bytes behind the batch: of partition, topic and request */

_Static_assert(sizeof(po_request) == 13 * 8, "po_request is words");

/* One topic, one partition, and its index. */
static void skip_names(cursor *c, int version) {
    expect(c, read_count(c, 4) == 1);
    if (version >= TOPIC_IDS_FROM) {
        skip(c, TOPIC_ID_BYTES);
    } else {
        skip_text(c, read_count(c, 2), 0);
    }
    expect(c, read_count(c, 4) == 1);
    skip(c, 4);
}

/* The header of the one batch, which is `length` bytes long. */
static void scan_batch(cursor *c, int64_t length, po_request *out) {
    expect(c, length >= BATCH_HEADER && has(c, BATCH_HEADER));
    if (!c->ok) {
        return;
    }
    out->start = (int64_t)c->at;
    out->end = out->start + length;
    expect(c, c->bytes[c->at + MAGIC_AT] == 2);
    skip(c, 8);
    expect(c, read_int(c, 4) == length - 12);
    skip(c, 4 + 1);
    out->crc = read_int(c, 4) & 0xffffffff;
    out->attributes = read_int(c, 2);
    out->last_delta = read_int(c, 4);
    skip(c, 8 + 8);
    out->producer_id = read_int(c, 8);
    out->producer_epoch = read_int(c, 2);
    out->base_sequence = read_int(c, 4);
    out->record_count = read_int(c, 4);
    expect(c, out->last_delta >= 0 && out->record_count >= 0);
}

/* All before the records, and the header of their batch: `out` whole. */
static void scan_to_records(cursor *c, po_request *out) {
    skip(c, 4);
    expect(c, read_int(c, 2) == PRODUCE);
    int64_t version = out->version = read_int(c, 2);
    expect(c, version >= FIRST_VERSION && version <= TOPIC_IDS_FROM);
    out->correlation_id = read_int(c, 4);
    skip_text(c, read_int(c, 2), 1); /* the client id is in the old encoding always */
    c->flexible = version >= FLEXIBLE_FROM;
    expect_no_tags(c);
    skip_text(c, read_count(c, 2), 1); /* transactional id */
    expect(c, read_int(c, 2) != 0);    /* acks */
    skip(c, 4);                        /* timeout */
    out->names_start = (int64_t)c->at;
    skip_names(c, (int)version);
    out->route_end = (int64_t)c->at;
    expect(c, c->at <= PO_ROUTE_START + PO_ROUTE_MAX);
    if (c->ok) { /* nearly always, and the rest is of a Produce */
        scan_batch(c, read_count(c, 4), out);
    }
}

int po_scan_request(const uint8_t *frame, uint64_t size, po_request *out) {
    cursor c = {frame, size, 0, 0, 1};
    scan_to_records(&c, out);
    if (c.ok) {
        skip(&c, (uint64_t)(out->end - out->start) - BATCH_HEADER);
    }
    expect_no_tags(&c);
    expect_no_tags(&c);
    expect_no_tags(&c);
    return c.ok && c.at == size;
}

int po_scan_begun(const uint8_t *begun, uint64_t have, uint64_t size, po_request *out) {
    cursor c = {begun, have, 0, 0, 1};
    scan_to_records(&c, out);
    return c.ok && (uint64_t)out->end + (c.flexible ? TAGS_BEHIND : 0) == size;
}

int64_t po_base_offset(const uint8_t *frame, uint64_t size, int version, const uint8_t *names, uint64_t names_size) {
    cursor c = {frame, size, 0, version >= FLEXIBLE_FROM, 1};
    skip(&c, 8);
    expect_no_tags(&c);
    if (!has(&c, names_size) || memcmp(frame + c.at, names, names_size) != 0) {
        return -1;
    }
    skip(&c, names_size);
    expect(&c, read_int(&c, 2) == 0); /* error */
    int64_t base_offset = read_int(&c, 8);
    expect(&c, read_int(&c, 8) == -1); /* log append time: none */
    skip(&c, version >= LOG_START_FROM ? 8 : 0);
    if (version >= RECORD_ERRORS_FROM) {
        expect(&c, read_count(&c, 4) == 0);
        expect(&c, read_count(&c, 2) == -1);
    }
    expect_no_tags(&c);
    expect_no_tags(&c);
    skip(&c, 4); /* throttle time */
    expect_no_tags(&c);
    return c.ok && c.at == size ? base_offset : -1;
}
