/* The driver's steps with lent memory: a request is received, perhaps acknowledged, and let go of at any time. */
#ifndef LENDING_H
#define LENDING_H

#include "world.h"

enum { AROUND_MAX = 200 };

/* Whatever was evicted, truncated or dropped meanwhile: as long as it is lent, the memory is its holder's. */
static void give_back(world *w, loan *l) {
    if (l->memory == NULL) {
        return;
    }
    MUST(memcmp(l->memory, l->expected, l->size) == 0);
    MUST(fc_give_back(w->arena, l->memory) == 0);
    MUST(fc_give_back(w->arena, l->memory) == FC_STALE);
    free(l->expected);
    *l = (loan){NULL, 0, NULL};
}

/* A request of `size` bytes that has the batch at `at`, as it was sent. */
static void receive(world *w, loan *l, uint64_t at, const uint8_t *sent, uint64_t length) {
    for (uint64_t i = 0; i < l->size; i++) {
        l->memory[i] = (uint8_t)next_random(w);
    }
    memcpy(l->memory + at, sent, length);
    memset(l->memory + at, 0, 8);
    memset(l->memory + at + 12, 0xff, 4);
    l->expected = malloc(l->size);
    memcpy(l->expected, l->memory, l->size);
}

/* One batch with its place: where its run ends, or a negative error. */
static int64_t append_one(world *w, int64_t slot, const uint8_t *buf, uint64_t start, uint64_t end, const record_batch *b,
                          uint64_t used_max) {
    fc_placed placed = {slot, (int64_t)start, (int64_t)end, b->base, b->epoch, 0, 0};
    while (fc_append(w->arena, buf, end, &placed, 0, 1, used_max) == 0) {
        MUST(placed.run_end == FC_RECLAIM);
        answer_reclaim(w);
    }
    return placed.run_end;
}

/* The acknowledgement: it is stored where it lies, or not at all. */
static void acknowledge(world *w, loan *l, uint64_t at, partition_log *p, const record_batch *b, const uint8_t *stored) {
    uint64_t before = w->arena->adopted_batches, end = at + b->length;
    int64_t rc = append_one(w, p->slot, l->memory, at, end, b, 0);
    MUST(rc == FC_NOT_STORED || rc >= b->base + b->count);
    MUST(w->arena->adopted_batches == before + (rc != FC_NOT_STORED));
    if (rc == FC_NOT_STORED) {
        return;
    }
    memcpy(l->expected + at, stored, b->length);
    fc_entry entry;
    MUST(fc_find_batch(w->arena, p->slot, b->base, &entry) == 0);
    MUST(entry.position == (uint64_t)(l->memory + at - (uint8_t *)w->arena));
    MUST(append_one(w, p->slot, l->memory, at, end, b, UINT64_MAX) == FC_NOT_STORED);
}

/* Another loan, or one comes back. What is not acknowledged is lost to the cache, as a dead client's is. */
static void step_lend(world *w, partition_log *p) {
    loan *l = &w->loans[below(w, LENT_MAX)];
    if (l->memory != NULL || p->batches == LOG_MAX) {
        give_back(w, l);
        return;
    }
    append(w, p);
    const record_batch *b = &p->log[p->batches - 1];
    uint64_t at = below(w, AROUND_MAX), size, lent = w->arena->lent_bytes;
    int64_t memory_at;
    l->size = at + b->length + below(w, AROUND_MAX);
    while ((memory_at = fc_reserve(w->arena, l->size, UINT64_MAX)) == FC_RECLAIM) {
        answer_reclaim(w);
    }
    if (memory_at < 0) {
        MUST(memory_at == FC_NO_ROOM && w->arena->lent_bytes == lent);
        return;
    }
    MUST(w->arena->lent_bytes > lent && w->arena->lent_bytes <= w->arena->lent_limit_bytes);
    uint8_t *stored = build_run(b, 1, &size);
    l->memory = fc_at(w->arena, (uint64_t)memory_at);
    receive(w, l, at, stored, size);
    if (below(w, 4)) {
        acknowledge(w, l, at, p, b, stored);
    }
    free(stored);
    if (below(w, 2)) {
        give_back(w, l);
    }
}

#endif
