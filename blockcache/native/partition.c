/* The arena's sections, and the table of partitions: open, drop, and what invalidates their batches. */
#include <string.h>

#include "pyfastcache.h"

static uint64_t place(uint64_t *end, uint64_t bytes) {
    uint64_t at = (*end + 63) / 64 * 64;
    *end = at + bytes;
    return at;
}

/* Lays out an arena in zeroed memory. Everything else is touched when first used. */
int fc_format(fc_arena *a, const fc_config *config) {
    memset(a, 0, sizeof(*a));
    uint64_t end = sizeof(*a);
    uint64_t bits = (config->size_bytes / FC_UNIT + 63) / 64 * 8;
    a->size_bytes = config->size_bytes;
    a->partitions_max = config->partitions_max;
    a->partitions_at = place(&end, a->partitions_max * sizeof(fc_partition));
    a->ghosts_max = config->ghosts_max;
    a->ghosts_at = place(&end, a->ghosts_max * sizeof(fc_ghost));
    a->taken_at = place(&end, bits);
    a->starts_at = place(&end, bits);
    a->nodes_max = config->nodes_max;
    a->nodes_at = place(&end, a->nodes_max * sizeof(fc_node));
    a->data_at = (end + FC_UNIT - 1) / FC_UNIT * FC_UNIT;
    a->nodes_touched = 1;
    a->block_min_bytes = config->block_min_bytes;
    a->block_max_bytes = config->block_max_bytes;
    a->shared_bytes = config->shared_bytes;
    a->pin_limit_bytes = config->pin_limit_bytes;
    a->lent_limit_bytes = config->lent_limit_bytes;
    a->observe = config->observe;
    if (a->data_at + 16 * FC_UNIT > a->size_bytes || a->partitions_max == 0 || a->ghosts_max == 0 ||
        a->partitions_max >= 1u << FC_SLOT_BITS || a->nodes_max < 16 || a->nodes_max >= FC_NONE ||
        a->block_min_bytes < FC_UNIT || a->block_min_bytes > a->block_max_bytes ||
        a->shared_bytes > a->block_max_bytes) {
        return FC_TOO_SMALL;
    }
    a->data_units = (a->size_bytes - a->data_at) / FC_UNIT;
    a->free_units = a->data_units;
    a->batch_max_bytes = fc_data_bytes(a) / 4 - sizeof(fc_block);
    a->layout = FC_LAYOUT;
    a->magic = FC_MAGIC;
    return 0;
}

uint32_t fc_index_of_slot(int64_t slot) { return (uint32_t)(slot & ((1 << FC_SLOT_BITS) - 1)); }

/* The partition of a slot handle, or NULL when it was dropped since. */
fc_partition *fc_partition_of(fc_arena *a, int64_t slot) {
    uint32_t index = fc_index_of_slot(slot);
    if (slot < 0 || index >= a->partitions_touched) {
        return NULL;
    }
    fc_partition *p = fc_partition_at(a, index);
    int is_open = p->generation % 2 == 1 && p->generation == (uint64_t)slot >> FC_SLOT_BITS;
    return is_open ? p : NULL;
}

/* The place of a partition slot that is not open, or the maximum. */
static uint64_t take_place(fc_arena *a) {
    uint64_t place_of = a->partitions_touched;
    if (a->partitions_free != 0) {
        place_of = a->partitions_free - 1;
        a->partitions_free = fc_partition_at(a, place_of)->next_free;
    } else if (place_of < a->partitions_max) {
        a->partitions_touched++;
    }
    return place_of;
}

/* Takes a slot for a partition that has none. Returns the handle (generation and place), or FC_FULL. */
int64_t fc_open(fc_arena *a, const uint8_t *topic_id, int32_t index) {
    FC_HOLD(a, FC_TORN);
    fc_begin(&a->changes);
    uint64_t place_of = take_place(a);
    if (place_of == a->partitions_max) {
        fc_done(&a->changes);
        return FC_FULL;
    }
    fc_partition *p = fc_partition_at(a, place_of);
    uint32_t generation = p->generation + 1;
    memset(p, 0, sizeof(*p));
    memcpy(p->topic_id, topic_id, sizeof(p->topic_id));
    p->index = index;
    p->generation = generation;
    p->expect = -1;
    p->evicted_end = -1;
    p->block_bytes = a->shared_bytes > 0 ? 0 : a->block_min_bytes;
    a->partitions_open++;
    fc_done(&a->changes);
    return (int64_t)((uint64_t)generation << FC_SLOT_BITS | place_of);
}

