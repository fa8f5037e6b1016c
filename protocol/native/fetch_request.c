/* A Fetch as rows: one for each partition that it asks for, and for each that it forgets (FetchRequest.json). */
#include "cursor.h"
#include "ordinary.h"

#define FETCH 1
#define FIRST_VERSION 4
#define LOG_START_FROM 5
#define SESSIONS_FROM 7
#define LEADER_EPOCH_FROM 9
#define RACK_FROM 11
#define FLEXIBLE_FROM 12        /* and the epoch last fetched */
#define TOPIC_IDS_FROM 13
#define REPLICA_STATE_FROM 15   /* before it: the replica's id */
#define LAST_VERSION 18
#define TOPIC_ID_BYTES 16
#define REPLICA_STATE_TAG 1
#define NO_TAG -1
#define LEAST_BYTES 2           /* of what po_weigh counts, nothing takes less */
#define MOST_TAGS 1000          /* of one section (primitives.py, MOST_TAGS) */

_Static_assert(sizeof(po_fetch) == PO_FETCH_WORDS * 8, "po_fetch is words");
_Static_assert(sizeof(po_topic) == PO_TOPIC_WORDS * 8, "po_topic is words");
_Static_assert(sizeof(po_asked) == PO_ASKED_WORDS * 8, "po_asked is words");

typedef struct {                /* where topics and partitions go: the first `room` of each */
    po_topic *topics;
    po_asked *rows;
    int64_t room, topic_count, row_count;
} sink;

/* A tagged section. Where the content of its first field `wanted` begins, of at least `least_bytes`; 0: it has none. */
static uint64_t skip_tags(cursor *c, int64_t wanted, int64_t least_bytes) {
    uint64_t found = 0;
    int64_t count = c->flexible ? read_uvarint(c) : 0;
    expect(c, count <= MOST_TAGS);
    for (; count > 0 && c->ok; count--) {
        int64_t tag = read_uvarint(c);
        int64_t size = read_uvarint(c);
        if (tag == wanted && found == 0) {
            found = c->at;
            expect(c, size >= least_bytes);
        }
        skip(c, (uint64_t)size);
    }
    return found;
}

/* Whether the bytes are UTF-8, as Python decodes it strictly: the shortest form, no surrogates, up to U+10FFFF (RFC 3629). */
static int is_utf8(const uint8_t *text, uint64_t size) {
    for (uint64_t at = 0; at < size;) {
        uint8_t lead = text[at++];
        if (lead < 0x80) {
            continue;
        }
        uint64_t more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
        if (lead < 0xc2 || lead > 0xf4 || more > size - at) {
            return 0;
        }
        uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
        uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
        if (text[at] < low || text[at] > high) {
            return 0;
        }
        for (uint64_t end = at++ + more; at < end; at++) {
            if ((text[at] & 0xc0) != 0x80) {
                return 0;
            }
        }
    }
    return 1;
}

/* A text that must not be null; its first byte has index `start`. */
static void read_text(cursor *c, int64_t *start, int64_t *end) {
    int64_t length = read_count(c, 2);
    expect(c, length <= INT16_MAX); /* of none may there be more (primitives.py, MOST_TEXT_BYTES) */
    *start = (int64_t)c->at;
    skip_text(c, length, 0);
    *end = (int64_t)c->at;
    expect(c, c->ok && is_utf8(c->bytes + *start, (uint64_t)(*end - *start)));
}

static void read_topic(cursor *c, int64_t version, po_topic *out) {
    if (version >= TOPIC_IDS_FROM) {
        out->start = (int64_t)c->at;
        skip(c, TOPIC_ID_BYTES);
        out->end = (int64_t)c->at;
    } else {
        read_text(c, &out->start, &out->end);
    }
    out->partitions = read_array(c);
}

/* What is asked of a partition, behind its index. */
static void read_asked(cursor *c, int64_t version, po_asked *out) {
    out->current_leader_epoch = version >= LEADER_EPOCH_FROM ? read_int(c, 4) : -1;
    out->fetch_offset = read_int(c, 8);
    out->last_fetched_epoch = version >= FLEXIBLE_FROM ? read_int(c, 4) : -1;
    out->log_start_offset = version >= LOG_START_FROM ? read_int(c, 8) : -1;
    out->max_bytes = read_int(c, 4);
    skip_tags(c, NO_TAG, 0);
}

