/* Blocks lent to requests that are still arriving, so that a large batch is received where it will be stored.
 * A lent block is written by others and pinned until fc_give_back. While it is reserved it is of no partition and in no
 * queue; a batch in it is adopted (fc_append), and from then on it is a block like any other, with one pin more.
 * Bounded by lent_limit_bytes, and together with all other pins by pin_limit_bytes. */
#include "pyfastcache.h"

/* Takes a block for `size` bytes and returns where they go, as an offset. FC_NO_ROOM: at a bound, too large for a
 * batch, or nothing is left to evict; FC_NOT_STORED: more than `used_max` bytes of blocks are used; FC_RECLAIM as
 * fc_insert. */
int64_t fc_reserve(fc_arena *a, uint64_t size, uint64_t used_max) {
    FC_HOLD(a, FC_TORN);
    uint64_t units = fc_units(size + sizeof(fc_block)), block_bytes = units * FC_UNIT, at;
    if (a->observe || size > a->batch_max_bytes || a->lent_bytes + block_bytes > a->lent_limit_bytes ||
        a->pinned_bytes + block_bytes > a->pin_limit_bytes) {
        return FC_NO_ROOM;
    }
    if ((a->data_units - a->free_units) * FC_UNIT > used_max) {
        return FC_NOT_STORED;
    }
    fc_begin(&a->changes);
    int rc = fc_block_take(a, FC_SHARED, units, units, &at);
    if (rc == 0) {
        fc_block *b = fc_block_at(a, at);
        b->state = FC_RESERVED;
        b->lent = 1;
        a->reserved_blocks++;
        a->lent_bytes += block_bytes;
        fc_block_pin(a, b, 0);
    }
    fc_done(&a->changes);
    return rc < 0 ? rc : (int64_t)(at + sizeof(fc_block));
}

/* Whoever had the memory that begins at `bytes` is done with it. Not adopted, the block is free. FC_STALE: not lent. */
int fc_give_back(fc_arena *a, const uint8_t *bytes) {
    FC_HOLD(a, FC_TORN);
    uint64_t at = (uint64_t)((uintptr_t)bytes - (uintptr_t)a) - sizeof(fc_block);
    if (at < a->data_at || at >= a->data_at + fc_data_bytes(a) || (at - a->data_at) % FC_UNIT != 0 ||
        !fc_bit(a, a->starts_at, fc_unit_of(a, at)) || !fc_block_at(a, at)->lent) {
        return FC_STALE;
    }
    fc_block *b = fc_block_at(a, at);
    fc_begin(&a->changes);
    b->lent = 0;
    a->lent_bytes -= (uint64_t)b->units * FC_UNIT;
    fc_block_unpin(a, b, 0);
    if (b->pins == 0) {
        fc_block_settle(a, b);
    }
    fc_done(&a->changes);
    return 0;
}

/* The reserved block that these bytes lie in, or NULL: they are the caller's own, or adopted already. */
fc_block *fc_reserved_around(fc_arena *a, const uint8_t *bytes, uint64_t length) {
    uint64_t position = (uint64_t)((uintptr_t)bytes - (uintptr_t)a);
    if (position < a->data_at || position >= a->data_at + fc_data_bytes(a) ||
        !fc_bit(a, a->taken_at, fc_unit_of(a, position))) {
        return NULL;
    }
    uint64_t at = fc_block_holding(a, position);
    fc_block *b = fc_block_at(a, at);
    int inside = position >= at + sizeof(fc_block) && position + length <= at + (uint64_t)b->units * FC_UNIT;
    return b->state == FC_RESERVED && inside ? b : NULL;
}

/* The reserved block becomes the newest of a partition; its first batch is about to be stored where it stands. */
void fc_adopt(fc_arena *a, fc_block *b, uint32_t index, const uint8_t *bytes) {
    uint64_t first = (uint64_t)(bytes - (const uint8_t *)b);
    b->slot = index;
    b->generation = ++a->generation;
    b->first_bytes = (uint32_t)first;
    b->used_bytes = b->filled_bytes = first;
    a->reserved_blocks--;
    a->adopted_batches++;
    fc_block_append(a, b);
}
