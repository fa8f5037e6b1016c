/* Data blocks: opened at the FIFO's newest end, sealed, evicted from its oldest, kept in limbo while pinned.
 * Invariants: a block in the FIFO has live entries (but for the one being opened); one in limbo has pins and none. */
#include <string.h>

#include "pyfastcache.h"

_Static_assert(sizeof(fc_block) == 96, "a block's header is 96 bytes");

/* The block of a handle, or NULL when the handle is stale. */
fc_block *fc_block_of(fc_arena *a, uint64_t at, uint64_t generation) {
    if (at < a->data_at || at >= a->size_bytes || (at - a->data_at) % FC_UNIT != 0 ||
        !fc_bit(a, a->starts_at, fc_unit_of(a, at))) {
        return NULL;
    }
    fc_block *b = fc_block_at(a, at);
    return b->generation == generation ? b : NULL;
}

/* The offset of the block that holds this byte. */
uint64_t fc_block_holding(fc_arena *a, uint64_t position) {
    return a->data_at + fc_find_bit_before(a, a->starts_at, fc_unit_of(a, position)) * FC_UNIT;
}

static uint64_t offset_of(fc_arena *a, const fc_block *b) {
    return (uint64_t)((const uint8_t *)b - (const uint8_t *)a);
}

static void append_newest(fc_arena *a, fc_block *b) {
    uint64_t at = offset_of(a, b);
    b->state = FC_IN_FIFO;
    b->prev = a->fifo_newest;
    b->next = 0;
    if (b->prev != 0) {
        fc_block_at(a, b->prev)->next = at;
    } else {
        a->fifo_oldest = at;
    }
    a->fifo_newest = at;
    a->blocks++;
}

static void unlink_block(fc_arena *a, fc_block *b) {
    uint64_t *first = b->state == FC_IN_FIFO ? &a->fifo_oldest : &a->limbo_first;
    if (b->prev != 0) {
        fc_block_at(a, b->prev)->next = b->next;
    } else {
        *first = b->next;
    }
    if (b->next != 0) {
        fc_block_at(a, b->next)->prev = b->prev;
    } else if (b->state == FC_IN_FIFO) {
        a->fifo_newest = b->prev;
    }
}

static void free_block(fc_arena *a, fc_block *b) {
    uint64_t unit = fc_unit_of(a, offset_of(a, b));
    b->state = 0;
    fc_set_bit(a, a->starts_at, unit, 0);
    fc_units_give(a, unit, b->units);
}

static void enter_limbo(fc_arena *a, fc_block *b) {
    b->state = FC_IN_LIMBO;
    b->prev = 0;
    b->next = a->limbo_first;
    if (b->next != 0) {
        fc_block_at(a, b->next)->prev = offset_of(a, b);
    }
    a->limbo_first = offset_of(a, b);
    a->limbo_blocks++;
    a->limbo_bytes += (uint64_t)b->units * FC_UNIT;
    a->limbo_entered++;
}

/* Takes a block without live entries out of the FIFO: freed, or in limbo while pinned. */
static void retire(fc_arena *a, fc_block *b) {
    fc_partition *p = fc_partition_at(a, b->slot);
    if (p->open_block == offset_of(a, b)) {
        p->open_block = 0;
    }
    unlink_block(a, b);
    a->blocks--;
    if (b->pins > 0) {
        enter_limbo(a, b);
    } else {
        free_block(a, b);
    }
}

static void count_lost(fc_arena *a, fc_block *b, uint64_t length) {
    fc_partition *p = fc_partition_at(a, b->slot);
    b->live--;
    b->live_bytes -= length;
    p->entries--;
    p->live_bytes -= length;
    a->entries--;
    a->live_bytes -= length;
}

/* An entry was invalidated (it is out of the index): its block is retired with its last one. */
void fc_block_lost(fc_arena *a, fc_block *b, const fc_entry *e) {
    count_lost(a, b, e->length);
    if (b->live == 0) {
        retire(a, b);
    }
}

void fc_block_pin(fc_arena *a, fc_block *b) {
    if (b->pins++ == 0) {
        a->pinned_bytes += (uint64_t)b->units * FC_UNIT;
    }
    a->pins++;
}

void fc_block_unpin(fc_arena *a, fc_block *b) {
    a->pins--;
    if (--b->pins > 0) {
        return;
    }
    b->offered = 0;
    a->pinned_bytes -= (uint64_t)b->units * FC_UNIT;
    if (b->state == FC_IN_LIMBO) {
        unlink_block(a, b);
        a->limbo_blocks--;
        a->limbo_bytes -= (uint64_t)b->units * FC_UNIT;
        free_block(a, b);
    }
}

/* Takes every entry that points into the block out of the index; fills `ghost` with what it was. */
static void remove_entries(fc_arena *a, fc_block *b, fc_ghost *ghost) {
    fc_partition *p = fc_partition_at(a, b->slot);
    uint64_t at = offset_of(a, b);
    fc_batch batch;
    *ghost = (fc_ghost){.first_offset = INT64_MAX, .first_admitted = b->opened, .last_admitted = b->written};
    for (uint64_t used = sizeof(fc_block); used < b->used_bytes; used += batch.length) {
        if (fc_read_batch(fc_at(a, at + used), b->used_bytes - used, &batch) < 0) {
            return; /* cannot be: only whole batches were written */
        }
        const fc_entry *e = fc_tree_floor(a, p, batch.base);
        if (e == NULL || e->position != at + used) {
            continue;
        }
        ghost->first_offset = e->covers_from < ghost->first_offset ? e->covers_from : ghost->first_offset;
        ghost->next_offset = fc_end(e) > ghost->next_offset ? fc_end(e) : ghost->next_offset;
        count_lost(a, b, e->length);
        fc_index_remove(a, p, batch.base);
    }
}

