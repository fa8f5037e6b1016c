/* Data blocks: appended at the FIFO's newest end, evicted from its oldest, kept in limbo while pinned.
 * Invariants: a block in the FIFO has live entries (but for the one being opened); one in limbo has pins, or is idle, and no
 * entries, nor has one that is reserved (lent.c). The limbo is at most as large as all pinned blocks may be: idle ones are freed
 * before another one enters, and before room is looked for. */
#include <string.h>

#include "pyfastcache.h"

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

void fc_block_append(fc_arena *a, fc_block *b) {
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
    if (a->observe) {
        fc_pages_give(a, offset_of(a, b), (uint64_t)b->units * FC_UNIT);
    }
}

static void leave_limbo(fc_arena *a, fc_block *b) {
    unlink_block(a, b);
    a->limbo_idle--;
    a->limbo_blocks--;
    a->limbo_bytes -= (uint64_t)b->units * FC_UNIT;
    free_block(a, b);
}

/* A block outside of the FIFO that has no pins any more is free. Within a change. */
void fc_block_settle(fc_arena *a, fc_block *b) {
    if (b->state == FC_IN_LIMBO) {
        leave_limbo(a, b);
    } else if (b->state == FC_RESERVED) {
        a->reserved_blocks--;
        free_block(a, b);
    }
}

/* Frees what is idle in limbo. Within a change. */
void fc_limbo_free(fc_arena *a) {
    for (uint64_t at = a->limbo_first; at != 0 && a->limbo_idle > 0;) {
        fc_block *b = fc_block_at(a, at);
        at = b->next;
        if (b->pins == 0) {
            leave_limbo(a, b);
        }
    }
}

static void enter_limbo(fc_arena *a, fc_block *b) {
    fc_limbo_free(a);
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
    uint64_t *open = b->slot == FC_SHARED ? &a->shared_block : &fc_partition_at(a, b->slot)->open_block;
    *open = *open == offset_of(a, b) ? 0 : *open;
    unlink_block(a, b);
    a->blocks--;
    if (b->pins > 0) {
        enter_limbo(a, b);
    } else {
        free_block(a, b);
    }
}

static void count_lost(fc_arena *a, fc_partition *p, fc_block *b, uint64_t length) {
    b->live--;
    b->live_bytes -= length;
    p->entries--;
    p->live_bytes -= length;
    a->entries--;
    a->live_bytes -= length;
}

/* An entry was invalidated (it is out of the index): its block is retired with its last one. */
void fc_block_lost(fc_arena *a, fc_partition *p, fc_block *b, const fc_entry *e) {
    count_lost(a, p, b, e->length);
    if (b->live == 0) {
        retire(a, b);
    }
}

/* Nobody holds or writes the block that starts at this unit any more: its pins are gone, and it is free unless it is in
 * the FIFO. Links and sums of the limbo are the caller's. FC_BROKEN_UNITS: it is no block. */
int fc_block_let_go(fc_arena *a, uint64_t unit) {
    fc_block *b = fc_block_at(a, a->data_at + unit * FC_UNIT);
    if (b->units == 0 || b->units > a->data_units - unit) {
        return FC_BROKEN_UNITS;
    }
    b->pins = b->offered = b->lent = 0;
    memset(b->pins_of, 0, sizeof(b->pins_of));
    if (b->state != FC_IN_FIFO) {
        free_block(a, b);
    }
    return 0;
}

/* Takes the first entries that point into the block out of the index, until `left` are left; the ghost remembers them. */
static void remove_entries(fc_arena *a, fc_block *b, uint32_t left) {
    uint64_t at = offset_of(a, b), used = b->first_bytes;
    uint32_t slot;
    fc_batch batch;
    while (b->live > left && fc_block_step(a, b, &used, &slot, &batch) > 0) {
        fc_partition *p = fc_partition_at(a, slot);
        const fc_entry *e = fc_tree_floor(a, p, batch.base);
        if (e == NULL || e->position != at + used - fc_footprint(a, batch.length)) {
            continue; /* invalidated since, or of a partition that had this slot before */
        }
        fc_ghost_add(a, slot, e);
        count_lost(a, p, b, e->length);
        p->evicted_end = fc_end(e) > p->evicted_end ? fc_end(e) : p->evicted_end;
        fc_index_remove(a, p, batch.base);
        if (p->entries == 0) {
            p->expect = p->evicted_end;
        }
    }
    b->first_bytes = left > 0 ? (uint32_t)used : b->first_bytes;
}

