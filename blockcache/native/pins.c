/* Pins by holder: who keeps a block from being reused. The only place that counts them.
 * Invariants: a block's pins are those of holder 0 and `pins_of` the others; holders other than 0 change nothing but these
 * counts. In a shared arena the counts of one pin change together: who dies between two of them has left what they were
 * (`undo_*`), so that the next who has the lock sets them back. Blocks in limbo that a holder other than 0 was the last to pin
 * are idle; holder 0 frees them (fifo.c). */
#include "pyfastcache.h"

static inline uint32_t pins_of(const fc_arena *a, const fc_block *b, uint32_t holder) {
    if (__builtin_expect(a->shared == 0, 1)) {
        return b->pins;
    }
    if (holder != 0) {
        return b->pins_of[holder];
    }
    uint32_t others = 0;
    for (uint32_t i = 1; i < FC_HOLDERS; i++) {
        others += b->pins_of[i];
    }
    return b->pins - others;
}

/* How many of a block's pins are this holder's. */
uint32_t fc_pins_of(const fc_arena *a, const fc_block *b, uint32_t holder) { return pins_of(a, b, holder); }

/* The compiler moves no store across it; a process that dies leaves its stores in their order. */
static inline void keep_order(void) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

static void begin_count(fc_arena *a, const fc_block *b, uint32_t holder) {
    a->undo_holder = holder;
    a->undo_block_pins = b->pins;
    a->undo_block_pins_of = b->pins_of[holder];
    a->undo_pins = a->pins;
    a->undo_pins_of = a->pins_of[holder];
    a->undo_pinned_bytes = a->pinned_bytes;
    a->undo_limbo_idle = a->limbo_idle;
    keep_order();
    a->undo_block = (uint64_t)((const uint8_t *)b - (const uint8_t *)a);
    keep_order();
}

static void end_count(fc_arena *a) {
    keep_order();
    a->undo_block = 0;
    keep_order();
}

/* Sets the counts back to what they were before a pin that was not counted to the end. May itself be broken off. */
void fc_undo_pin(fc_arena *a) {
    int valid = a->undo_block >= a->data_at && a->undo_block < a->size_bytes && a->undo_holder < FC_HOLDERS;
    if (a->undo_block != 0 && valid) {
        fc_block *b = fc_block_at(a, a->undo_block);
        b->pins = (uint32_t)a->undo_block_pins;
        b->pins_of[a->undo_holder] = (uint16_t)a->undo_block_pins_of;
        a->pins = a->undo_pins;
        a->pins_of[a->undo_holder] = (uint32_t)a->undo_pins_of;
        a->pinned_bytes = a->undo_pinned_bytes;
        a->limbo_idle = a->undo_limbo_idle;
        end_count(a);
    }
}

static inline void uncount_pin(fc_arena *a, fc_block *b) {
    a->pins--;
    if (--b->pins == 0) {
        b->offered = 0;
        a->pinned_bytes -= (uint64_t)b->units * FC_UNIT;
        a->limbo_idle += b->state == FC_IN_LIMBO;
    }
}

/* One pin more, in a shared arena; of a holder other than 0, one has room for it (lookup.c). */
void fc_block_pin_shared(fc_arena *a, fc_block *b, uint32_t holder) {
    begin_count(a, b, holder);
    fc_count_pin(a, b);
    b->pins_of[holder] += holder != 0;
    a->pins_of[holder] += holder != 0;
    end_count(a);
}

static inline void unpin(fc_arena *a, fc_block *b, uint32_t holder) {
    if (__builtin_expect(a->shared == 0, 1)) {
        uncount_pin(a, b);
        return;
    }
    begin_count(a, b, holder);
    uncount_pin(a, b);
    b->pins_of[holder] -= holder != 0;
    a->pins_of[holder] -= holder != 0;
    end_count(a);
}

/* One pin less. Without any, and in no queue, the block is holder 0's to free (fc_block_settle). */
void fc_block_unpin(fc_arena *a, fc_block *b, uint32_t holder) { unpin(a, b, holder); }

static void free_idle(fc_arena *a, fc_block *b) {
    fc_begin(&a->changes);
    fc_block_settle(a, b);
    fc_done(&a->changes);
}

/* Lets go of one pin; by holder 0, what nobody pins any more is free. */
static inline void release_one(fc_arena *a, fc_block *b, uint32_t holder, uint32_t by) {
    unpin(a, b, holder);
    if (b->pins == 0 && b->state != FC_IN_FIFO && by == 0) {
        free_idle(a, b);
    }
}

