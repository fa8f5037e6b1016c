/* A process of several dies at any moment of a call: run by test_native.py.
 *
 * usage: killing SEED. A keeper (holder 0) and readers share an arena. Each call is made by a child, instruction by instruction
 * (ptrace), and after each instruction that changes the arena such a child is killed: the kernel then tells of its lock. Those
 * who live go on. A dead reader leaves no pin; a dead keeper leaves an arena that is torn for everybody, or one that the next
 * keeper takes over while readers keep their pins. Exit code 77: ptrace is forbidden. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "world.h"

enum { FORBIDDEN = 77, STEPS_MAX = 40000, SLOTS = 3, WANTED = 40, ME = 3, OTHER = 5, ARENA_BYTES = 96 << 10, STEPS_OF_A_KIND = 60000 };
enum { LOOKUP, GATHER, FIND_ALL, RELEASE, RELEASE_LIMBO, REST, SPAN, EDGES, ENDS, AGE, HEAD, READS,
       OWN_LOOKUP = READS, OWN_RELEASE, INSERT, APPEND, RESERVE, GIVE_BACK, TRUNCATE, DROP, EVICT, OPEN, OF_DEAD, TAKE_OVER, KINDS };

typedef struct {
    world w;
    uint8_t *before, *seen;        /* the arena before a call, and after the last step */
    uint8_t *run;                  /* what the keeper inserts */
    uint64_t run_size, lent_at;
    fc_hit mine, other, own;       /* pins of the reader that dies, of the one that does not, and of the keeper */
    fc_hit limbo_mine, limbo_own;
    uint64_t changed[STEPS_MAX];   /* steps of a call after which the arena is another */
    uint64_t steps;                /* all of that call */
    uint64_t kills, owner_died, undone, torn, whole;
} killer;

static int64_t slot_of(killer *k, int i) { return k->w.partition[i].slot; }

static void find_all(killer *k) {
    static int64_t words[WANTED * 4];
    static fc_taken taken[WANTED];
    static uint8_t hits[WANTED * sizeof(fc_hit)];
    for (int i = 0; i < WANTED; i++) {
        const int64_t one[] = {slot_of(k, i % SLOTS), k->w.partition[i % SLOTS].end - 1, INT64_MAX, 1 << 20};
        memcpy(&words[i * 4], one, sizeof one);
    }
    fc_response response = {.room_bytes = 1 << 20, .holder = ME};
    MUST(fc_find_all(k->w.arena, words, WANTED, 0, &response, hits, sizeof hits, taken) == 0 && response.hits == WANTED);
    fc_release_all(k->w.arena, &response, hits);
}

static void read_as(killer *k, int kind) {
    static fc_hit hit;
    static int64_t ends[WANTED], places[WANTED * 2];
    static uint8_t head[FC_BATCH_HEADER];
    fc_arena *a = k->w.arena;
    fc_edges edges;
    int64_t slot = slot_of(k, 0), end = k->w.partition[0].end;
    switch (kind) {
    case LOOKUP: MUST(fc_lookup(a, ME, slot, end - 1, INT64_MAX, 1, 1, &hit) == 0 && hit.pinned == FC_PINNED); break;
    case GATHER: MUST(fc_lookup(a, ME, slot, end - 12, INT64_MAX, 1 << 20, 1, &hit) == 0 && hit.pinned == FC_PINNED_TO_COPY); break;
    case FIND_ALL: find_all(k); break;
    case RELEASE: MUST(fc_release(a, ME, k->mine.segment, k->mine.segments) == 0); break;
    case RELEASE_LIMBO: MUST(fc_release(a, ME, k->limbo_mine.segment, k->limbo_mine.segments) == 0); break;
    case REST: MUST(fc_release_holder(a, ME, ME) > 0); break;
    case SPAN: MUST(fc_span(a, slot, end - 1, INT64_MAX, 1, 1, &hit) == 0); break;
    case EDGES: MUST(fc_find_edges(a, slot, 0, &edges) == 0); break;
    case ENDS: MUST(fc_contiguous_ends(a, places, WANTED, ends) == 0); break;
    case AGE: MUST(fc_age(a, slot, end - 1) > 0); break;
    default: MUST(fc_copy_head(a, slot, end - 1, head) == 0); break;
    }
}

