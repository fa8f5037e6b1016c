/* Random operations on the cache, compared with a plain log per partition; built with sanitizers by test_native.py.
 *
 * usage: driver SEED STEPS ARENA_BYTES SHARED_BYTES OBSERVE HOLDERS. The truth is what a broker's log would hold; whatever the cache returns must
 * be those bytes, in that order. What the cache has let go of is its own business.
 * fc_check() after every step in a tiny arena, less often in a larger one. */
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "dying.h"
#include "lending.h"

static int64_t insert(world *w, partition_log *p, const record_batch *b, uint32_t batches, fc_inserted *out) {
    uint64_t size;
    uint8_t *run = build_run(b, batches, &size);
    *out = (fc_inserted){.covers_from = below(w, 2) ? b[0].covers_from : b[0].base};
    int rc = fc_insert(w->arena, p->slot, run, size, out);
    while (rc == FC_RECLAIM) {
        answer_reclaim(w);
        rc = fc_insert(w->arena, p->slot, run, size, out);
    }
    free(run);
    return rc;
}

/* One batch as it was sent, with its place beside. */
static void step_place(world *w, partition_log *p, const record_batch *b) {
    uint64_t size;
    uint8_t *run = build_run(b, 1, &size);
    memset(run, 0, 8);
    memset(run + 12, 0xff, 4);
    int64_t rc = append_one(w, p->slot, run, 0, size, b, UINT64_MAX);
    MUST(rc == FC_NOT_STORED || rc >= b->base + b->count);
    free(run);
}

/* Any run of the newest hundred batches, twice as often the last ones. */
static void step_insert(world *w, partition_log *p) {
    for (uint64_t i = below(w, 4); i > 0; i--) {
        append(w, p);
    }
    if (p->batches == 0) {
        return;
    }
    uint64_t back = below(w, 2) ? below(w, 4) : below(w, 100);
    uint32_t first = p->batches - 1 - (uint32_t)(back < p->batches ? back : p->batches - 1);
    uint32_t batches = 1 + (uint32_t)below(w, RUN_MAX);
    batches = batches < p->batches - first ? batches : p->batches - first;
    if (below(w, 4) == 0) {
        step_place(w, p, &p->log[first]);
        return;
    }
    fc_inserted out;
    MUST(insert(w, p, &p->log[first], batches, &out) == 0);
    const record_batch *last = &p->log[first + batches - 1];
    MUST(out.conflict_offset == -1 && out.next_offset == last->base + last->count);
    MUST(out.first_offset == p->log[first].base);
}

static void step_conflict(world *w, partition_log *p) {
    if (p->batches == 0) {
        return;
    }
    record_batch other = p->log[below(w, p->batches)];
    fc_entry entry;
    if (fc_find_batch(w->arena, p->slot, other.base, &entry) < 0 || entry.base_offset != other.base) {
        return;
    }
    other.epoch += below(w, 2) ? 1 : 0;
    other.count += other.epoch == entry.leader_epoch ? 1 : 0;
    fc_inserted out;
    MUST(insert(w, p, &other, 1, &out) == 0);
    MUST(out.conflict_offset == other.base && out.stored_bytes == 0);
    w->conflicts++;
}

static uint32_t find_in_log(const partition_log *p, int64_t offset) {
    uint32_t i = 0;
    while (i < p->batches && p->log[i].base + p->log[i].count <= offset) {
        i++;
    }
    return i;
}

/* What the log would answer: whole batches from the one at `offset`, as far as the hit goes. */
static uint8_t *expect_bytes(const partition_log *p, int64_t offset, const fc_hit *hit, int64_t limit) {
    uint32_t first = find_in_log(p, offset), i = first;
    uint64_t size = 0;
    while (size < hit->size_bytes) {
        MUST(i < p->batches && p->log[i].base + p->log[i].count <= limit);
        size += p->log[i++].length;
    }
    MUST(size == hit->size_bytes);
    MUST(hit->next_offset == (i == first ? offset : p->log[i - 1].base + p->log[i - 1].count));
    return build_run(&p->log[first], i - first, &size);
}

