/* The two messages of a Produce, as rows: one for each partition (ProduceRequest.json, ProduceResponse.json). */
#include "cursor.h"
#include "ordinary.h"

#define PRODUCE 0
#define FIRST_VERSION 3
#define LOG_START_FROM 5
#define RECORD_ERRORS_FROM 8
#define FLEXIBLE_FROM 9
#define TOPIC_IDS_FROM 13
#define TOPIC_ID_BYTES 16
#define LEAST_BYTES 2 /* of what po_weigh counts, nothing takes less */
#define LOG_OVERHEAD 12
#define UP_TO_MAGIC 17
#define BATCH_HEADER 61
#define MAGIC_AT 16
#define MAGIC_V2 2
#define RECORD_OVERHEAD_V0 14
#define TAGS_BEHIND 3 /* tagged sections behind the records: of partition, topic and request */

_Static_assert(sizeof(po_produce) == PO_PRODUCE_WORDS * 8, "po_produce is words");
_Static_assert(sizeof(po_row) == PO_ROW_WORDS * 8, "po_row is words");
_Static_assert(sizeof(po_produced) == PO_PRODUCED_WORDS * 8, "po_produced is words");

enum { PARTIAL, WHOLE, GARBAGE }; /* what of a batch is there */

static void skip_tags(cursor *c) {
    if (c->flexible) {
        for (int64_t count = read_uvarint(c); count > 0 && c->ok; count--) {
            read_uvarint(c);
            int64_t size = read_uvarint(c);
            skip(c, (uint64_t)size);
        }
    }
}

static void skip_topic(cursor *c, int64_t version) {
    if (version >= TOPIC_IDS_FROM) {
        skip(c, TOPIC_ID_BYTES);
    } else {
        skip_text(c, read_count(c, 2), 0);
    }
}

/* What of the batch at `at` is there before `end`, as Kafka's readers say (ByteBufferLogInputStream.nextBatchSize);
 * `after`: where it ends. */
static int look_at_batch(const uint8_t *bytes, uint64_t at, uint64_t end, uint64_t *after) {
    if (end - at < LOG_OVERHEAD) {
        return PARTIAL;
    }
    cursor c = {bytes, end, at + 8, 0, 1};
    int64_t length = read_int(&c, 4);
    if (length < RECORD_OVERHEAD_V0) {
        return GARBAGE;
    }
    if (end - at < UP_TO_MAGIC) {
        return PARTIAL;
    }
    int8_t magic = (int8_t)bytes[at + MAGIC_AT];
    if (magic < 0 || magic > MAGIC_V2) {
        return GARBAGE;
    }
    *after = at + LOG_OVERHEAD + (uint64_t)length;
    return *after > end ? PARTIAL : WHOLE;
}

/* The header of the batch v2 at `at`: fields of `out`. 0: it is garbage, and `out` is as it was. */
static int read_batch(const uint8_t *bytes, uint64_t at, uint64_t end, po_row *out) {
    cursor c = {bytes, end, at + UP_TO_MAGIC + 4, 0, 1}; /* behind the CRC */
    po_row row = *out;
    row.attributes = read_int(&c, 2);
    row.last_delta = read_int(&c, 4);
    skip(&c, 8 + 8);
    row.producer_id = read_int(&c, 8);
    row.producer_epoch = read_int(&c, 2);
    row.base_sequence = read_int(&c, 4);
    row.record_count = read_int(&c, 4);
    row.magic = MAGIC_V2;
    if (!c.ok || row.last_delta < 0 || row.record_count < 0) {
        return 0;
    }
    *out = row;
    return 1;
}

/* `out` of the records bytes[start, end): their batch if they are one (ProduceRequest.validateRecords), else its magic
 * stays -1. */
static void read_records(const uint8_t *bytes, uint64_t start, uint64_t end, po_row *out) {
    uint64_t after, behind;
    if (look_at_batch(bytes, start, end, &after) != WHOLE || look_at_batch(bytes, after, end, &behind) != PARTIAL) {
        return;
    }
    if (bytes[start + MAGIC_AT] < MAGIC_V2) {
        out->magic = bytes[start + MAGIC_AT];
        out->end = (int64_t)after;
    } else if (after - start >= BATCH_HEADER && read_batch(bytes, start, after, out)) {
        out->end = (int64_t)after;
    }
}

/* All before the array of topics. */
static void scan_head(cursor *c, po_produce *out) {
    skip(c, 4);
    expect(c, read_int(c, 2) == PRODUCE);
    out->version = read_int(c, 2);
    expect(c, out->version >= FIRST_VERSION && out->version <= TOPIC_IDS_FROM);
    out->correlation_id = read_int(c, 4);
    skip_text(c, read_int(c, 2), 1); /* the client id is in the old encoding always */
    c->flexible = out->version >= FLEXIBLE_FROM;
    skip_tags(c);
    out->body_start = (int64_t)c->at;
    int64_t length = read_count(c, 2);
    out->is_transactional = length >= 0;
    skip_text(c, length, 1);
    out->acks = read_int(c, 2);
    skip(c, 4); /* timeout */
    out->names_start = (int64_t)c->at;
    out->route_end = 0;
    out->null_records = 0;
}

