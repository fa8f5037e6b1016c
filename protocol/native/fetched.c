/* An answer to a Fetch, of the ordinary form (FetchResponse.json). */
#include <string.h>

#include "cursor.h"
#include "ordinary.h"

#define LOG_START_FROM 5
#define SESSIONS_FROM 7
#define RACK_FROM 11
#define FLEXIBLE_FROM 12
#define TOPIC_IDS_FROM 13
#define TOPIC_ID_BYTES 16
#define PRODUCER_AND_OFFSET_BYTES 16

_Static_assert(sizeof(po_fetched) == 2 * 8, "po_fetched is words");

/* Not null. Any other text is for Python to decode. */
static void skip_ascii(cursor *c, int64_t length) {
    uint64_t start = c->at;
    expect(c, length <= INT16_MAX); /* nobody may have more of it (wire.py, MOST_TEXT_BYTES) */
    skip_text(c, length, 0);
    for (uint64_t at = start; at < c->at; at++) {
        expect(c, c->bytes[at] < 0x80);
    }
}

/* A topic, and the index of its one partition. */
static void skip_name(cursor *c, int version) {
    if (version >= TOPIC_IDS_FROM) {
        skip(c, TOPIC_ID_BYTES);
    } else {
        skip_ascii(c, read_count(c, 2));
    }
    expect(c, read_count(c, 4) == 1);
    skip(c, 4);
}

/* Up to the names, which are those asked for, if some were. */
static void expect_names(cursor *c, int version, const uint8_t *names, uint64_t names_size) {
    skip(c, 8);
    expect_no_tags(c);
    skip(c, 4 + (version >= SESSIONS_FROM ? 2 + 4 : 0)); /* throttle time, error, session */
    if (names_size) {
        expect(c, has(c, names_size) && memcmp(c->bytes + c->at, names, names_size) == 0);
        skip(c, names_size);
    } else {
        expect(c, read_count(c, 4) == 1);
        skip_name(c, version);
    }
}

int po_scan_fetched(const uint8_t *head, uint64_t received, uint64_t size, int version, const uint8_t *names,
                    uint64_t names_size, po_fetched *out) {
    cursor c = {head, received, 0, version >= FLEXIBLE_FROM, 1};
    expect_names(&c, version, names, names_size);
    skip(&c, 2 + 8 + 8 + (version >= LOG_START_FROM ? 8 : 0)); /* error, offsets */
    int64_t aborted = read_count(&c, 4);
    expect(&c, aborted >= -1);
    for (; c.ok && aborted > 0; aborted--) {
        skip(&c, PRODUCER_AND_OFFSET_BYTES);
        expect_no_tags(&c);
    }
    skip(&c, version >= RACK_FROM ? 4 : 0); /* preferred replica */
    int64_t length = read_count(&c, 4);
    expect(&c, length >= 0 && (uint64_t)length <= size - c.at);
    out->start = (int64_t)c.at;
    out->end = out->start + length;
    if (!c.ok || (uint64_t)out->end > received) {
        return c.ok;
    }
    skip(&c, (uint64_t)length);
    expect_no_tags(&c);
    expect_no_tags(&c);
    expect_no_tags(&c);
    return c.ok && c.at == size;
}
