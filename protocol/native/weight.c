/* How much a Produce or Fetch request names, counted before anybody reads it (ProduceRequest.json, FetchRequest.json). */
#include "cursor.h"
#include "ordinary.h"

#define PRODUCE 0
#define PRODUCE_FLEXIBLE_FROM 9
#define FETCH_LOG_START_FROM 5
#define FETCH_SESSIONS_FROM 7
#define FETCH_LEADER_EPOCH_FROM 9
#define FETCH_RACK_FROM 11
#define FETCH_FLEXIBLE_FROM 12
#define FETCH_REPLICA_STATE_FROM 15
#define TOPIC_IDS_FROM 13
#define TOPIC_ID_BYTES 16
#define TEXT_BYTES 256 /* a text weighs one for each of these */

typedef struct {
    cursor c;
    int64_t weight, most;
} scale;

/* So much more. Whoever is over the limit is not read on. */
static void add(scale *s, int64_t weight) {
    expect(&s->c, weight >= 0);
    s->weight += s->c.ok ? weight : 0;
}

static int goes_on(const scale *s) {
    return s->c.ok && s->weight <= s->most;
}

/* An array's count: all its elements are added before one is read. */
static int64_t add_count(scale *s) {
    int64_t count = read_count(&s->c, 4);
    add(s, count);
    return count;
}

static void add_text(scale *s, int may_be_null) {
    int64_t length = read_count(&s->c, 2);
    skip_text(&s->c, length, may_be_null);
    add(s, length > 0 ? length / TEXT_BYTES : 0);
}

static void add_tags(scale *s) {
    if (!s->c.flexible) {
        return;
    }
    int64_t count = read_uvarint(&s->c);
    add(s, count);
    for (; count > 0 && goes_on(s); count--) {
        read_uvarint(&s->c);
        int64_t size = read_uvarint(&s->c);
        skip(&s->c, (uint64_t)size);
    }
}

static void add_topic(scale *s, int version) {
    if (version >= TOPIC_IDS_FROM) {
        skip(&s->c, TOPIC_ID_BYTES);
    } else {
        add_text(s, 0);
    }
}

/* Topics of partitions, each a `width` of bytes, records where there are some, and tags where it has them. */
static void add_topics(scale *s, int version, unsigned width, int has_records, int has_tags) {
    for (int64_t topics = add_count(s); topics > 0 && goes_on(s); topics--) {
        add_topic(s, version);
        for (int64_t left = add_count(s); left > 0 && goes_on(s); left--) {
            skip(&s->c, width);
            if (has_records) {
                skip_text(&s->c, read_count(&s->c, 4), 1);
            }
            if (has_tags) {
                add_tags(s);
            }
        }
        if (goes_on(s)) {
            add_tags(s);
        }
    }
}

static void weigh_produce(scale *s, int version) {
    s->c.flexible = version >= PRODUCE_FLEXIBLE_FROM;
    add_text(s, 1); /* transactional id */
    skip(&s->c, 2 + 4);
    add_topics(s, version, 4, 1, 1);
}

static void weigh_fetch(scale *s, int version) {
    s->c.flexible = version >= FETCH_FLEXIBLE_FROM;
    skip(&s->c, (version < FETCH_REPLICA_STATE_FROM ? 4 : 0) + 4 + 4 + 4 + 1);
    skip(&s->c, version >= FETCH_SESSIONS_FROM ? 4 + 4 : 0);
    unsigned width = 4 + 8 + 4 + (version >= FETCH_LOG_START_FROM ? 8 : 0) +
                     (version >= FETCH_LEADER_EPOCH_FROM ? 4 : 0) + (version >= FETCH_FLEXIBLE_FROM ? 4 : 0);
    add_topics(s, version, width, 0, 1);
    if (version >= FETCH_SESSIONS_FROM && goes_on(s)) {
        add_topics(s, version, 4, 0, 0); /* what is forgotten */
    }
    if (version >= FETCH_RACK_FROM && goes_on(s)) {
        add_text(s, 0);
    }
}

int64_t po_weigh(const uint8_t *frame, uint64_t size, uint64_t body_start, int api_key, int version, int64_t most) {
    scale s = {{frame, size, 0, 0, 1}, 0, most};
    skip(&s.c, body_start);
    if (api_key == PRODUCE) {
        weigh_produce(&s, version);
    } else {
        weigh_fetch(&s, version);
    }
    if (goes_on(&s)) {
        add_tags(&s);
    }
    return s.c.ok ? s.weight : -1;
}