/* A partition's index, and where its records lie: the cursor stays at their start. Returns their length. */
static int64_t scan_partition(cursor *c, const po_row *topic, po_row *out) {
    *out = (po_row){.topic_start = topic->topic_start, .topic_end = topic->topic_end, .start = -1, .end = -1,
                    .magic = -1, .attributes = -1, .last_delta = -1, .producer_id = -1, .producer_epoch = -1,
                    .base_sequence = -1, .record_count = -1};
    out->partition = read_int(c, 4);
    int64_t length = read_count(c, 4);
    expect(c, length >= -1);
    if (c->ok && length >= 0) {
        out->start = (int64_t)c->at;
        out->end = out->start + length;
    }
    return length;
}

/* The partitions of one topic, of which `rows` has room for `room`; returns their number. */
static int64_t scan_topic(cursor *c, po_produce *head, po_row *rows, int64_t room) {
    po_row topic = {.topic_start = (int64_t)c->at};
    skip_topic(c, head->version);
    topic.topic_end = (int64_t)c->at;
    int64_t count = read_array(c);
    for (int64_t number = 0; number < count && c->ok; number++) {
        po_row row;
        int64_t length = scan_partition(c, &topic, &row);
        skip(c, length > 0 ? (uint64_t)length : 0);
        if (c->ok && row.start >= 0) {
            read_records(c->bytes, (uint64_t)row.start, (uint64_t)row.end, &row);
        }
        skip_tags(c);
        head->null_records += length < 0;
        if (number < room) {
            rows[number] = row;
        }
    }
    skip_tags(c);
    return count;
}

int64_t po_scan_produce(const uint8_t *frame, uint64_t size, int64_t most, po_produce *out, po_row *rows, int64_t room) {
    cursor c = {frame, size, 0, 0, 1};
    scan_head(&c, out);
    if (!c.ok) {
        return PO_MALFORMED;
    }
    if (size > (uint64_t)(LEAST_BYTES * most)) {
        int64_t weight = po_weigh(frame, size, (uint64_t)out->body_start, PRODUCE, (int)out->version, most);
        if (weight < 0 || weight > most) {
            return weight < 0 ? PO_MALFORMED : PO_WIDE;
        }
    }
    int64_t found = 0;
    for (int64_t topics = read_array(&c); topics > 0 && c.ok; topics--) {
        found += scan_topic(&c, out, rows + (found < room ? found : room), found < room ? room - found : 0);
    }
    skip_tags(&c);
    return c.ok ? found : PO_MALFORMED;
}

/* One topic and one partition, its index and where its records lie; 0: there is something else. */
static int scan_only(cursor *c, po_produce *out, po_row *row) {
    scan_head(c, out);
    expect(c, out->acks != 0 && read_array(c) == 1);
    po_row topic = {.topic_start = (int64_t)c->at};
    skip_topic(c, out->version);
    topic.topic_end = (int64_t)c->at;
    expect(c, read_array(c) == 1);
    out->route_end = (int64_t)c->at + 4;
    int64_t length = c->ok ? scan_partition(c, &topic, row) : 0;
    expect(c, length >= BATCH_HEADER && has(c, BATCH_HEADER));
    return c->ok && out->route_end <= PO_ROUTE_START + PO_ROUTE_MAX;
}

int po_scan_single(const uint8_t *begun, uint64_t have, uint64_t size, po_produce *out, po_row *row) {
    cursor c = {begun, have, 0, 0, 1};
    if (!scan_only(&c, out, row)) {
        return 0;
    }
    uint64_t start = (uint64_t)row->start, end = (uint64_t)row->end, after = 0;
    look_at_batch(begun, start, have < end ? have : end, &after);
    if (after != end || begun[start + MAGIC_AT] != MAGIC_V2 || !read_batch(begun, start, start + BATCH_HEADER, row) ||
        end + (c.flexible ? TAGS_BEHIND : 0) != size) {
        return 0;
    }
    skip(&c, have == size ? end - start : 0);
    for (int section = 0; section < TAGS_BEHIND && have == size; section++) {
        expect_no_tags(&c);
    }
    return c.ok;
}

/* Record errors and a message, nearly always neither (KIP-467). */
static void skip_errors(cursor *c) {
    for (int64_t count = read_array(c); count > 0 && c->ok; count--) {
        skip(c, 4);
        skip_text(c, read_count(c, 2), 1);
        skip_tags(c);
    }
    skip_text(c, read_count(c, 2), 1);
}

static void scan_produced(cursor *c, int version, po_produced *out) {
    out->partition = read_int(c, 4);
    out->error_code = read_int(c, 2);
    out->base_offset = read_int(c, 8);
    out->log_append_time_ms = read_int(c, 8);
    out->log_start_offset = version >= LOG_START_FROM ? read_int(c, 8) : -1;
    if (version >= RECORD_ERRORS_FROM) {
        skip_errors(c);
    }
    skip_tags(c);
}

int64_t po_scan_produced(const uint8_t *frame, uint64_t size, int version, po_produced *rows, int64_t room) {
    cursor c = {frame, size, 0, version >= FLEXIBLE_FROM, 1};
    skip(&c, 8);
    skip_tags(&c);
    int64_t found = 0;
    for (int64_t topics = read_array(&c); topics > 0 && c.ok; topics--) {
        po_produced row = {.topic_start = (int64_t)c.at};
        skip_topic(&c, version);
        row.topic_end = (int64_t)c.at;
        for (int64_t left = read_array(&c); left > 0 && c.ok; left--, found++) {
            scan_produced(&c, version, &row);
            if (found < room) {
                rows[found] = row;
            }
        }
        skip_tags(&c);
    }
    skip(&c, 4); /* throttle time */
    skip_tags(&c);
    return c.ok ? found : PO_MALFORMED;
}
