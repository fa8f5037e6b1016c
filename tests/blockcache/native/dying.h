/* Steps of the driver in which the arena's process dies: what it held is let go, what it stored is still there; and
 * damaged copies, which must be refused or at least be safe to walk. */
#ifndef DYING_H
#define DYING_H

#include "lending.h"

enum { DAMAGED_COPIES = 12, DAMAGES_MAX = 4 };

static uint64_t forget_dead(world *w, uint32_t living) {
    uint64_t pins = 0;
    for (int i = 0; i < HELD_MAX; i++) {
        if (living >> w->held[i].holder & 1) {
            pins += w->held[i].count;
            continue;
        }
        free(w->held[i].segments);
        free(w->held[i].expected);
        w->held[i] = (held_hit){0};
    }
    for (int i = 0; i < LENT_MAX; i++) {
        free(w->loans[i].expected);
        w->loans[i] = (loan){NULL, 0, NULL};
    }
    return pins;
}

/* A number of the arena, somewhere: in its header, its tables, or at the start of a unit. */
static uint64_t choose_place(world *w, const fc_arena *a) {
    switch (below(w, 4)) {
    case 0: return below(w, 512);
    case 1: return a->partitions_at + below(w, a->partitions_touched * sizeof(fc_partition));
    case 2: return a->nodes_at + below(w, a->nodes_touched * sizeof(fc_node));
    default: return a->data_at + below(w, a->data_units) * FC_UNIT + below(w, 200);
    }
}

static void damage(world *w, fc_arena *a, const fc_arena *whole) {
    uint64_t place = choose_place(w, whole) / 4 * 4, value = next_random(w);
    uint64_t near = fc_at(a, place)[0] + (below(w, 2) ? 1u : UINT64_MAX);
    value = below(w, 3) ? value : below(w, 2) ? near : value % whole->size_bytes;
    memcpy(fc_at(a, place), &value, 4 + 4 * below(w, 2));
}

/* One that was not found out must bear everything to be let go. */
static void empty(world *w, fc_arena *a) {
    MUST(fc_check(a) == 0 && fc_evict_to(a, 0) >= 0 && a->pins == 0);
    uint8_t topic[16];
    int32_t index;
    for (uint64_t place = 0; place < a->partitions_touched; place++) {
        int64_t slot = fc_slot_at(a, place, topic, &index);
        MUST(slot == FC_STALE || fc_drop(a, slot) == 0);
    }
    MUST(fc_check(a) == 0 && a->blocks == 0 && a->partitions_open == 0);
    w->harmless++;
}

static void step_damage(world *w) {
    fc_arena *copy = aligned_alloc(64, w->arena->size_bytes);
    for (int i = 0; i < DAMAGED_COPIES; i++) {
        memcpy(copy, w->arena, w->arena->size_bytes);
        for (uint64_t n = 1 + below(w, DAMAGES_MAX); n > 0; n--) {
            damage(w, copy, w->arena);
        }
        if (fc_take_over(copy, &w->config, 0) == 0) {
            empty(w, copy);
            continue;
        }
        w->refused++;
        MUST(fc_begin_anew(copy, &w->config, 7) == 0 && fc_check(copy) == 0 && copy->admitted_bytes == 7);
        MUST(copy->blocks == 0 && fc_open(copy, (const uint8_t *)"0123456789abcdef", 0) >= 0);
    }
    free(copy);
}

static void refuse(world *w) {
    fc_arena *a = w->arena;
    fc_config other = w->config;
    a->changes++;
    MUST(fc_take_over(a, &w->config, 0) == FC_TORN);
    a->changes++;
    other.nodes_max++;
    MUST(fc_take_over(a, &other, 0) == FC_OTHER);
}

/* The same slots, with the same batches; whatever dead ones had pinned, lent or in limbo is not any more. */
static void step_die(world *w) {
    step_damage(w);
    fc_arena *a = w->arena;
    uint64_t entries = a->entries, live_bytes = a->live_bytes, clock = a->admitted_bytes;
    uint32_t living = w->holders > 1 ? (uint32_t)below(w, 1u << w->holders) & ~1u : 0;
    uint64_t pins = forget_dead(w, living);
    if (living == 0) {
        refuse(w);
    }
    w->limbo += a->limbo_entered;
    w->adopted += a->adopted_batches;
    MUST(fc_take_over(a, &w->config, living) == 0 && (w->holders == 1 || fc_share(a) == 0));
    MUST(a->entries == entries && a->live_bytes == live_bytes && a->admitted_bytes == clock);
    MUST(a->pins == pins && (pins > 0 || a->pinned_bytes == 0) && a->reserved_blocks == 0 && a->lent_bytes == 0);
    MUST(living != 0 || a->limbo_blocks == 0);
    MUST(a->lookups == 0 && a->admitted_before == clock && fc_check(a) == 0);
    uint8_t topic[16];
    int32_t index;
    for (uint64_t place = 0; place < PARTITIONS; place++) {
        MUST(fc_slot_at(a, place, topic, &index) == w->partition[place].slot);
    }
    MUST(fc_slot_at(a, PARTITIONS, topic, &index) == FC_STALE);
    w->deaths++;
}

#endif
