/* What the driver's steps stand on: logs as a broker would hold them, hits in hand, memory on loan. */
#ifndef WORLD_H
#define WORLD_H

#include <stdlib.h>
#include <string.h>

#include "must.h"
#include "pyfastcache.h"

enum { PARTITIONS = 5, LOG_MAX = 4096, HELD_MAX = 12, LENT_MAX = 6, RUN_MAX = 6 };

typedef struct {
    int64_t base, covers_from;
    uint32_t count, length, seed;
    int32_t epoch;
} record_batch;

typedef struct {
    int64_t slot;
    int64_t end;
    int64_t start;
    int32_t epoch;
    uint32_t batches;
    record_batch log[LOG_MAX];
} partition_log;

typedef struct {
    fc_segment *segments;
    uint64_t count, size;
    uint8_t *expected;
    uint32_t holder;
} held_hit;

typedef struct {
    uint8_t *memory;           /* NULL: not on loan */
    uint64_t size;
    uint8_t *expected;         /* what its holder wrote there, as it was stored if it was */
} loan;

typedef struct {
    fc_arena *arena;
    fc_config config;
    uint64_t holders;          /* 1, or of a shared arena more */
    uint64_t random;
    partition_log partition[PARTITIONS];
    held_hit held[HELD_MAX];
    loan loans[LENT_MAX];
    uint64_t hits, conflicts, reclaims, copied, responses, deaths, refused, harmless, unaborted;
    uint64_t limbo, adopted;    /* counted before the last death */
} world;

static uint64_t next_random(world *w) {
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return w->random;
}

static uint64_t below(world *w, uint64_t bound) { return next_random(w) % bound; }

static void write_big(uint8_t *at, uint64_t value, int width) {
    for (int i = width; i-- > 0; value >>= 8) {
        at[i] = (uint8_t)value;
    }
}

static void write_batch(uint8_t *at, const record_batch *b) {
    uint64_t state = b->seed * 2654435761u + 1;
    for (uint32_t i = 0; i < b->length; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        at[i] = (uint8_t)(state >> 56);
    }
    write_big(at, (uint64_t)b->base, 8);
    write_big(at + 8, b->length - 12, 4);
    write_big(at + 12, (uint32_t)b->epoch, 4);
    at[16] = 2;
    write_big(at + 23, b->count - 1, 4);
}

static uint8_t *build_run(const record_batch *b, uint32_t batches, uint64_t *size) {
    *size = 0;
    for (uint32_t i = 0; i < batches; i++) {
        *size += b[i].length;
    }
    uint8_t *run = malloc(*size);
    for (uint64_t i = 0, at = 0; i < batches; at += b[i].length, i++) {
        write_batch(run + at, &b[i]);
    }
    return run;
}

static void release(world *w, held_hit *h) {
    if (h->segments == NULL) {
        return;
    }
    uint64_t at = 0;
    for (uint64_t i = 0; i < h->count; i++) {
        const fc_segment *s = &h->segments[i];
        MUST(memcmp(fc_at(w->arena, s->position), h->expected + at, s->length) == 0);
        at += s->length;
    }
    MUST(at == h->size);
    MUST(fc_release(w->arena, h->holder, h->segments, h->count) == 0);
    MUST(h->count == 0 || w->arena->pins > 0 || fc_release(w->arena, h->holder, h->segments, h->count) == FC_STALE);
    free(h->segments);
    free(h->expected);
    *h = (held_hit){0};
}

/* A pinned block is next: half of its owners let go, the others keep it in limbo. */
static inline void answer_reclaim(world *w) {
    w->reclaims++;
    for (int i = 0; i < HELD_MAX; i++) {
        held_hit *h = &w->held[i];
        for (uint64_t s = 0; s < h->count; s++) {
            if (h->segments[s].block == w->arena->reclaim_block && h->holder == 0 && below(w, 2)) {
                release(w, h);
                break;
            }
        }
    }
}

static inline void append(world *w, partition_log *p) {
    if (p->batches == LOG_MAX) {
        return;
    }
    record_batch *b = &p->log[p->batches++];
    b->covers_from = p->end;
    b->base = p->end + (below(w, 8) ? 0 : (int64_t)below(w, 20));
    b->count = 1 + (uint32_t)below(w, 30);
    int large = below(w, 20 * (w->arena->size_bytes / 65536)) == 0;
    b->length = FC_BATCH_HEADER + (uint32_t)below(w, large ? w->arena->batch_max_bytes * 2 : 900);
    b->epoch = p->epoch;
    b->seed = (uint32_t)next_random(w);
    p->end = b->base + b->count;
}

#endif