/* Evicts the FIFO's oldest block and says which units came free (none where it went to limbo). A pinned block is
 * first offered once: FC_RECLAIM, with the block named in the arena's header. */
int fc_evict_oldest(fc_arena *a, int reason, uint64_t *unit, uint64_t *units) {
    if (a->fifo_oldest == 0) {
        return FC_NO_ROOM;
    }
    fc_block *b = fc_block_at(a, a->fifo_oldest);
    if (b->pins > 0 && !b->offered) {
        b->offered = 1;
        a->reclaim_block = a->fifo_oldest;
        a->reclaim_generation = b->generation;
        return FC_RECLAIM;
    }
    uint32_t index = b->slot;
    fc_partition *p = fc_partition_at(a, index);
    int64_t tail_end = fc_end(fc_tree_last(a, p));
    fc_ghost ghost;
    *unit = fc_unit_of(a, a->fifo_oldest);
    *units = b->pins > 0 ? 0 : b->units;
    a->evicted_blocks[reason]++;
    a->evicted_bytes += b->live_bytes;
    remove_entries(a, b, &ghost);
    retire(a, b);
    fc_ghost_add(a, index, &ghost);
    p->evicted_end = ghost.next_offset > p->evicted_end ? ghost.next_offset : p->evicted_end;
    if (p->entries == 0) {
        p->expect = tail_end;
    }
    return 0;
}

/* The eliminator: evicts until at most `used_bytes` of the data pool are taken. Returns the number of blocks
 * evicted by this call, or FC_RECLAIM: call again. */
int64_t fc_evict_to(fc_arena *a, uint64_t used_bytes) {
    int64_t evicted = 0;
    while ((a->data_units - a->free_units) * FC_UNIT > used_bytes) {
        uint64_t unit, units;
        int rc = fc_evict_oldest(a, FC_FOR_WATER, &unit, &units);
        if (rc == FC_NO_ROOM) {
            break; /* what is left is in limbo */
        }
        if (rc < 0) {
            return rc;
        }
        evicted++;
    }
    return evicted;
}

/* The clock at which the oldest block's first batch was admitted; the present one when there is no block. */
uint64_t fc_oldest_admitted(fc_arena *a) {
    return a->fifo_oldest == 0 ? a->admitted_bytes : fc_block_at(a, a->fifo_oldest)->opened;
}

/* Consecutive free units, evicting for them. Looks again only around what came free. */
static int make_room(fc_arena *a, uint64_t want, uint64_t *found) {
    *found = fc_units_take(a, want);
    while (*found == UINT64_MAX) {
        uint64_t unit, units;
        int rc = fc_evict_oldest(a, FC_FOR_ROOM, &unit, &units);
        if (rc == FC_NO_ROOM) {
            *found = fc_units_take_within(a, 0, a->data_units, want);
            return *found == UINT64_MAX ? FC_NO_ROOM : 0;
        }
        if (rc < 0) {
            return rc;
        }
        uint64_t from = unit > want ? unit - want : 0;
        uint64_t to = unit + units + want < a->data_units ? unit + units + want : a->data_units;
        *found = fc_units_take_within(a, from, to, want);
    }
    return 0;
}

/* Opens a block for a partition that has none open, of `want_bytes` or, where all is pinned, `need_bytes`. */
int fc_block_open(fc_arena *a, uint32_t index, uint64_t need_bytes, uint64_t want_bytes) {
    uint64_t unit, units = fc_units(want_bytes + sizeof(fc_block));
    int rc = make_room(a, units, &unit);
    if (rc == FC_NO_ROOM) {
        units = fc_units(need_bytes + sizeof(fc_block));
        rc = make_room(a, units, &unit);
    }
    if (rc < 0) {
        return rc;
    }
    uint64_t at = a->data_at + unit * FC_UNIT;
    fc_block *b = fc_block_at(a, at);
    memset(b, 0, sizeof(*b));
    b->units = (uint32_t)units;
    b->generation = ++a->generation;
    b->slot = index;
    b->used_bytes = sizeof(fc_block);
    b->opened = a->admitted_bytes;
    fc_set_bit(a, a->starts_at, unit, 1);
    append_newest(a, b);
    fc_partition_at(a, index)->open_block = at;
    return 0;
}

/* Closes a partition's open block: gives back the units that it did not need, and fits the size of the next one to
 * the partition's rate. */
void fc_block_seal(fc_arena *a, fc_partition *p) {
    fc_block *b = fc_block_at(a, p->open_block);
    uint64_t keep = fc_units(b->used_bytes), spare = b->units - keep;
    uint64_t lasted = a->admitted_bytes - b->opened;
    if (lasted < fc_data_bytes(a) / 16 && p->block_bytes * 2 <= a->block_max_bytes) {
        p->block_bytes *= 2;
    } else if (lasted > fc_data_bytes(a) / 4 && p->block_bytes / 2 >= a->block_min_bytes) {
        p->block_bytes /= 2;
    }
    if (spare > 0) {
        b->units = (uint32_t)keep;
        fc_units_give(a, fc_unit_of(a, p->open_block) + keep, spare);
        a->pinned_bytes -= b->pins > 0 ? spare * FC_UNIT : 0;
    }
    p->open_block = 0;
}
