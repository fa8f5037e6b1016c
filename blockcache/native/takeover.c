/* An arena that a dead process left: taken over, or begun anew in the same memory.
 * Nothing in it is trusted: its sections must be those of the configuration, then fc_check() holds every number against
 * them before it is followed. The dead process's pins, lent and reserved blocks are let go. Counts begin at 0, as a
 * process's do; the clock of admitted bytes goes on, since entries and ghosts refer to it.
 * Other holders may live and go on: the arena stays shared, and they keep their pins. */
#include <string.h>

#include "pyfastcache.h"

/* Where the sections are, and all that is configured. */
static int has_sections_of(const fc_arena *a, const fc_arena *other) {
    return a->magic == other->magic && a->layout == other->layout && a->size_bytes == other->size_bytes &&
           a->partitions_at == other->partitions_at && a->partitions_max == other->partitions_max &&
           a->ghosts_at == other->ghosts_at && a->ghosts_max == other->ghosts_max && a->taken_at == other->taken_at &&
           a->starts_at == other->starts_at && a->nodes_at == other->nodes_at && a->nodes_max == other->nodes_max &&
           a->data_at == other->data_at && a->data_units == other->data_units &&
           a->block_min_bytes == other->block_min_bytes && a->block_max_bytes == other->block_max_bytes &&
           a->batch_max_bytes == other->batch_max_bytes && a->pin_limit_bytes == other->pin_limit_bytes &&
           a->shared_bytes == other->shared_bytes && a->observe == other->observe &&
           a->lent_limit_bytes == other->lent_limit_bytes;
}

/* What the dead process had pinned, borrowed or kept in limbo. */
static int let_all_go(fc_arena *a) {
    uint64_t unit = fc_find_bit(a, a->starts_at, 0, a->data_units, 1);
    for (; unit < a->data_units; unit = fc_find_bit(a, a->starts_at, unit + 1, a->data_units, 1)) {
        int rc = fc_block_let_go(a, unit);
        if (rc < 0) {
            return rc;
        }
    }
    a->pins = a->pinned_bytes = a->reserved_blocks = a->lent_bytes = 0;
    a->limbo_first = a->limbo_blocks = a->limbo_bytes = a->limbo_idle = 0;
    a->reclaim_block = a->reclaim_generation = a->undo_block = 0;
    memset(a->pins_of, 0, sizeof(a->pins_of));
    return 0;
}

static void begin_counts(fc_arena *a) {
    a->admitted_before = a->admitted_bytes;
    a->admitted_batches = a->kept_batches = a->conflicts = a->skipped_batches = a->skipped_bytes = 0;
    a->lock_calls = a->lock_waits = a->lock_waited_ns = a->lock_refusals = a->refused_lookups = 0;
    a->evicted_bytes = a->limbo_entered = a->copied_lookups = a->gathered_lookups = a->lookups = a->adopted_batches = 0;
    memset(a->evicted_blocks, 0, sizeof(a->evicted_blocks));
    memset(a->invalidated_bytes, 0, sizeof(a->invalidated_bytes));
}

static int find_torn(fc_arena *a) {
    FC_HOLD(a, FC_TORN); /* undoes what its last holder died in */
    int is_torn = a->changes % 2 != 0;
    a->torn |= is_torn && a->shared;
    return is_torn ? FC_TORN : 0;
}

/* Nobody may attach until fc_share(): to be called before it is asked which holders live. Whoever attaches has its number
 * first, then asks whether the arena is open, so that it is among those who live or is refused. */
void fc_close(fc_arena *a) {
    if (a->magic == FC_MAGIC && a->layout == FC_LAYOUT) {
        __atomic_store_n(&a->is_open, 0, __ATOMIC_SEQ_CST);
    }
}

/* The others do not wait meanwhile, but while what is pinned is counted: only the caller changes what is checked. */
static int take_over_among(fc_arena *a, uint32_t living) {
    int rc = fc_check_content(a);
    rc = rc < 0 ? rc : fc_let_dead_go(a, living);
    rc = rc < 0 ? rc : fc_check_pins(a);
    a->torn |= rc < 0;
    return rc;
}

/* Makes a dead process's arena this one's. `living`: a bit for each holder whose process lives and goes on. 0; FC_OTHER,
 * FC_TORN or what fc_check() says: it cannot be used, and only fc_begin_anew() may follow, if no other holder lives; those
 * that do find it torn. Reads no link or number before it is checked, whatever the bytes are. */
int fc_take_over(fc_arena *a, const fc_config *config, uint32_t living) {
    fc_arena fresh;
    if (fc_format(&fresh, config) < 0 || !has_sections_of(a, &fresh) || a->admitted_bytes > INT64_MAX / 2) {
        return FC_OTHER;
    }
    a->shared = living != 0 && a->shared;
    int rc = a->torn ? FC_TORN : find_torn(a);
    if (a->shared) {
        rc = rc < 0 ? rc : take_over_among(a, living);
    } else {
        rc = rc < 0 ? rc : let_all_go(a);
        rc = rc < 0 ? rc : fc_check(a);
    }
    if (rc == 0) {
        begin_counts(a);
    }
    return rc;
}

/* An empty arena in memory that holds anything; its clock of admitted bytes begins at `admitted_bytes`. Until it is one,
 * its layout is 0, which nobody takes over. */
int fc_begin_anew(fc_arena *a, const fc_config *config, uint64_t admitted_bytes) {
    fc_arena fresh;
    int rc = fc_format(&fresh, config);
    if (rc < 0) {
        return rc;
    }
    __atomic_store_n(&a->layout, 0, __ATOMIC_SEQ_CST);
    fresh.admitted_bytes = fresh.admitted_before = admitted_bytes;
    memset(fc_at(a, sizeof(*a)), 0, fresh.nodes_at - sizeof(*a));
    memcpy(&a->size_bytes, &fresh.size_bytes, sizeof(*a) - offsetof(fc_arena, size_bytes));
    a->magic = FC_MAGIC;
    __atomic_store_n(&a->layout, FC_LAYOUT, __ATOMIC_SEQ_CST);
    return 0;
}

/* The handle of the slot at this place and whose it is, or FC_STALE where it is not open. */
int64_t fc_slot_at(fc_arena *a, uint64_t place, uint8_t *topic_id, int32_t *index) {
    if (place >= a->partitions_touched || fc_partition_at(a, place)->generation % 2 == 0) {
        return FC_STALE;
    }
    const fc_partition *p = fc_partition_at(a, place);
    memcpy(topic_id, p->topic_id, sizeof(p->topic_id));
    *index = p->index;
    return (int64_t)((uint64_t)p->generation << FC_SLOT_BITS | place);
}