static void change_as(killer *k, int kind) {
    static fc_hit hit;
    fc_arena *a = k->w.arena;
    int64_t slot = slot_of(k, 0), end = k->w.partition[0].end;
    fc_inserted inserted = {.covers_from = end};
    fc_placed placed = {slot, 0, (int64_t)k->run_size, end, 9, 0, 0};
    switch (kind) {
    case OWN_LOOKUP: MUST(fc_lookup(a, 0, slot, end - 1, INT64_MAX, 1, 1, &hit) == 0 && hit.pinned == FC_PINNED); break;
    case OWN_RELEASE: MUST(fc_release(a, 0, k->limbo_own.segment, k->limbo_own.segments) == 0); break;
    case INSERT: MUST(fc_insert(a, slot, k->run, k->run_size, &inserted) == 0 && inserted.stored_batches == 1); break;
    case APPEND: MUST(fc_append(a, k->run, k->run_size, &placed, 0, 1, UINT64_MAX) == 1 && placed.run_end > end); break;
    case RESERVE: MUST(fc_reserve(a, 3000, UINT64_MAX) > 0); break;
    case GIVE_BACK: MUST(fc_give_back(a, fc_at(a, k->lent_at)) == 0); break;
    case TRUNCATE: MUST(fc_truncate(a, slot, end - 20) == 0); break;
    case DROP: MUST(fc_drop(a, slot_of(k, 1)) == 0); break;
    case EVICT: MUST(fc_evict_to(a, a->data_units * FC_UNIT / 2) > 0); break;
    case OPEN: MUST(fc_open(a, (const uint8_t *)"another topic id", 7) > 0); break;
    case OF_DEAD: MUST(fc_release_holder(a, ME, 0) > 0); break;
    default: MUST(fc_take_over(a, &k->w.config, 1u << ME | 1u << OTHER) == 0); break;
    }
}

static void make(killer *k, int kind) {
    if (kind < READS) {
        read_as(k, kind);
    } else {
        change_as(k, kind);
    }
}

/* The call, by a child that stops at each of its instructions. */
static pid_t begin(killer *k, int kind) {
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) {
            _exit(FORBIDDEN);
        }
        raise(SIGSTOP);
        make(k, kind);
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status)) {
        exit(WEXITSTATUS(status));
    }
    return child;
}

/* Whether it goes on after one instruction. */
static int step(pid_t child) {
    int status;
    MUST(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) == 0 && waitpid(child, &status, 0) == child);
    MUST(WIFSTOPPED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
    return WIFSTOPPED(status);
}

/* After which of its steps the arena is another. */
static uint64_t find_changes(killer *k, int kind) {
    uint64_t count = 0;
    k->steps = 0;
    memcpy(k->seen, k->w.arena, ARENA_BYTES);
    for (pid_t child = begin(k, kind); step(child);) {
        k->steps++;
        if (memcmp(k->seen, k->w.arena, ARENA_BYTES) != 0) {
            memcpy(k->seen, k->w.arena, ARENA_BYTES);
            MUST(count < STEPS_MAX);
            k->changed[count++] = k->steps;
        }
    }
    return count;
}