static inline int release(fc_arena *a, uint32_t holder, const fc_segment *segments, uint64_t count) {
    int rc = 0;
    for (uint64_t i = 0; i < count; i++) {
        fc_block *b = fc_block_of(a, segments[i].block, segments[i].generation);
        if (b == NULL || pins_of(a, b, holder) == 0) {
            rc = FC_STALE;
        } else {
            release_one(a, b, holder, holder);
        }
    }
    return rc;
}

/* fc_release for who holds the lock. */
int fc_release_held(fc_arena *a, uint32_t holder, const fc_segment *segments, uint64_t count) {
    return release(a, holder, segments, count);
}

/* Lets go of a hit's pins. FC_STALE if one was not held; the others are let go all the same. */
int fc_release(fc_arena *a, uint32_t holder, const fc_segment *segments, uint64_t count) {
    FC_HOLD_TO_READ(a);
    return release(a, holder, segments, count);
}

/* Lets go of a holder's pins on the blocks that start in [from, to). */
static int release_within(fc_arena *a, uint64_t from, uint64_t to, uint32_t holder, uint32_t by) {
    FC_HOLD_TO_READ(a);
    uint64_t unit = fc_find_bit(a, a->starts_at, from, to, 1);
    for (; unit < to; unit = fc_find_bit(a, a->starts_at, unit + 1, to, 1)) {
        fc_block *b = fc_block_at(a, a->data_at + unit * FC_UNIT);
        while (fc_bit(a, a->starts_at, unit) && pins_of(a, b, holder) > 0) {
            release_one(a, b, holder, by);
        }
    }
    return 0;
}

/* Lets go of all pins of a holder other than 0 whose process is dead. `by`: who calls, 0 or the next process of that number.
 * Returns how many there were. Other calls come between two parts of the walk. */
int64_t fc_release_holder(fc_arena *a, uint32_t holder, uint32_t by) {
    int64_t pins = a->pins_of[holder];
    for (uint64_t unit = 0; unit < a->data_units && a->pins_of[holder] > 0; unit += FC_HOLD_UNITS) {
        uint64_t end = unit + FC_HOLD_UNITS < a->data_units ? unit + FC_HOLD_UNITS : a->data_units;
        int rc = release_within(a, unit, end, holder, by);
        if (rc < 0) {
            return rc;
        }
    }
    return a->torn ? FC_TORN : pins;
}

/* A block of an arena that a dead holder 0 left: its pins, and those of each holder that is not one of the `living`. */
static void let_block_go(fc_arena *a, fc_block *b, uint32_t living) {
    if (b->lent) {
        b->lent = 0;
        a->lent_bytes -= (uint64_t)b->units * FC_UNIT;
    }
    for (uint32_t holder = 0; holder < FC_HOLDERS; holder++) {
        while ((holder == 0 || (living >> holder & 1) == 0) && pins_of(a, b, holder) > 0) {
            unpin(a, b, holder);
        }
    }
    if (b->pins == 0 && b->state != FC_IN_FIFO) {
        fc_block_settle(a, b);
    }
}

static int let_go_within(fc_arena *a, uint64_t from, uint64_t to, uint32_t living) {
    FC_HOLD(a, FC_TORN);
    fc_begin(&a->changes);
    uint64_t unit = fc_find_bit(a, a->starts_at, from, to, 1);
    for (; unit < to; unit = fc_find_bit(a, a->starts_at, unit + 1, to, 1)) {
        let_block_go(a, fc_block_at(a, a->data_at + unit * FC_UNIT), living);
    }
    fc_done(&a->changes);
    return 0;
}

/* Of a checked arena that `living` holders use: lets go of what a dead holder 0 had pinned and lent, and what other dead ones
 * had pinned. */
int fc_let_dead_go(fc_arena *a, uint32_t living) {
    int rc = 0;
    for (uint64_t unit = 0; unit < a->data_units && rc == 0; unit += FC_HOLD_UNITS) {
        uint64_t end = unit + FC_HOLD_UNITS < a->data_units ? unit + FC_HOLD_UNITS : a->data_units;
        rc = let_go_within(a, unit, end, living);
    }
    a->reclaim_block = a->reclaim_generation = 0;
    return rc;
}
