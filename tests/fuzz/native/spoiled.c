/* Spoiled record batches into the cache; built with sanitizers by test_native_batches.py.
 *
 * usage: spoiled ARENA_BYTES SHARED_BYTES OBSERVE < rows. A row: size (4 bytes), covers_from (8), both little-endian,
 * and so many bytes. Whatever they are, an append or an insert takes them or says what is wrong, what was taken comes back as it
 * was given, and the arena is in order after each; each row is copied to memory of its very size, so that a read
 * beyond it is seen. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pyfastcache.h"
#include "rows.h"

enum { PARTITIONS = 3, ROW_HEAD = 12 };

static uint64_t placed, taken, refused, compared;

/* What is found at the run's first offset is the run, as far as it goes. */
static void compare(fc_arena *a, int64_t slot, const fc_inserted *in, const uint8_t *run, uint64_t size) {
    static fc_hit hit;
    if (fc_lookup(a, 0, slot, in->first_offset, INT64_MAX, UINT64_MAX, 1, &hit) < 0) {
        return;
    }
    if (!a->observe && hit.segments > 0 && in->stored_bytes == size && !in->skipped_bytes) {
        uint64_t length = hit.segment[0].length < size ? hit.segment[0].length : size;
        MUST(memcmp(fc_at(a, hit.segment[0].position), run, length) == 0);
        compared++;
    }
    if (hit.pinned) {
        MUST(fc_release(a, 0, hit.segment, hit.segments) == 0);
    }
}

static void insert(fc_arena *a, int64_t slot, const uint8_t *run, uint64_t size, int64_t covers_from) {
    fc_placed placing[2] = {{slot, 0, (int64_t)size, covers_from, 3, 0, 0}, {slot, -1, (int64_t)size + 1, 0, 3, 0, 0}};
    MUST(fc_append(a, run, size, placing, 0, 2, UINT64_MAX) == 2 && placing[1].run_end == FC_BAD_BATCH);
    int64_t ends = placing[0].run_end;
    MUST(ends > covers_from || ends == FC_BAD_BATCH || ends == FC_NOT_STORED);
    MUST(fc_check(a) == 0);
    placed += ends >= 0;
    fc_inserted out = {.covers_from = covers_from};
    int rc = fc_insert(a, slot, run, size, &out);
    MUST(rc == 0 || rc == FC_BAD_BATCH || rc == FC_NO_ROOM);
    MUST(out.position <= size);
    MUST(fc_check(a) == 0);
    if (rc < 0) {
        refused++;
        return;
    }
    taken++;
    if (out.stored_bytes > 0) {
        compare(a, slot, &out, run, size);
    }
    if (out.conflict_offset >= 0) {
        MUST(fc_truncate(a, slot, out.conflict_offset) >= 0);
    }
    MUST(fc_check(a) == 0);
}

int main(int argc, char **argv) {
    MUST(argc == 4);
    uint64_t size = strtoull(argv[1], NULL, 10);
    fc_arena *a = aligned_alloc(4096, size);
    MUST(a != NULL);
    memset(a, 0, size);
    fc_config config = {.size_bytes = size, .partitions_max = PARTITIONS, .ghosts_max = 8,
                        .nodes_max = 32 + size / 10240, .block_min_bytes = 1024, .block_max_bytes = size / 16,
                        .shared_bytes = strtoull(argv[2], NULL, 10), .pin_limit_bytes = size / 4,
                        .observe = strtoull(argv[3], NULL, 10)};
    MUST(fc_format(a, &config) == 0);
    int64_t slot[PARTITIONS];
    for (int i = 0; i < PARTITIONS; i++) {
        uint8_t topic[16] = {(uint8_t)i};
        slot[i] = fc_open(a, topic, i);
    }
    uint8_t head[ROW_HEAD];
    for (uint64_t row = 0; fread(head, 1, ROW_HEAD, stdin) == ROW_HEAD; row++) {
        uint64_t bytes = read_little(head, 4);
        uint8_t *run = malloc(bytes);
        MUST(run != NULL && fread(run, 1, bytes, stdin) == bytes);
        insert(a, slot[row % PARTITIONS], run, bytes, (int64_t)read_little(head + 4, 8));
        free(run);
    }
    printf("placed %llu ", (unsigned long long)placed);
    printf("taken %llu refused %llu compared %llu\n", (unsigned long long)taken, (unsigned long long)refused,
           (unsigned long long)compared);
    free(a);
    return 0;
}