static void kill_after(killer *k, int kind, uint64_t steps) {
    pid_t child = begin(k, kind);
    while (steps-- > 0) {
        MUST(step(child));
    }
    MUST(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    k->kills++;
    k->owner_died += ((uint32_t)k->w.arena->lock[0] & FUTEX_OWNER_DIED) != 0; /* glibc's mutex begins with its futex */
    k->undone += k->w.arena->undo_block != 0 && k->w.arena->changes % 2 == 0;
}

static void check_bytes(killer *k, const fc_hit *hit) {
    for (uint64_t i = 0; i < hit->segments; i++) {
        const fc_segment *s = &hit->segment[i];
        MUST(memcmp(fc_at(k->w.arena, s->position), k->before + s->position, s->length) == 0);
    }
}

/* Whoever keeps the arena can do everything with it; the other reader has its pins until it lets go. */
static void go_on(killer *k) {
    fc_arena *a = k->w.arena;
    uint8_t topic[16];
    int32_t index;
    MUST(fc_check(a) == 0 && a->pins_of[OTHER] == k->other.segments);
    MUST(fc_release_holder(a, ME, 0) >= 0 && a->pins_of[ME] == 0 && fc_check(a) == 0);
    check_bytes(k, &k->other);
    int64_t rc;
    while ((rc = fc_evict_to(a, 0)) == FC_RECLAIM) {
    }
    MUST(rc >= 0 && a->blocks == 0 && fc_check(a) == 0);
    for (uint64_t place = 0; place < a->partitions_touched; place++) {
        int64_t slot = fc_slot_at(a, place, topic, &index);
        MUST(slot == FC_STALE || fc_drop(a, slot) == 0);
    }
    int64_t slot = fc_open(a, (const uint8_t *)"one more topic..", 8);
    fc_inserted inserted = {.covers_from = 0};
    MUST(slot >= 0 && fc_insert(a, slot, k->run, k->run_size, &inserted) == 0 && inserted.stored_batches == 1);
    check_bytes(k, &k->other);
    MUST(fc_release(a, OTHER, k->other.segment, k->other.segments) == 0 && fc_check(a) == 0 && !a->torn);
}

static void judge_reader(killer *k) {
    check_bytes(k, &k->own);
    go_on(k);
    MUST(k->w.arena->pins == k->own.segments + k->limbo_own.segments + 1);
    k->whole++;
}

/* By the reader that lives; then the next keeper comes. */
static void judge_keeper(killer *k) {
    static fc_hit hit;
    fc_arena *a = k->w.arena;
    int rc = fc_lookup(a, OTHER, slot_of(k, 2), k->w.partition[2].end - 1, INT64_MAX, 1, 1, &hit);
    if (rc == FC_TORN) {
        MUST(a->changes % 2 == 1 && a->torn && fc_take_over(a, &k->w.config, 1u << OTHER) == FC_TORN);
        MUST(fc_release(a, OTHER, k->other.segment, k->other.segments) == FC_TORN && fc_check(a) == FC_TORN);
        check_bytes(k, &k->other);
        k->torn++;
        return;
    }
    MUST(a->changes % 2 == 0 && (rc == 0 || rc == FC_NOT_STORED));
    MUST(rc < 0 || fc_release(a, OTHER, hit.segment, hit.segments) == 0);
    uint64_t pins = a->pins_of[ME];
    MUST(fc_take_over(a, &k->w.config, 1u << ME | 1u << OTHER) == 0);
    MUST(a->pins == pins + k->other.segments && a->pins_of[ME] == pins && a->lent_bytes == 0 && a->shared);
    go_on(k);
    MUST(a->pins == 0 && a->limbo_blocks == a->limbo_idle);
    k->whole++;
}

/* After each change of a short call, and some of a long one. */
static void kill_each(killer *k, int kind) {
    uint64_t count = find_changes(k, kind), few = STEPS_OF_A_KIND / k->steps, died = k->owner_died;
    uint64_t every = count / (few < 6 ? 6 : few) + 1;
    memcpy(k->w.arena, k->before, ARENA_BYTES);
    for (uint64_t i = 0; i < count; i += every) {
        kill_after(k, kind, k->changed[i]);
        if (kind < READS) {
            judge_reader(k);
        } else {
            judge_keeper(k);
        }
        memcpy(k->w.arena, k->before, ARENA_BYTES);
    }
    MUST(count > 3 && k->owner_died > died);
}

/* Who finds a dead one's lock dies before it has undone what that one began: the one after does. */
static void kill_who_recovers(killer *k, int dies_in) {
    uint64_t count = find_changes(k, dies_in);
    memcpy(k->w.arena, k->before, ARENA_BYTES);
    for (uint64_t i = 0; i < count; i++) {
        kill_after(k, dies_in, k->changed[i]);
        if (k->w.arena->undo_block == 0) {
            memcpy(k->w.arena, k->before, ARENA_BYTES);
            continue;
        }
        memcpy(k->seen, k->w.arena, ARENA_BYTES);
        uint8_t *first = memcpy(malloc(ARENA_BYTES), k->w.arena, ARENA_BYTES);
        uint64_t changed[200], steps = 0, at = 0;
        for (pid_t child = begin(k, EDGES); step(child);) {
            at++;
            if (memcmp(k->seen, k->w.arena, ARENA_BYTES) != 0 && steps < 200) {
                memcpy(k->seen, k->w.arena, ARENA_BYTES);
                changed[steps++] = at;
            }
        }
        for (uint64_t j = 0; j < steps; j++) {
            memcpy(k->w.arena, first, ARENA_BYTES);
            kill_after(k, EDGES, changed[j]);
            judge_reader(k);
        }
        free(first);
        memcpy(k->w.arena, k->before, ARENA_BYTES);
        i += count / 6;
    }
}

static void insert_one(killer *k, partition_log *p, uint32_t length) {
    record_batch *b = &p->log[p->batches++];
    *b = (record_batch){p->end, p->end, 1, length, (uint32_t)next_random(&k->w), p->epoch};
    p->end++;
    uint64_t size;
    uint8_t *run = build_run(b, 1, &size);
    fc_inserted inserted = {.covers_from = b->base};
    MUST(fc_insert(k->w.arena, p->slot, run, size, &inserted) == 0);
    free(run);
}

static void pin(killer *k, uint32_t holder, const partition_log *p, fc_hit *hit) {
    MUST(fc_lookup(k->w.arena, holder, p->slot, p->end - 1, INT64_MAX, 1, 1, hit) == 0 && hit->pinned == FC_PINNED);
}

/* Pins in limbo and out of it, of all three, and memory on loan. */
static void set_up(killer *k) {
    fc_arena *a = k->w.arena;
    for (int i = 0; i < SLOTS; i++) {
        uint8_t topic[16] = {(uint8_t)i};
        k->w.partition[i].slot = fc_open(a, topic, i);
    }
    insert_one(k, &k->w.partition[0], 900);
    pin(k, ME, &k->w.partition[0], &k->limbo_mine);
    insert_one(k, &k->w.partition[1], 1500);
    pin(k, 0, &k->w.partition[1], &k->limbo_own);
    while (fc_evict_to(a, 0) == FC_RECLAIM) {
    }
    MUST(a->limbo_blocks == 2);
    for (int i = 0; i < 220; i++) {
        insert_one(k, &k->w.partition[i % SLOTS], 100 + (uint32_t)below(&k->w, 500));
    }
    pin(k, ME, &k->w.partition[1], &k->mine);
    pin(k, ME, &k->w.partition[2], &k->mine);
    pin(k, OTHER, &k->w.partition[2], &k->other);
    pin(k, 0, &k->w.partition[2], &k->own);
    int64_t lent = fc_reserve(a, 5000, UINT64_MAX);
    MUST(lent > 0 && fc_check(a) == 0 && a->evicted_blocks[FC_FOR_ROOM] > 0);
    k->lent_at = (uint64_t)lent;
}

static void *map_shared(uint64_t size) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(memory != MAP_FAILED);
    return memory;
}

