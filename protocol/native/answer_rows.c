/* A Fetch's answer about any number of partitions, as rows (FetchResponse.json, version 13). */
#include "cursor.h"
#include "ordinary.h"

#define TOPIC_ID_BYTES 16

_Static_assert(sizeof(po_answer) == PO_ANSWER_WORDS * 8, "po_answer is words");
_Static_assert(sizeof(po_polled) == PO_POLLED_WORDS * 8, "po_polled is words");

static void read_row(cursor *c, po_polled *row) {
    row->partition = read_int(c, 4);
    row->error_code = read_int(c, 2);
    row->high_watermark = read_int(c, 8);
    row->last_stable_offset = read_int(c, 8);
    row->log_start_offset = read_int(c, 8);
    expect(c, read_count(c, 4) == -1); /* aborted transactions: null to who reads uncommitted */
    row->preferred_read_replica = read_int(c, 4);
    int64_t length = read_count(c, 4);
    row->start = row->end = -1;
    if (c->ok && length >= 0) {
        row->start = (int64_t)c->at;
        row->end = row->start + length;
        skip(c, (uint64_t)length);
    }
    expect_no_tags(c); /* a diverging epoch, or the current leader */
}

int64_t po_scan_rows(const uint8_t *frame, uint64_t size, po_answer *out, po_topic *topics, po_polled *rows, int64_t most) {
    cursor c = {frame, size, 0, 1, 1};
    int64_t count = 0;
    skip(&c, 8);
    expect_no_tags(&c);
    out->throttle_time_ms = read_int(&c, 4);
    out->error_code = read_int(&c, 2);
    out->session_id = read_int(&c, 4);
    out->topics = read_count(&c, 4);
    expect(&c, out->topics >= 0 && out->topics <= most);
    for (int64_t number = 0; c.ok && number < out->topics; number++) {
        po_topic topic = {.start = (int64_t)c.at, .end = (int64_t)c.at + TOPIC_ID_BYTES};
        skip(&c, TOPIC_ID_BYTES);
        topic.partitions = read_count(&c, 4);
        expect(&c, topic.partitions >= 0 && topic.partitions <= most - count);
        for (int64_t left = topic.partitions; c.ok && left > 0; left--) {
            read_row(&c, &rows[count++]);
        }
        expect_no_tags(&c);
        topics[number] = topic;
    }
    expect_no_tags(&c);
    return c.ok && c.at == size ? count : -1;
}
