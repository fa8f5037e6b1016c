/* How long fc_lookup and fc_insert take without Python: built and run by bench/micro/cache.py.
 *
 * usage: lookup BATCHES PARTITIONS LOOKUPS. Prints "lookup_ns insert_ns" of batches of 100 bytes, spread evenly over
 * the partitions; offsets looked up are random, so that neither index nor data is in the processor's caches. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pyfastcache.h"

enum { BATCH_BYTES = 100 };

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void write_big(uint8_t *at, uint64_t value, int width) {
    for (int i = width; i-- > 0; value >>= 8) {
        at[i] = (uint8_t)value;
    }
}

static double insert_all(fc_arena *a, const int64_t *slots, uint64_t partitions, uint64_t batches) {
    uint8_t batch[BATCH_BYTES] = {0};
    write_big(batch + 8, BATCH_BYTES - 12, 4);
    batch[16] = 2;
    double begun = now_ns();
    for (uint64_t i = 0; i < batches; i++) {
        fc_inserted out = {.covers_from = (int64_t)(i / partitions)};
        write_big(batch, i / partitions, 8);
        if (fc_insert(a, slots[i % partitions], batch, BATCH_BYTES, &out) < 0) {
            abort();
        }
    }
    return (now_ns() - begun) / (double)batches;
}

static double look_up(fc_arena *a, const int64_t *slots, uint64_t partitions, uint64_t batches, uint64_t lookups) {
    static fc_hit hit;
    uint64_t random = 88172645463325252u;
    double begun = now_ns();
    for (uint64_t i = 0; i < lookups; i++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        int64_t offset = (int64_t)(random % (batches / partitions));
        if (fc_lookup(a, 0, slots[random / batches % partitions], offset, INT64_MAX, 1, 1, &hit) < 0 ||
            fc_release(a, 0, hit.segment, hit.segments) < 0) {
            abort();
        }
    }
    return (now_ns() - begun) / (double)lookups;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        return 2;
    }
    uint64_t batches = strtoull(argv[1], NULL, 10), partitions = strtoull(argv[2], NULL, 10);
    uint64_t size = (uint64_t)1 << 30;
    fc_arena *a = aligned_alloc(4096, size);
    memset(a, 0, size);
    fc_config config = {.size_bytes = size, .partitions_max = partitions, .ghosts_max = 1024,
                        .nodes_max = (size / 4) / sizeof(fc_node), .block_min_bytes = 4096,
                        .block_max_bytes = 1 << 20, .pin_limit_bytes = size / 4};
    int64_t *slots = calloc(partitions, sizeof(int64_t));
    uint8_t topic[16] = {0};
    if (fc_format(a, &config) < 0) {
        return 1;
    }
    for (uint64_t i = 0; i < partitions; i++) {
        slots[i] = fc_open(a, topic, (int32_t)i);
    }
    double insert_ns = insert_all(a, slots, partitions, batches);
    if (a->entries != batches) {
        return 1;
    }
    printf("%.0f %.0f\n", look_up(a, slots, partitions, batches, strtoull(argv[3], NULL, 10)), insert_ns);
    return 0;
}
