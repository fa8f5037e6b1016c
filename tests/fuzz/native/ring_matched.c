/* A ring of partitions and random requests, held against a plain search; built with sanitizers by test_native_ring.py.
 *
 * usage: ring_matched SEED ROUNDS. A request names some of the ring's partitions in any order; some name another partition,
 * or one twice. Each matched request is answered, with all the room there may be, and with one byte less than it takes. */
#include <stdio.h>
#include <string.h>

#include "draw.h"
#include "ordinary.h"

enum { MOST_SLOTS = 24, MOST_TOPICS = 6, NAME_BYTES = 5, REQUESTS = 40, ROOM = 1 << 14, ANSWERED_WORDS = 6 };

typedef struct {                /* a ring and all that it points to, of its very size */
    po_ring ring;
    int64_t *changed, *words;
    uint64_t *cuts;
} held;

typedef struct {
    uint8_t frame[MOST_SLOTS * NAME_BYTES * 2];
    po_topic topics[MOST_SLOTS * 2];
    po_asked rows[MOST_SLOTS * 2];
    int64_t slots[MOST_SLOTS * 2];  /* which it means; -1: the ring has none */
    int64_t topic_count, count;
} request;

static int64_t *allocate_words(int64_t count) {
    int64_t *words = allocate((size_t)count * sizeof *words);
    memset(words, 0, (size_t)count * sizeof *words);
    return words;
}

static void name_topic(uint8_t *name, int64_t number) {
    memset(name, 'a' + (int)number, NAME_BYTES);
}

static held make(void) {
    int64_t slots = 1 + (int64_t)draw(MOST_SLOTS), topics = 1 + (int64_t)draw(slots < MOST_TOPICS ? (uint64_t)slots : MOST_TOPICS);
    uint8_t *names = allocate((size_t)topics * NAME_BYTES);
    po_topic *topic = allocate((size_t)topics * sizeof *topic);
    for (int64_t i = 0; i < topics; i++) {
        name_topic(names + i * NAME_BYTES, i);
        topic[i] = (po_topic){i * NAME_BYTES, (i + 1) * NAME_BYTES, 0};
    }
    po_asked *asked = allocate((size_t)slots * sizeof *asked);
    held h = {.ring = {.slots = slots, .topics = topics, .names = names, .topic = topic, .asked = asked}};
    h.ring.topic_of = allocate_words(slots);
    h.ring.named = allocate_words(slots);
    h.ring.mark = allocate_words(slots);
    h.ring.place = allocate_words(slots);
    h.ring.order = allocate_words(slots);
    h.ring.dropped = allocate_words(slots);
    h.changed = allocate_words(slots);
    h.words = allocate_words(slots * ANSWERED_WORDS);
    h.cuts = allocate((size_t)slots * sizeof *h.cuts);
    for (int64_t i = 0; i < slots; i++) {
        h.ring.topic_of[i] = i * topics / slots;
        asked[i] = (po_asked){.partition = i, .fetch_offset = 1};
    }
    return h;
}

static void let_go(held *h) {
    free((void *)h->ring.names);
    free((void *)h->ring.topic);
    int64_t *parts[] = {h->ring.topic_of, h->ring.named, h->ring.mark, h->ring.place, h->ring.order, h->ring.dropped, h->changed, h->words};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        free(parts[i]);
    }
    free(h->ring.asked);
    free(h->cuts);
}

/* Adds a row of the topic; consecutive rows of one topic share an entry, mostly. */
static void add(request *r, int64_t topic, po_asked row, int64_t slot) {
    uint8_t name[NAME_BYTES];
    name_topic(name, topic);
    po_topic *last = &r->topics[r->topic_count > 0 ? r->topic_count - 1 : 0];
    if (r->topic_count == 0 || draw(8) == 0 || memcmp(r->frame + last->start, name, NAME_BYTES) != 0) {
        last = &r->topics[r->topic_count];
        *last = (po_topic){r->topic_count * NAME_BYTES, (r->topic_count + 1) * NAME_BYTES, 0};
        memcpy(r->frame + last->start, name, NAME_BYTES);
        r->topic_count++;
    }
    last->partitions++;
    r->slots[r->count] = slot;
    r->rows[r->count++] = row;
}

