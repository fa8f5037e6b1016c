/* A process that dies at any moment of a change: run by test_native.py.
 *
 * usage: stepping SEED ROUNDS EACH ARENA_BYTES. Random calls of the library; EACH of each kind are made by a child that shares
 * the arena, instruction by instruction (ptrace). After each instruction that has changed the arena, what a kill would leave is
 * copied and taken over: it is refused, or it has batches of the log alone, whole, and bears everything. Exit code 77:
 * ptrace is forbidden. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "world.h"

enum { OPEN = 3, TOPICS_MAX = 255, FORBIDDEN = 77, SPREAD = 5 };
enum { INSERT, APPEND, ADOPT, RESERVE, GIVE_BACK, LOOKUP, RELEASE, TRUNCATE, ADVANCE, DROP, EXPECT, EVICT, TAKE_OVER, ANEW, KINDS };

/* A call and its result; both processes see it. */
typedef struct {
    int kind;
    int64_t slot, offset, rc;
    uint64_t size;
    uint8_t *buf;
    fc_placed placed;
    fc_inserted inserted;
    fc_hit hit;
} call;

typedef struct {
    world w;
    partition_log topic[TOPICS_MAX]; /* each batch that its log ever had */
    int topics, open[OPEN];          /* which topics are open */
    call *call;
    fc_arena *before, *copy;
    uint64_t each, whole, dropped, evicted, limbo, kinds[KINDS];
} stepper;

static void make(fc_arena *a, const fc_config *config, call *c) {
    switch (c->kind) {
    case INSERT: c->rc = fc_insert(a, c->slot, c->buf, c->size, &c->inserted); break;
    case APPEND:
    case ADOPT: c->rc = (int64_t)fc_append(a, c->buf, c->size, &c->placed, 0, 1, UINT64_MAX); break;
    case RESERVE: c->rc = fc_reserve(a, c->size, UINT64_MAX); break;
    case GIVE_BACK: c->rc = fc_give_back(a, c->buf); break;
    case LOOKUP: c->rc = fc_lookup(a, 0, c->slot, c->offset, INT64_MAX, c->size, 1, &c->hit); break;
    case RELEASE: c->rc = fc_release(a, 0, c->hit.segment, c->hit.segments); break;
    case TRUNCATE: c->rc = fc_truncate(a, c->slot, c->offset); break;
    case ADVANCE: c->rc = fc_advance_start(a, c->slot, c->offset); break;
    case DROP: c->rc = fc_drop(a, c->slot); break;
    case EXPECT: c->rc = fc_expect(a, c->slot, c->offset); break;
    case EVICT: c->rc = fc_evict_to(a, c->size); break;
    case TAKE_OVER: c->rc = fc_take_over(a, config, 0); break;
    default: c->rc = fc_begin_anew(a, config, a->admitted_bytes); break;
    }
}

/* Whether the entry's bytes are those of a batch that the log once had there. */
static int is_of_log(fc_arena *a, const partition_log *p, const fc_entry *e) {
    for (uint32_t i = 0; i < p->batches; i++) {
        const record_batch *b = &p->log[i];
        if (b->base == e->base_offset && b->length == e->length && b->epoch == e->leader_epoch) {
            uint64_t size;
            uint8_t *bytes = build_run(b, 1, &size);
            int same = memcmp(fc_at(a, e->position), bytes, size) == 0;
            free(bytes);
            if (same) {
                return 1;
            }
        }
    }
    return 0;
}

static void check_content(stepper *s, fc_arena *a) {
    uint64_t entries = 0;
    uint8_t topic[16];
    int32_t index;
    for (uint64_t place = 0; place < a->partitions_touched; place++) {
        int64_t slot = fc_slot_at(a, place, topic, &index);
        fc_edges edges;
        if (slot < 0 || fc_find_edges(a, slot, 0, &edges) < 0) {
            continue;
        }
        MUST(topic[0] < s->topics);
        for (int64_t offset = 0; offset < edges.tail_end;) {
            fc_entry e;
            if (fc_find_batch(a, slot, offset, &e) < 0) {
                offset++;
                continue;
            }
            MUST(is_of_log(a, &s->topic[topic[0]], &e));
            offset = fc_end(&e);
            entries++;
        }
    }
    MUST(entries == a->entries);
}

