/* How often processes wait for the lock of an arena that they share: built and run by bench/micro/contended.py.
 *
 * usage: contended READERS SECONDS WORK_US. READERS processes answer Fetches of 1 or 8 partitions: they find, copy what was found
 * (as the kernel does) and let go; then each does WORK_US of other work, as a worker does for a request. Another process
 * inserts: for every two Fetches a batch, of 1 to 64 KiB. Prints, for all together: lock calls, calls that waited, ns waited,
 * ns of the run, Fetches, insertions. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "pyfastcache.h"

enum { PARTITIONS = 64, ARENA_BYTES = 256 << 20, MOST = 8, HIT_BYTES = 64 << 10, RUN_BYTES = 64 << 10 };

typedef struct {
    volatile uint64_t fetches, inserts, stop, end[PARTITIONS];
} progress;

typedef struct {
    fc_arena *a;
    progress *done;
    int64_t slot[PARTITIONS];
    uint64_t work_ns, random;
} mix;

static uint64_t now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t below(mix *m, uint64_t bound) {
    m->random ^= m->random << 13;
    m->random ^= m->random >> 7;
    m->random ^= m->random << 17;
    return m->random % bound;
}

/* Other work: so much of the processor's time, whoever has it meanwhile. */
static void work(const mix *m) {
    uint64_t end = now_ns(CLOCK_PROCESS_CPUTIME_ID) + m->work_ns;
    while (now_ns(CLOCK_PROCESS_CPUTIME_ID) < end) {
    }
}

static void *map_shared(uint64_t size) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        abort();
    }
    return memory;
}

static void copy_all(mix *m, const fc_response *r, const uint8_t *hits) {
    static uint8_t to[MOST * HIT_BYTES * 2];
    uint64_t at = 0;
    for (uint64_t i = 0; i < r->hits; i++) {
        const fc_hit *hit = (const fc_hit *)(const void *)hits;
        for (uint64_t j = 0; j < hit->segments && at + hit->segment[j].length <= sizeof to; j++) {
            memcpy(to + at, fc_at(m->a, hit->segment[j].position), hit->segment[j].length);
            at += hit->segment[j].length;
        }
        hits += offsetof(fc_hit, segment) + hit->segments * sizeof(fc_segment);
    }
}

static void fetch(mix *m, uint32_t holder) {
    static uint8_t hits[MOST * sizeof(fc_hit)];
    int64_t words[MOST * 4];
    fc_taken taken[MOST];
    uint64_t count = below(m, 4) ? 1 : MOST;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t place = below(m, PARTITIONS), end = m->done->end[place], back = 1 + below(m, 20);
        const int64_t one[] = {m->slot[place], (int64_t)(end > back ? end - back : 0), INT64_MAX, HIT_BYTES};
        memcpy(&words[i * 4], one, sizeof one);
    }
    fc_response response = {.room_bytes = MOST * HIT_BYTES, .holder = holder};
    if (fc_find_all(m->a, words, count, 0, &response, hits, sizeof hits, taken) < 0) {
        abort();
    }
    copy_all(m, &response, hits);
    fc_release_all(m->a, &response, hits);
    work(m);
    __atomic_fetch_add(&m->done->fetches, 1, __ATOMIC_RELAXED);
}

static void write_big(uint8_t *at, int width, uint64_t value) {
    for (int i = width - 1; i >= 0; i--, value >>= 8) {
        at[i] = (uint8_t)value;
    }
}

static void insert(mix *m) {
    static uint8_t batch[RUN_BYTES] = {[16] = 2};
    uint64_t place = below(m, PARTITIONS), size = below(m, 4) ? 1024 : below(m, 2) ? 16384 : RUN_BYTES;
    uint64_t offset = m->done->end[place];
    fc_inserted out = {.covers_from = (int64_t)offset};
    write_big(batch, 8, offset);
    write_big(batch + 8, 4, size - 12);
    int rc = fc_insert(m->a, m->slot[place], batch, size, &out);
    if (rc < 0 || fc_evict_to(m->a, fc_data_bytes(m->a) / 32 * 31) < 0) {
        abort();
    }
    m->done->end[place] = offset + 1;
    m->done->inserts++;
}

static void run_reader(mix *m, uint32_t holder) {
    m->random = 88172645463325252u * (holder + 1);
    while (!m->done->stop) {
        fetch(m, holder);
    }
    _exit(0);
}

static void run_keeper(mix *m, uint64_t seconds) {
    uint64_t end = now_ns(CLOCK_MONOTONIC) + seconds * 1000000000u;
    while (now_ns(CLOCK_MONOTONIC) < end) {
        if (m->done->inserts * 2 > m->done->fetches) {
            sched_yield();
        } else {
            insert(m);
            work(m);
        }
    }
    m->done->stop = 1;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        return 2;
    }
    int readers = atoi(argv[1]);
    mix m = {.a = map_shared(ARENA_BYTES), .done = map_shared(sizeof(progress)), .random = 1};
    m.work_ns = strtoull(argv[3], NULL, 10) * 1000;
    fc_config config = {.size_bytes = ARENA_BYTES, .partitions_max = PARTITIONS, .ghosts_max = 1024, .nodes_max = 65536,
                        .block_min_bytes = 16384, .block_max_bytes = 1 << 20, .shared_bytes = 65536,
                        .pin_limit_bytes = ARENA_BYTES / 4};
    if (fc_format(m.a, &config) < 0 || fc_share(m.a) < 0) {
        return 1;
    }
    for (int i = 0; i < PARTITIONS; i++) {
        m.slot[i] = fc_open(m.a, (const uint8_t *)"0123456789abcdef", i);
    }
    while (m.a->evicted_bytes == 0) { /* full */
        insert(&m);
    }
    uint64_t calls = m.a->lock_calls, inserts = m.done->inserts;
    m.done->inserts = 0;
    for (int holder = 1; holder <= readers; holder++) {
        if (fork() == 0) {
            run_reader(&m, (uint32_t)holder);
        }
    }
    uint64_t begun = now_ns(CLOCK_MONOTONIC);
    run_keeper(&m, strtoull(argv[2], NULL, 10));
    uint64_t took = now_ns(CLOCK_MONOTONIC) - begun;
    while (wait(NULL) > 0) {
    }
    int rc = fc_check(m.a);
    printf("%lu %lu %lu %lu %lu %lu\n", (unsigned long)(m.a->lock_calls - calls), (unsigned long)m.a->lock_waits,
           (unsigned long)m.a->lock_waited_ns, (unsigned long)took, (unsigned long)m.done->fetches,
           (unsigned long)m.done->inserts);
    return rc < 0 || m.a->pins != 0 || inserts == 0;
}