static request choose(const po_ring *ring) {
    request r = {.count = 0};
    int64_t first = (int64_t)draw((uint64_t)ring->slots);
    for (int64_t i = 0; i < ring->slots; i++) {
        int64_t slot = (first + i) % ring->slots;
        if (draw(6) == 0) {
            continue; /* left out */
        }
        po_asked row = ring->asked[slot];
        row.fetch_offset += draw(3) == 0;
        add(&r, ring->topic_of[slot], row, slot);
    }
    if (draw(8) == 0) {
        po_asked row = {.partition = ring->slots + 1};
        add(&r, (int64_t)draw(MOST_TOPICS), row, -1);
    } else if (draw(8) == 0 && r.count > 0) {
        int64_t again = r.slots[draw((uint64_t)r.count)];
        add(&r, ring->topic_of[again], ring->asked[again], -1);
    }
    return r;
}

/* What the request must change, by a plain look at each slot. */
static void hold(held *h, const request *r, const po_asked *asked, const int64_t *named, int64_t changes) {
    int64_t expected = 0, drops = 0;
    for (int64_t i = 0; i < r->count; i++) {
        int64_t slot = r->slots[i];
        MUST(h->ring.order[i] == slot && h->ring.place[slot] == i);
        if (!named[slot] || asked[slot].fetch_offset != r->rows[i].fetch_offset) {
            MUST(expected < changes && h->changed[expected] == slot);
            expected++;
        }
        MUST(h->ring.asked[slot].fetch_offset == r->rows[i].fetch_offset);
    }
    MUST(expected == changes && h->ring.count == r->count);
    for (int64_t slot = 0; slot < h->ring.slots; slot++) {
        int is_named = 0;
        for (int64_t i = 0; i < r->count; i++) {
            is_named |= r->slots[i] == slot;
        }
        MUST(h->ring.named[slot] == is_named);
        if (named[slot] && !is_named) {
            MUST(drops < h->ring.drops && h->ring.dropped[drops] == slot);
            drops++;
        }
    }
    MUST(drops == h->ring.drops);
}

static void answer(held *h) {
    static uint8_t out[ROOM];
    po_heading heading = {4 + (int64_t)draw(15), 7, 0, 0, 0};
    int64_t aborted[MOST_SLOTS * 2] = {0};
    for (int64_t slot = 0; slot < h->ring.slots; slot++) {
        h->words[slot * ANSWERED_WORDS + 4] = (int64_t)draw(3) - 1;
        h->words[slot * ANSWERED_WORDS + 5] = (int64_t)draw(2) * 100;
    }
    int64_t size = po_build_ring(&heading, &h->ring, h->words, aborted, out, ROOM, h->cuts);
    MUST(size > 0);
    uint8_t *exact = allocate((size_t)size), *less = allocate((size_t)size - 1);
    MUST(po_build_ring(&heading, &h->ring, h->words, aborted, exact, (uint64_t)size, h->cuts) == size);
    MUST(memcmp(exact, out, (size_t)size) == 0);
    MUST(po_build_ring(&heading, &h->ring, h->words, aborted, less, (uint64_t)size - 1, h->cuts) == PO_WIDE);
    free(exact);
    free(less);
}

int main(int argc, char **argv) {
    MUST(argc == 3);
    state = strtoull(argv[1], NULL, 10);
    uint64_t rounds = strtoull(argv[2], NULL, 10), matched = 0, refused = 0, dropped = 0;
    for (uint64_t round = 0; round < rounds; round++) {
        held h = make();
        for (int i = 0; i < REQUESTS; i++) {
            po_asked asked[MOST_SLOTS];
            int64_t named[MOST_SLOTS];
            memcpy(asked, h.ring.asked, (size_t)h.ring.slots * sizeof *asked);
            memcpy(named, h.ring.named, (size_t)h.ring.slots * sizeof *named);
            request r = choose(&h.ring);
            int is_known = r.count > 0;
            for (int64_t at = 0; at < r.count; at++) {
                is_known &= r.slots[at] >= 0;
            }
            int64_t changes = po_match_ring(&h.ring, r.frame, r.topics, r.topic_count, r.rows, r.count, h.changed);
            MUST((changes >= 0) == is_known);
            if (changes < 0) {
                refused++;
                break; /* of no use any more */
            }
            hold(&h, &r, asked, named, changes);
            answer(&h);
            matched++;
            dropped += (uint64_t)h.ring.drops;
        }
        let_go(&h);
    }
    printf("matched %llu refused %llu dropped %llu\n", (unsigned long long)matched, (unsigned long long)refused,
           (unsigned long long)dropped);
    return 0;
}