/* The topics asked for; `names_end`: NULL if they are forgotten, of whose partitions there are indices alone. */
static void scan_topics(cursor *c, int64_t version, sink *into, int64_t *names_end) {
    for (int64_t topics = read_array(c); topics > 0 && c->ok; topics--) {
        po_topic topic;
        read_topic(c, version, &topic);
        for (int64_t left = topic.partitions; left > 0 && c->ok; left--) {
            po_asked row = {.partition = read_int(c, 4)};
            if (names_end != NULL) {
                *names_end = into->row_count == 0 ? (int64_t)c->at : *names_end;
                read_asked(c, version, &row);
            }
            if (into->row_count < into->room) {
                into->rows[into->row_count] = row;
            }
            into->row_count++;
        }
        skip_tags(c, NO_TAG, 0);
        if (into->topic_count < into->room) {
            into->topics[into->topic_count] = topic;
        }
        into->topic_count++;
    }
}

/* All before the topics. */
static void scan_head(cursor *c, po_fetch *out) {
    skip(c, 4);
    expect(c, read_int(c, 2) == FETCH);
    out->version = read_int(c, 2);
    expect(c, out->version >= FIRST_VERSION && out->version <= LAST_VERSION);
    out->correlation_id = read_int(c, 4);
    skip_text(c, read_int(c, 2), 1); /* the client id is in the old encoding always */
    out->client_id_end = (int64_t)c->at;
    c->flexible = out->version >= FLEXIBLE_FROM;
    skip_tags(c, NO_TAG, 0);
    out->body_start = (int64_t)c->at;
    out->replica_id = out->version < REPLICA_STATE_FROM ? read_int(c, 4) : -1;
    out->max_wait_ms = read_int(c, 4);
    out->min_bytes = read_int(c, 4);
    out->max_bytes = read_int(c, 4);
    out->isolation_level = read_int(c, 1);
    int has_session = out->version >= SESSIONS_FROM;
    out->session_at = has_session ? (int64_t)c->at : -1;
    out->session_id = has_session ? read_int(c, 4) : 0;
    out->session_epoch = has_session ? read_int(c, 4) : -1;
    out->names_start = (int64_t)c->at;
}

/* All behind the partitions asked for. */
static void scan_rest(cursor *c, po_fetch *out, sink *into) {
    if (out->version >= SESSIONS_FROM) {
        scan_topics(c, out->version, into, NULL);
    }
    out->forgotten = into->row_count - out->partitions;
    out->topics = into->topic_count;
    out->rack_start = out->rack_end = 0;
    if (out->version >= RACK_FROM) {
        read_text(c, &out->rack_start, &out->rack_end);
    }
    int has_state = out->version >= REPLICA_STATE_FROM;
    uint64_t at = skip_tags(c, has_state ? REPLICA_STATE_TAG : NO_TAG, 4);
    if (c->ok && at != 0) {
        cursor state = {c->bytes, c->size, at, 1, 1};
        out->replica_id = read_int(&state, 4); /* since version 15 (KIP-903) */
    }
}

int64_t po_scan_fetch(const uint8_t *frame, uint64_t size, int64_t most, po_fetch *out, po_topic *topics,
                      po_asked *rows, int64_t room) {
    cursor c = {frame, size, 0, 0, 1};
    sink into = {topics, rows, room, 0, 0};
    scan_head(&c, out);
    if (!c.ok) {
        return PO_MALFORMED;
    }
    if (size > (uint64_t)(LEAST_BYTES * most)) {
        int64_t weight = po_weigh(frame, size, (uint64_t)out->body_start, FETCH, (int)out->version, most);
        if (weight < 0 || weight > most) {
            return weight < 0 ? PO_MALFORMED : PO_WIDE;
        }
    }
    scan_topics(&c, out->version, &into, &out->names_end);
    out->partitions = into.row_count;
    out->names_end = into.row_count == 0 ? (int64_t)c.at : out->names_end;
    scan_rest(&c, out, &into);
    return c.ok ? (out->topics > into.row_count ? out->topics : into.row_count) : PO_MALFORMED;
}