/* What the next process makes of the arena as it is now. */
static void judge(stepper *s) {
    fc_arena *a = s->copy;
    memcpy(a, s->w.arena, s->w.config.size_bytes);
    if (fc_take_over(a, &s->w.config, 0) < 0) {
        s->dropped++;
        MUST(fc_begin_anew(a, &s->w.config, 0) == 0 && fc_check(a) == 0 && a->entries == 0);
        return;
    }
    s->whole++;
    check_content(s, a);
    MUST(fc_check(a) == 0 && fc_evict_to(a, 0) >= 0 && fc_check(a) == 0 && a->blocks == 0 && a->entries == 0);
}

static void stop_child(pid_t child, int *status) {
    MUST(waitpid(child, status, 0) == child);
    MUST(WIFSTOPPED(*status) || (WIFEXITED(*status) && WEXITSTATUS(*status) == 0));
}

/* The child makes the call, and is looked at after each of its instructions. */
static void step_through(stepper *s) {
    if (s->kinds[s->call->kind] == s->each || below(&s->w, SPREAD) != 0) {
        make(s->w.arena, &s->w.config, s->call);
        return;
    }
    uint64_t size = s->w.config.size_bytes;
    memcpy(s->before, s->w.arena, size);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) {
            _exit(FORBIDDEN);
        }
        raise(SIGSTOP);
        make(s->w.arena, &s->w.config, s->call);
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status)) {
        exit(WEXITSTATUS(status));
    }
    while (WIFSTOPPED(status)) {
        MUST(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) == 0);
        stop_child(child, &status);
        if (memcmp(s->before, s->w.arena, size) != 0) {
            judge(s);
            memcpy(s->before, s->w.arena, size);
        }
    }
    s->kinds[s->call->kind]++;
}

static int wants_reclaim(const call *c) {
    int appends = c->kind == APPEND || c->kind == ADOPT;
    return c->rc == FC_RECLAIM || (appends && c->rc == 0 && c->placed.run_end == FC_RECLAIM);
}

/* The same again after each block that its owners were asked for: nobody lets go, so that it goes to limbo. */
static void run(stepper *s, int kind) {
    s->call->kind = kind;
    for (step_through(s); wants_reclaim(s->call); step_through(s)) {
        answer_reclaim(&s->w);
    }
}

static void open_topic(stepper *s, int place) {
    MUST(s->topics < TOPICS_MAX);
    uint8_t topic[16] = {(uint8_t)s->topics};
    partition_log *p = &s->topic[s->topics];
    p->slot = fc_open(s->w.arena, topic, 0);
    MUST(p->slot >= 0);
    s->open[place] = s->topics++;
}

static record_batch *add(stepper *s, partition_log *p) {
    append(&s->w, p);
    record_batch *b = &p->log[p->batches - 1];
    return b;
}

static void insert_some(stepper *s, partition_log *p) {
    uint32_t batches = 1 + (uint32_t)below(&s->w, 4), first = p->batches;
    for (uint32_t i = 0; i < batches; i++) {
        add(s, p);
    }
    uint64_t size;
    s->call->buf = build_run(&p->log[first], batches, &size);
    s->call->inserted = (fc_inserted){.covers_from = p->log[first].covers_from};
    s->call->slot = p->slot;
    s->call->size = size;
    run(s, INSERT);
    free(s->call->buf);
}

static void place(stepper *s, partition_log *p, const record_batch *b, uint8_t *bytes, uint64_t size, int kind) {
    s->call->buf = bytes;
    s->call->size = size;
    s->call->placed = (fc_placed){p->slot, 0, (int64_t)b->length, b->base, b->epoch, 0, 0};
    run(s, kind);
}

static void append_some(stepper *s, partition_log *p) {
    const record_batch *b = add(s, p);
    uint64_t size;
    uint8_t *bytes = build_run(b, 1, &size);
    place(s, p, b, bytes, size, APPEND);
    free(bytes);
}

/* A batch that arrives in lent memory, is stored there, and is let go of. */
static void lend_some(stepper *s, partition_log *p) {
    const record_batch *b = add(s, p);
    s->call->size = b->length + below(&s->w, 200);
    uint64_t size = s->call->size;
    run(s, RESERVE);
    if (s->call->rc < 0) {
        return;
    }
    uint8_t *memory = fc_at(s->w.arena, (uint64_t)s->call->rc);
    memset(memory, 0x5a, size);
    write_batch(memory, b);
    if (below(&s->w, 4)) {
        place(s, p, b, memory, size, ADOPT);
    }
    if (below(&s->w, 4)) {
        s->call->buf = memory;
        run(s, GIVE_BACK);
    }
}

