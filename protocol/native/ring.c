/* The partitions of a client's Fetches as a ring: a request without a session, compared with the one before. */
#include <string.h>

#include "ordinary.h"

#define ROUNDS 4    /* of the ring, at most, for one request */

typedef struct {
    po_ring *ring;
    int64_t at;     /* the slot at which the next is expected */
    int64_t left;   /* steps */
} search;

static int64_t follow(const po_ring *ring, int64_t slot) {
    return slot + 1 < ring->slots ? slot + 1 : 0;
}

static int is_topic(const po_ring *ring, int64_t number, const uint8_t *name, int64_t size) {
    const po_topic *topic = &ring->topic[number];
    return topic->end - topic->start == size && memcmp(ring->names + topic->start, name, (size_t)size) == 0;
}

/* The number of the topic of that name, looked for from that of the expected slot on; -1: the ring does not have it. */
static int64_t find_topic(search *s, const uint8_t *name, int64_t size) {
    const po_ring *ring = s->ring;
    int64_t number = ring->topic_of[s->at];
    for (int64_t tried = 0; tried < ring->topics && s->left > 0; tried++, s->left--) {
        if (is_topic(ring, number, name, size)) {
            return number;
        }
        number = number + 1 < ring->topics ? number + 1 : 0;
    }
    return -1;
}

/* The slot of a partition that this request has not named yet; -1: there is none. */
static int64_t find_slot(search *s, int64_t topic, int64_t partition) {
    const po_ring *ring = s->ring;
    for (int64_t tried = 0; tried < ring->slots && s->left > 0; tried++, s->left--) {
        int64_t slot = s->at;
        s->at = follow(ring, slot);
        if (ring->topic_of[slot] == topic && ring->asked[slot].partition == partition) {
            return ring->mark[slot] == ring->request ? -1 : slot;
        }
    }
    return -1;
}

/* The slots of all rows into `order`. Returns 0 if one is missing. */
static int find_all(po_ring *ring, const uint8_t *frame, const po_topic *topics, int64_t topic_count,
                    const po_asked *rows) {
    search s = {ring, ring->next, ROUNDS * ring->slots};
    int64_t found = 0;
    for (int64_t i = 0; i < topic_count; i++) {
        const uint8_t *name = frame + topics[i].start;
        int64_t topic = topics[i].partitions > 0 ? find_topic(&s, name, topics[i].end - topics[i].start) : 0;
        for (int64_t left = topics[i].partitions; left > 0; left--, found++) {
            int64_t slot = topic < 0 ? -1 : find_slot(&s, topic, rows[found].partition);
            if (slot < 0) {
                return 0;
            }
            ring->mark[slot] = ring->request;
            ring->place[slot] = found;
            ring->order[found] = slot;
        }
    }
    return 1;
}

/* Slots that were named, and are no longer. */
static void drop_unnamed(po_ring *ring) {
    ring->drops = 0;
    for (int64_t slot = 0; slot < ring->slots; slot++) {
        if (ring->named[slot] && ring->mark[slot] != ring->request) {
            ring->named[slot] = 0;
            ring->dropped[ring->drops++] = slot;
        }
    }
}

int64_t po_match_ring(po_ring *ring, const uint8_t *frame, const po_topic *topics, int64_t topic_count,
                      const po_asked *rows, int64_t count, int64_t *changed) {
    int64_t before = ring->count, changes = 0, kept = 0;
    ring->count = ring->drops = 0;
    ring->request++;
    if (count > ring->slots || count == 0 || !find_all(ring, frame, topics, topic_count, rows)) {
        return PO_MALFORMED;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t slot = ring->order[i];
        kept += ring->named[slot];
        if (!ring->named[slot] || memcmp(&ring->asked[slot], &rows[i], sizeof(po_asked)) != 0) {
            ring->asked[slot] = rows[i];
            ring->named[slot] = 1;
            changed[changes++] = slot;
        }
    }
    ring->count = count;
    ring->next = ring->order[0];
    if (kept < before) {
        drop_unnamed(ring);
    }
    return changes;
}
