/* How long the lock of a shared arena is held, and how long a keeper is busy, after a process has died: built and run by
 * bench/micro/contended.py. An arena of 1 GiB full of blocks of 16 KiB, of which a reader pins one in a thousand.
 *
 * Prints: blocks, us that fc_check_pins() holds the lock for, us of fc_release_holder() in all, us of fc_take_over() in all. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pyfastcache.h"

enum { BATCH_BYTES = 15000, BATCHES = 62000, PINNED_EACH = 1000, READER = 3, OTHER = 4 };

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000;
}

static void insert(fc_arena *a, int64_t slot, int64_t offset) {
    static uint8_t batch[BATCH_BYTES] = {[16] = 2};
    for (int i = 0; i < 8; i++) {
        batch[i] = (uint8_t)(offset >> (56 - 8 * i));
        batch[8 + i % 4] = (uint8_t)((BATCH_BYTES - 12) >> (24 - 8 * (i % 4)));
    }
    fc_inserted out = {.covers_from = offset};
    if (fc_insert(a, slot, batch, BATCH_BYTES, &out) < 0) {
        abort();
    }
}

int main(void) {
    static fc_hit hit;
    uint64_t size = (uint64_t)1 << 30;
    fc_arena *a = aligned_alloc(4096, size);
    memset(a, 0, size);
    fc_config config = {.size_bytes = size, .partitions_max = 4, .ghosts_max = 64, .nodes_max = 200000,
                        .block_min_bytes = 16384, .block_max_bytes = 16384, .pin_limit_bytes = size / 4};
    if (fc_format(a, &config) < 0 || fc_share(a) < 0) {
        return 1;
    }
    int64_t slot = fc_open(a, (const uint8_t *)"0123456789abcdef", 0);
    for (int64_t i = 0; i < BATCHES; i++) {
        insert(a, slot, i);
        if (i % PINNED_EACH == 0 && fc_lookup(a, READER, slot, i, INT64_MAX, 1, 1, &hit) < 0) {
            return 1;
        }
    }
    uint64_t begun = now_us();
    int rc = fc_check_pins(a);
    uint64_t checked = now_us();
    int64_t pins = fc_release_holder(a, READER, 0);
    uint64_t released = now_us();
    rc = rc < 0 ? rc : fc_take_over(a, &config, 1u << OTHER);
    printf("%lu %lu %lu %lu\n", (unsigned long)a->blocks, (unsigned long)(checked - begun), (unsigned long)(released - checked),
           (unsigned long)(now_us() - released));
    return rc < 0 || pins != BATCHES / PINNED_EACH;
}