static void check_bytes(const world *w, const fc_hit *hit, const uint8_t *expected) {
    uint64_t at = w->arena->observe ? hit->size_bytes : 0;
    for (uint64_t i = 0; i < hit->segments; i++) {
        const fc_segment *s = &hit->segment[i];
        MUST(memcmp((const uint8_t *)w->arena + s->position, expected + at, s->length) == 0);
        at += s->length;
    }
    MUST(at == hit->size_bytes);
    if (hit->pinned != FC_PINNED && !w->arena->observe) {
        uint8_t *copy = malloc(at + 1);
        MUST(fc_gather(w->arena, hit, copy) == 0 && memcmp(copy, expected, at) == 0);
        free(copy);
    }
}

/* Without segments it is the same answer, or one that goes on behind the last segment. */
static void check_span(const world *w, const partition_log *p, int64_t offset, int64_t limit, uint64_t max_bytes,
                       int at_least_one, const fc_hit *hit) {
    static fc_hit span;
    MUST(fc_span(w->arena, p->slot, offset, limit, max_bytes, at_least_one, &span) == 0);
    MUST(span.segments == 0);
    MUST(hit->segments == FC_SEGMENTS_MAX ||
         (span.next_offset == hit->next_offset && span.size_bytes == hit->size_bytes));
}