static void invalidate(fc_arena *a, fc_partition *p, const fc_entry *entry, int reason) {
    fc_entry e = *entry;
    fc_block *b = fc_block_at(a, fc_block_holding(a, e.position));
    fc_index_remove(a, p, e.base_offset);
    a->invalidated_bytes[reason] += e.length;
    fc_block_lost(a, p, b, &e);
}

/* Drops from the newest end batches that end at or above the offset: 1 where some may be left, which in a shared arena are
 * not many while the lock is held. */
static int cut_from(fc_arena *a, fc_partition *p, int64_t from_offset, int reason) {
    const fc_entry *e = fc_tree_last(a, p);
    for (int left = FC_HOLD_BATCHES; e != NULL && fc_last(e) >= from_offset; left -= a->shared != 0) {
        if (left == 0) {
            return 1;
        }
        invalidate(a, p, e, reason);
        e = fc_tree_last(a, p);
    }
    return 0;
}

/* A part of fc_drop: 1 where it is not done. */
static int drop_part(fc_arena *a, int64_t slot) {
    FC_HOLD(a, FC_TORN);
    fc_partition *p = fc_partition_of(a, slot);
    if (p == NULL) {
        return FC_STALE;
    }
    fc_begin(&a->changes);
    if (cut_from(a, p, INT64_MIN, FC_DROPPED)) {
        fc_done(&a->changes);
        return 1;
    }
    p->generation++;
    p->next_free = a->partitions_free;
    a->partitions_free = fc_index_of_slot(slot) + 1u;
    a->partitions_open--;
    fc_done(&a->changes);
    return 0;
}

int fc_drop(fc_arena *a, int64_t slot) {
    int rc;
    do {
        rc = drop_part(a, slot);
    } while (rc == 1);
    return rc;
}

int fc_expect(fc_arena *a, int64_t slot, int64_t offset) {
    FC_HOLD(a, FC_TORN);
    fc_partition *p = fc_partition_of(a, slot);
    if (p == NULL) {
        return FC_STALE;
    }
    p->expect = offset;
    return 0;
}

/* A part of fc_truncate: 1 where it is not done. */
static int truncate_part(fc_arena *a, int64_t slot, int64_t from_offset) {
    FC_HOLD(a, FC_TORN);
    fc_partition *p = fc_partition_of(a, slot);
    if (p == NULL) {
        return FC_STALE;
    }
    fc_begin(&a->changes);
    const fc_entry *last = fc_tree_last(a, p);
    if (last != NULL) {
        p->expect = fc_end(last);
    }
    int more = cut_from(a, p, from_offset, FC_TRUNCATED);
    p->expect = p->expect > from_offset ? from_offset : p->expect;
    p->evicted_end = p->evicted_end > from_offset ? from_offset : p->evicted_end;
    fc_done(&a->changes);
    return more;
}

/* The log now ends at or below `from_offset`; later batches may start there again. */
int fc_truncate(fc_arena *a, int64_t slot, int64_t from_offset) {
    int rc;
    do {
        rc = truncate_part(a, slot, from_offset);
    } while (rc == 1);
    return rc;
}

/* A part of fc_advance_start: 1 where it is not done. */
static int advance_part(fc_arena *a, int64_t slot, int64_t log_start_offset) {
    FC_HOLD(a, FC_TORN);
    fc_partition *p = fc_partition_of(a, slot);
    if (p == NULL) {
        return FC_STALE;
    }
    if (log_start_offset <= p->log_start) {
        return 0;
    }
    fc_begin(&a->changes);
    const fc_entry *last = fc_tree_last(a, p);
    if (last != NULL) {
        p->expect = fc_end(last);
    }
    p->expect = p->expect >= 0 && p->expect < log_start_offset ? log_start_offset : p->expect;
    fc_entry *first = fc_tree_after(a, p, -1);
    for (int left = FC_HOLD_BATCHES; first != NULL && fc_last(first) < log_start_offset; left -= a->shared != 0) {
        if (left == 0) {
            fc_done(&a->changes);
            return 1;
        }
        invalidate(a, p, first, FC_START_MOVED);
        first = fc_tree_after(a, p, -1);
    }
    p->log_start = log_start_offset;
    if (first != NULL && first->covers_from < log_start_offset) {
        int64_t upto = first->base_offset < log_start_offset ? first->base_offset : log_start_offset;
        first->covers_from = first->covers_from > upto ? first->covers_from : upto;
    }
    fc_done(&a->changes);
    return 0;
}

/* The log now starts at `log_start_offset`. A batch that it stands inside of is kept, as the broker keeps it. */
int fc_advance_start(fc_arena *a, int64_t slot, int64_t log_start_offset) {
    int rc;
    do {
        rc = advance_part(a, slot, log_start_offset);
    } while (rc == 1);
    return rc;
}