/* Pins, and perhaps evicts what is pinned, so that letting go frees a block in limbo. */
static void read_some(stepper *s, partition_log *p) {
    s->call->slot = p->slot;
    s->call->offset = p->end - (int64_t)below(&s->w, (uint64_t)p->end + 1);
    s->call->size = 1 + below(&s->w, 8000);
    run(s, LOOKUP);
    if (s->call->rc < 0 || !s->call->hit.pinned) {
        return;
    }
    if (below(&s->w, 2)) {
        s->call->size = below(&s->w, 4) * FC_UNIT;
        run(s, EVICT);
    }
    if (below(&s->w, 4)) {
        run(s, RELEASE);
        MUST(s->call->rc == 0);
    }
}

static void change(stepper *s, partition_log *p, int kind) {
    if (kind == TAKE_OVER) { /* its counts begin anew */
        s->evicted += s->w.arena->evicted_bytes;
        s->limbo += s->w.arena->limbo_entered;
    }
    s->call->slot = p->slot;
    s->call->offset = p->end / 2 + (int64_t)below(&s->w, (uint64_t)p->end / 2 + 1);
    s->call->size = below(&s->w, s->w.arena->data_units * FC_UNIT);
    run(s, kind);
    MUST(s->call->rc >= 0);
    if (kind == TRUNCATE) {
        p->epoch++;
        p->end = s->call->offset;
    }
}

static void round_of(stepper *s) {
    int at = (int)below(&s->w, OPEN);
    partition_log *p = &s->topic[s->open[at]];
    uint64_t what = below(&s->w, 1000);
    if (p->batches > LOG_MAX - 8) {
        what = 990;
    }
    if (what < 500) {
        insert_some(s, p);
    } else if (what < 600) {
        append_some(s, p);
    } else if (what < 730) {
        lend_some(s, p);
    } else if (what < 880) {
        read_some(s, p);
    } else if (what < 985) {
        const int kinds[] = {TRUNCATE, ADVANCE, EXPECT, EVICT};
        change(s, p, kinds[below(&s->w, 4)]);
    } else if (what < 995) {
        change(s, p, DROP);
        open_topic(s, at);
    } else {
        change(s, p, TAKE_OVER);
    }
}

static void *map_shared(uint64_t size) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(memory != MAP_FAILED);
    return memory;
}

int main(int argc, char **argv) {
    MUST(argc == 5);
    uint64_t size = strtoull(argv[4], NULL, 10);
    stepper *s = calloc(1, sizeof(stepper));
    s->w.random = strtoull(argv[1], NULL, 10) * 0x9e3779b97f4a7c15u + 1;
    s->w.arena = map_shared(size);
    s->each = strtoull(argv[3], NULL, 10);
    s->call = map_shared(sizeof(call));
    s->before = aligned_alloc(64, size);
    s->copy = aligned_alloc(64, size);
    s->w.config = (fc_config){.size_bytes = size, .partitions_max = OPEN, .ghosts_max = 8, .nodes_max = 40,
                              .block_min_bytes = 1024, .block_max_bytes = size / 16, .shared_bytes = 4096,
                              .pin_limit_bytes = size / 4, .lent_limit_bytes = size / 8};
    MUST(fc_format(s->w.arena, &s->w.config) == 0);
    for (int i = 0; i < OPEN; i++) {
        open_topic(s, i);
    }
    for (uint64_t i = strtoull(argv[2], NULL, 10); i > 0; i--) {
        round_of(s);
    }
    for (s->call->kind = ANEW; s->kinds[ANEW] == 0;) {
        step_through(s);
    }
    printf("whole %lu dropped %lu", (unsigned long)s->whole, (unsigned long)s->dropped);
    for (int i = 0; i < KINDS; i++) {
        printf(" kind%d %lu", i, (unsigned long)s->kinds[i]);
    }
    printf(" evicted %lu limbo %lu\n", (unsigned long)s->evicted, (unsigned long)s->limbo);
    return 0;
}