int main(int argc, char **argv) {
    MUST(argc == 2);
    killer *k = calloc(1, sizeof(killer));
    k->w.random = strtoull(argv[1], NULL, 10) * 0x9e3779b97f4a7c15u + 1;
    k->w.arena = map_shared(ARENA_BYTES);
    k->before = malloc(ARENA_BYTES);
    k->seen = malloc(ARENA_BYTES);
    k->w.config = (fc_config){.size_bytes = ARENA_BYTES, .partitions_max = 8, .ghosts_max = 8, .nodes_max = 60,
                              .block_min_bytes = 1024, .block_max_bytes = 4096, .shared_bytes = 2048,
                              .pin_limit_bytes = ARENA_BYTES / 2, .lent_limit_bytes = ARENA_BYTES / 8};
    MUST(fc_format(k->w.arena, &k->w.config) == 0 && fc_share(k->w.arena) == 0);
    set_up(k);
    record_batch last = {k->w.partition[0].end, k->w.partition[0].end, 1, 2500, 1, 0};
    k->run = build_run(&last, 1, &k->run_size);
    memcpy(k->before, k->w.arena, ARENA_BYTES);
    for (int kind = 0; kind < KINDS; kind++) {
        kill_each(k, kind);
    }
    MUST(k->undone > 20 && k->torn > 40);
    kill_who_recovers(k, LOOKUP);
    printf("kills %lu owner_died %lu undone %lu torn %lu whole %lu\n", (unsigned long)k->kills, (unsigned long)k->owner_died,
           (unsigned long)k->undone, (unsigned long)k->torn, (unsigned long)k->whole);
    return 0;
}
