/* Lookups and insertions of a process alone, as a library that bench/micro/contended.py loads twice: with the native library
 * as it is, and with a former one. Batches are of 1,000 bytes, in an arena that stays in the processor's second cache, so
 * that what is compared are instructions, not the memory of whoever else runs. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pyfastcache.h"

enum { ARENA_BYTES = 512 << 10, BATCH_BYTES = 1000, SHORTEST = 60 };

#if FC_LAYOUT < 5
#define LOOK_UP(a, ...) fc_lookup(a, __VA_ARGS__)
#define RELEASE(a, ...) fc_release(a, __VA_ARGS__)
#else
#define LOOK_UP(a, ...) fc_lookup(a, 0, __VA_ARGS__)
#define RELEASE(a, ...) fc_release(a, 0, __VA_ARGS__)
#endif

typedef struct {
    fc_arena *a;
    int64_t slot, end;
    uint64_t random;
} alone;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void insert(alone *w) {
    static uint8_t batch[BATCH_BYTES] = {[16] = 2};
    for (int i = 0; i < 8; i++) {
        batch[i] = (uint8_t)(w->end >> (56 - 8 * i));
        batch[8 + i % 4] = (uint8_t)((BATCH_BYTES - 12) >> (24 - 8 * (i % 4)));
    }
    fc_inserted out = {.covers_from = w->end};
    if (fc_insert(w->a, w->slot, batch, BATCH_BYTES, &out) < 0 || out.stored_batches != 1) {
        abort();
    }
    w->end++;
}

static void look_up(alone *w) {
    static fc_hit hit;
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    int64_t offset = w->end - 1 - (int64_t)((w->random >> 33) % 200);
    if (LOOK_UP(w->a, w->slot, offset, INT64_MAX, 1, 1, &hit) < 0 || RELEASE(w->a, hit.segment, hit.segments) < 0) {
        abort();
    }
}

/* What a worker does for a Fetch of 8 partitions. */
static void respond(alone *w) {
    static uint8_t hits[8 * sizeof(fc_hit)];
    int64_t words[8 * 4];
    fc_taken taken[8];
    for (int i = 0; i < 8; i++) {
        w->random = w->random * 6364136223846793005u + 1442695040888963407u;
        const int64_t one[] = {w->slot, w->end - 1 - (int64_t)((w->random >> 33) % 200), INT64_MAX, 1500};
        memcpy(&words[4 * i], one, sizeof one);
    }
    fc_response response = {.room_bytes = 1 << 20};
    fc_find_all(w->a, words, 8, 0, &response, hits, sizeof hits, taken);
    if (response.hits != 8) {
        abort();
    }
    fc_release_all(w->a, &response, hits);
}

void *prepare(void) {
    alone *w = calloc(1, sizeof *w);
    w->a = aligned_alloc(4096, ARENA_BYTES);
    memset(w->a, 0, ARENA_BYTES);
    fc_config config = {.size_bytes = ARENA_BYTES, .partitions_max = 4, .ghosts_max = 64, .nodes_max = 400,
                        .block_min_bytes = 16384, .block_max_bytes = 16384, .pin_limit_bytes = ARENA_BYTES / 4};
    if (fc_format(w->a, &config) < 0) {
        abort();
    }
    w->slot = fc_open(w->a, (const uint8_t *)"0123456789abcdef", 0);
    for (int i = 0; i < 1000; i++) {
        insert(w);
    }
    return w;
}

/* ns of the processor for each call, of the shortest of some rounds of `calls`. Kinds: look up, insert, respond. */
double measure(void *of, int kind, int calls) {
    static void (*const kinds[])(alone *) = {look_up, insert, respond};
    double shortest = 1e30;
    for (int round = 0; round < SHORTEST; round++) {
        uint64_t begun = now_ns();
        for (int i = 0; i < calls; i++) {
            kinds[kind](of);
        }
        double each = (double)(now_ns() - begun) / calls;
        shortest = each < shortest ? each : shortest;
    }
    return shortest;
}