/* To a pipe, which takes all of it or a part: those are its bytes, and pins are held for what it left. Whether all. */
static int send_whole(world *w, uint32_t holder, const fc_hit *hit, const uint8_t *expected) {
    static int ends[2] = {-1, -1};
    if (ends[0] < 0) {
        MUST(pipe(ends) == 0 && fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
    }
    uint64_t pins = w->arena->pins, whole = hit->size_bytes + 2;
    uint64_t cut = 1;
    fc_response response = {.hits = 1, .size_bytes = hit->size_bytes, .holder = holder};
    int64_t sent = fc_send(w->arena, &response, (uint8_t *)hit, ends[1], (const uint8_t *)"<>", 2, &cut);
    MUST(response.hits == ((uint64_t)sent < whole));
    MUST(sent > 0 && (uint64_t)sent <= whole);
    uint8_t *got = malloc((uint64_t)sent);
    for (int64_t at = 0; at < sent;) {
        ssize_t more = read(ends[0], got + at, (size_t)(sent - at));
        MUST(more > 0);
        at += more;
    }
    int all = (uint64_t)sent == whole;
    MUST(got[0] == '<' && memcmp(got + 1, expected, (uint64_t)sent - 1 - (uint64_t)all) == 0);
    MUST(w->arena->pins == pins - (all ? hit->segments : 0) && (!all || got[sent - 1] == '>'));
    free(got);
    return all;
}

/* In the place of an earlier hit. */
static void hold(world *w, uint32_t holder, const fc_hit *hit, uint8_t *expected) {
    held_hit *h = &w->held[below(w, HELD_MAX)];
    release(w, h);
    *h = (held_hit){malloc(hit->segments * sizeof(fc_segment)), hit->segments, hit->size_bytes, expected, holder};
    memcpy(h->segments, hit->segment, hit->segments * sizeof(fc_segment));
}

static void step_lookup(world *w, partition_log *p) {
    static fc_hit hit;
    int64_t reach = below(w, 4) ? 300 : p->end + 1;
    int64_t offset = p->end - (int64_t)below(w, (uint64_t)(p->end < reach ? p->end + 1 : reach));
    int64_t limit = below(w, 3) ? INT64_MAX : offset + (int64_t)below(w, 200);
    uint64_t max_bytes = below(w, 2) ? below(w, 20000) : UINT64_MAX;
    int at_least_one = (int)below(w, 2);
    uint32_t holder = (uint32_t)below(w, w->holders);
    uint64_t refused = w->arena->refused_lookups;
    int rc = fc_lookup(w->arena, holder, p->slot, offset, limit, max_bytes, at_least_one, &hit);
    if (w->arena->observe) {
        MUST(rc == FC_NOT_STORED);
        rc = fc_span(w->arena, p->slot, offset, limit, max_bytes, at_least_one, &hit);
        hit.pinned = 0;
    }
    if (rc < 0) {
        MUST(rc == FC_NOT_STORED);
        MUST(w->arena->refused_lookups > refused || fc_contiguous_end(w->arena, p->slot, offset) == offset);
        return;
    }
    uint8_t *expected = expect_bytes(p, offset, &hit, limit);
    check_bytes(w, &hit, expected);
    check_span(w, p, offset, limit, max_bytes, at_least_one, &hit);
    MUST(hit.size_bytes <= max_bytes || at_least_one);
    w->hits += hit.size_bytes > 0;
    w->copied += hit.pinned != FC_PINNED;
    if (hit.pinned == FC_PINNED_TO_COPY) {
        MUST(holder != 0 && fc_release(w->arena, holder, hit.segment, hit.segments) == 0);
        hit.pinned = 0;
    }
    if (!hit.pinned || hit.segments == 0 || (below(w, 3) == 0 && send_whole(w, holder, &hit, expected))) {
        free(expected);
    } else {
        hold(w, holder, &hit, expected);
    }
}

/* From there to the end all is stored, and nothing is a marker; before it one is, or a gap, or it was the last to look at.
 * No marker of random bytes is a commit. */
static void step_unaborted(world *w, const partition_log *p) {
    int64_t end = p->end - (int64_t)below(w, 40);
    uint64_t batches = below(w, 2) ? below(w, 5) : UINT64_MAX;
    int64_t from = fc_unaborted_from(w->arena, p->slot, end, batches);
    MUST(from <= end && (from == end || fc_contiguous_end(w->arena, p->slot, from) >= end));
    uint64_t seen = 0; /* all that it has looked at, but one behind offsets that are known to be empty */
    for (uint32_t i = find_in_log(p, from); i < p->batches && p->log[i].base < end; i++, seen++) {
        uint64_t size;
        uint8_t *bytes = build_run(&p->log[i], 1, &size);
        MUST(from == end || (bytes[FC_ATTRIBUTES_AT + 1] & FC_CONTROL) == 0);
        free(bytes);
    }
    w->unaborted += from < end;
    fc_entry before;
    if (from < end && seen + 1 < batches && fc_find_batch(w->arena, p->slot, from - 1, &before) == 0) {
        MUST(fc_at(w->arena, before.position)[FC_ATTRIBUTES_AT + 1] & FC_CONTROL);
    }
}

static int64_t choose_number(world *w, int64_t near) {
    static const int64_t far[] = {INT64_MIN, INT64_MIN + 1, -1, 0, 1, INT64_MAX - 1, INT64_MAX};
    return below(w, 3) ? near : far[below(w, sizeof far / sizeof *far)];
}

static void choose_wanted(world *w, fc_wanted *wanted) {
    const partition_log *p = &w->partition[below(w, PARTITIONS)];
    wanted->slot = below(w, 20) ? p->slot : choose_number(w, p->slot ^ (int64_t)below(w, 1 << 30));
    wanted->offset = choose_number(w, p->end - (int64_t)below(w, 200));
    wanted->limit_offset = choose_number(w, p->end - (int64_t)below(w, 50));
    wanted->max_bytes = choose_number(w, (int64_t)below(w, 20000));
}

/* A response of up to 10,000 partitions, whose memory has their very sizes: each has what fc_span says within what the ones
 * before it have left, and none is pinned afterwards. */
static void step_respond(world *w) {
    uint64_t count = below(w, 200) ? below(w, 9) : 10000, room = (uint64_t)choose_number(w, (int64_t)below(w, 60000));
    uint64_t hits_room = below(w, 4) * sizeof(fc_hit) + below(w, 2) * 40, pins = w->arena->pins;
    fc_wanted *wanted = malloc(count * sizeof *wanted);
    fc_taken *taken = malloc(count * sizeof *taken);
    uint8_t *hits = malloc(hits_room);
    for (uint64_t i = 0; i < count; i++) {
        choose_wanted(w, &wanted[i]);
    }
    fc_response response = {.room_bytes = room, .holder = below(w, w->holders)};
    int has_records = (int)below(w, 2);
    fc_find_all(w->arena, (const int64_t *)(const void *)wanted, count, has_records, &response, hits, hits_room, taken);
    uint64_t found = 0, size = 0;
    for (uint64_t i = 0; i < count; i++) {
        static fc_hit span;
        uint64_t most = wanted[i].max_bytes < 0 ? 0 : (uint64_t)wanted[i].max_bytes;
        int is_first = !has_records && found == 0;
        MUST(taken[i].size_bytes >= FC_NOT_STORED && (taken[i].size_bytes > 0 || taken[i].next_offset == wanted[i].offset));
        if (taken[i].size_bytes > 0) {
            MUST(fc_span(w->arena, wanted[i].slot, wanted[i].offset, wanted[i].limit_offset, most < room ? most : room,
                         is_first, &span) == 0);
            most = most < room ? most : room;
            uint64_t used = span.cut && span.size_bytes < most ? most : span.size_bytes;
            room -= used < room ? used : room;
            MUST(span.size_bytes == (uint64_t)taken[i].size_bytes || span.size_bytes > 500 * FC_BATCH_HEADER);
            MUST(span.next_offset == taken[i].next_offset || span.size_bytes > 500 * FC_BATCH_HEADER);
            found++;
            size += (uint64_t)taken[i].size_bytes;
        }
    }
    MUST(response.hits == found && response.size_bytes == size && response.hit_bytes <= hits_room);
    MUST(response.room_bytes == room || size > 500 * FC_BATCH_HEADER);
    w->responses += found > 1;
    fc_release_all(w->arena, &response, hits);
    MUST(response.hits == 0 && w->arena->pins == pins);
    free(hits);
    free(taken);
    free(wanted);
}

static void step_truncate(world *w, partition_log *p) {
    int64_t from = p->end - (int64_t)below(w, 60);
    while (p->batches > 0 && p->log[p->batches - 1].base + p->log[p->batches - 1].count > from) {
        p->batches--;
    }
    from = from < 0 ? 0 : from;
    MUST(fc_truncate(w->arena, p->slot, from) == 0);
    int64_t last = p->batches == 0 ? 0 : p->log[p->batches - 1].base + p->log[p->batches - 1].count;
    p->end = last > p->start ? last : p->start;
    p->end = from > p->end ? from : p->end;
    p->epoch++;
}

static void step_advance(world *w, partition_log *p) {
    p->start = p->start < p->end ? p->start + (int64_t)below(w, (uint64_t)(p->end - p->start)) / 2 : p->start;
    MUST(fc_advance_start(w->arena, p->slot, p->start) == 0);
    fc_entry entry;
    MUST(p->start == 0 || fc_find_batch(w->arena, p->slot, p->start - 1, &entry) < 0 ||
         fc_last(&entry) >= p->start);
}

static void step_drop(world *w, partition_log *p) {
    uint8_t topic[16] = {(uint8_t)below(w, 256)};
    int64_t before = p->slot;
    MUST(fc_drop(w->arena, p->slot) == 0);
    MUST(fc_drop(w->arena, before) == FC_STALE);
    memset(p, 0, sizeof(*p));
    p->slot = fc_open(w->arena, topic, 0);
    MUST(p->slot >= 0 && p->slot != before);
}

static void step_evict(world *w) {
    uint64_t target = below(w, w->arena->data_units * FC_UNIT);
    int64_t rc = fc_evict_to(w->arena, target);
    while (rc == FC_RECLAIM) {
        answer_reclaim(w);
        rc = fc_evict_to(w->arena, target);
    }
    uint64_t used = (w->arena->data_units - w->arena->free_units) * FC_UNIT;
    MUST(rc >= 0 && (used <= target || w->arena->blocks == 0));
}

static void step(world *w) {
    partition_log *p = &w->partition[below(w, PARTITIONS)];
    uint64_t what = below(w, 1000);
    if (p->batches == LOG_MAX || what < 2) {
        step_drop(w, p);
    } else if (what < 10) {
        step_truncate(w, p);
    } else if (what < 15) {
        step_advance(w, p);
    } else if (what < 17) {
        step_die(w);
    } else if (what < 20) {
        step_evict(w);
    } else if (what < 50) {
        step_conflict(w, p);
    } else if (what < 100) {
        step_lend(w, p);
    } else if (what < 140) {
        step_respond(w);
    } else if (what < 430) {
        step_lookup(w, p);
    } else if (what < 450) {
        step_unaborted(w, p);
    } else {
        step_insert(w, p);
    }
}

static void run_steps(world *w, uint64_t steps) {
    for (uint64_t i = 0; i < steps; i++) {
        step(w);
        int rc = i % (w->arena->size_bytes / 65536) == 0 ? fc_check(w->arena) : 0;
        if (rc < 0) {
            fprintf(stderr, "step %lu: fc_check says %d\n", (unsigned long)i, rc);
            exit(1);
        }
        MUST(w->arena->pinned_bytes <= w->arena->pin_limit_bytes);
    }
}

static void finish(world *w) {
    for (int i = 0; i < LENT_MAX; i++) {
        give_back(w, &w->loans[i]);
    }
    for (int i = 0; i < HELD_MAX; i++) {
        release(w, &w->held[i]);
    }
    for (int i = 0; i < PARTITIONS; i++) {
        MUST(fc_drop(w->arena, w->partition[i].slot) == 0);
    }
    const fc_arena *a = w->arena;
    MUST(fc_evict_to(w->arena, 0) == 0 && fc_check(w->arena) == 0 && a->pins == 0 && a->limbo_blocks == 0 && a->blocks == 0 && a->nodes_live == 0);
    MUST(a->free_units == a->data_units && a->lent_bytes == 0 && a->reserved_blocks == 0);
    printf("hits %lu conflicts %lu reclaims %lu copied %lu limbo %lu evicted %lu %lu %lu skipped %lu adopted %lu responses %lu deaths %lu refused %lu harmless %lu unaborted %lu\n",
           (unsigned long)w->hits, (unsigned long)w->conflicts, (unsigned long)w->reclaims, (unsigned long)w->copied,
           (unsigned long)w->limbo + a->limbo_entered, (unsigned long)a->evicted_blocks[0], (unsigned long)a->evicted_blocks[1],
           (unsigned long)a->evicted_blocks[2], (unsigned long)a->skipped_batches, (unsigned long)w->adopted + a->adopted_batches,
           (unsigned long)w->responses, (unsigned long)w->deaths, (unsigned long)w->refused, (unsigned long)w->harmless,
           (unsigned long)w->unaborted);
}

int main(int argc, char **argv) {
    MUST(argc == 7);
    uint64_t size = strtoull(argv[3], NULL, 10);
    world *w = calloc(1, sizeof(world));
    w->random = strtoull(argv[1], NULL, 10) * 0x9e3779b97f4a7c15u + 1;
    w->arena = aligned_alloc(64, size);
    memset(w->arena, 0, size);
    fc_config config = {.size_bytes = size, .partitions_max = PARTITIONS, .ghosts_max = 8,
                        .nodes_max = 32 + size / 10240, .block_min_bytes = 1024, .block_max_bytes = size / 16,
                        .shared_bytes = strtoull(argv[4], NULL, 10), .pin_limit_bytes = size / 4,
                        .lent_limit_bytes = size / 16, .observe = strtoull(argv[5], NULL, 10)};
    w->config = config;
    w->holders = strtoull(argv[6], NULL, 10);
    MUST(fc_format(w->arena, &config) == 0 && (w->holders == 1 || fc_share(w->arena) == 0));
    for (int i = 0; i < PARTITIONS; i++) {
        uint8_t topic[16] = {(uint8_t)i};
        w->partition[i].slot = fc_open(w->arena, topic, i);
        MUST(w->partition[i].slot >= 0);
    }
    MUST(fc_open(w->arena, (const uint8_t *)"0123456789abcdef", 0) == FC_FULL);
    run_steps(w, strtoull(argv[2], NULL, 10));
    finish(w);
    free(w->arena);
    free(w);
    return 0;
}