/* Evicts the FIFO's oldest block and says which units came free (none where it went to limbo). A block that holder 0 pins
 * is first offered once: FC_RECLAIM, with the block named in the arena's header. Nobody can ask the other holders. */
int fc_evict_oldest(fc_arena *a, int reason, uint64_t *unit, uint64_t *units) {
    if (a->fifo_oldest == 0) {
        return FC_NO_ROOM;
    }
    fc_block *b = fc_block_at(a, a->fifo_oldest);
    if (b->pins > 0 && !b->offered && fc_pins_of(a, b, 0) > 0) {
        b->offered = 1;
        a->reclaim_block = a->fifo_oldest;
        a->reclaim_generation = b->generation;
        return FC_RECLAIM;
    }
    *unit = fc_unit_of(a, a->fifo_oldest);
    *units = b->pins > 0 ? 0 : b->units;
    a->evicted_blocks[reason]++;
    a->evicted_bytes += b->live_bytes;
    remove_entries(a, b, 0);
    retire(a, b);
    return 0;
}

/* Of a shared arena: evicts the first batches of a block of many, so that the lock is not held for all. 0: it has few, or its
 * pins are to be offered first. */
static int evict_some(fc_arena *a) {
    fc_block *b = fc_block_at(a, a->fifo_oldest);
    if (!a->shared || a->observe || a->fifo_oldest == 0 || b->live <= FC_HOLD_BATCHES ||
        (!b->offered && b->pins > 0 && fc_pins_of(a, b, 0) > 0)) {
        return 0;
    }
    uint64_t live_bytes = b->live_bytes;
    remove_entries(a, b, b->live - FC_HOLD_BATCHES);
    a->evicted_bytes += live_bytes - b->live_bytes;
    return 1;
}

/* Evicts one block if more than `used_bytes` are taken: 1, 2 where it is not done, or 0 where that is not so or what is left is
 * in limbo. */
static int evict_one(fc_arena *a, uint64_t used_bytes) {
    uint64_t unit, units;
    FC_HOLD(a, FC_TORN);
    if ((a->data_units - a->free_units) * FC_UNIT <= used_bytes) {
        return 0;
    }
    fc_begin(&a->changes);
    fc_limbo_free(a);
    int enough = (a->data_units - a->free_units) * FC_UNIT <= used_bytes;
    int more = !enough && evict_some(a);
    int rc = enough ? FC_NO_ROOM : more ? 0 : fc_evict_oldest(a, FC_FOR_WATER, &unit, &units);
    fc_done(&a->changes);
    return rc == 0 ? 1 + more : rc == FC_NO_ROOM ? 0 : rc;
}

/* The eliminator: evicts until at most `used_bytes` of the data pool are taken. Returns the number of blocks
 * evicted by this call, or FC_RECLAIM: call again. Other calls come in between. */
int64_t fc_evict_to(fc_arena *a, uint64_t used_bytes) {
    int64_t evicted = 0;
    for (;;) {
        int rc = evict_one(a, used_bytes);
        if (rc <= 0) {
            return rc < 0 ? rc : evicted;
        }
        evicted += rc == 1;
    }
}

/* The clock at which the oldest block's first batch was admitted; the present one when there is no block. */
int64_t fc_oldest_admitted(fc_arena *a) {
    FC_HOLD_TO_READ(a);
    return (int64_t)(a->fifo_oldest == 0 ? a->admitted_bytes : fc_block_at(a, a->fifo_oldest)->opened);
}
