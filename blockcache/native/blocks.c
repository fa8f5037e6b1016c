/* Data blocks while they are written to: which block a batch goes to, and the size classes that follow a partition's
 * rate. A slow partition has no block of its own: its batches go to the shared block, in order of arrival, so that
 * what is reserved and not yet written is one block and not one for each partition. */
#include <string.h>

#include "pyfastcache.h"

/* Shares of the arena's turnover (as many admitted bytes as the data pool has). A block that takes longer than one
 * LASTS-th to fill is sealed as it is, so that the FIFO over blocks is one over batches to that precision; one that
 * is full within a QUICK-th is followed by one of twice the size. */
enum { LASTS = 16, QUICK = 64 };

/* Reads the batch at `used` bytes from the block's start and steps over it. 0 at the end, negative if garbled. */
int fc_block_step(fc_arena *a, const fc_block *b, uint64_t *used, uint32_t *slot, fc_batch *batch) {
    if (*used >= b->filled_bytes) {
        return 0;
    }
    if (b->filled_bytes - *used < FC_BATCH_HEADER + fc_owner_bytes(b)) {
        return FC_BAD_BATCH;
    }
    const uint8_t *bytes = (const uint8_t *)b + *used;
    *slot = b->slot;
    if (b->slot == FC_SHARED) {
        memcpy(slot, bytes, FC_OWNER_BYTES);
        bytes += FC_OWNER_BYTES;
    }
    if (fc_read_head(bytes, batch) < 0) {
        return FC_BAD_BATCH;
    }
    *used += fc_owner_bytes(b) + fc_footprint(a, batch->length);
    return *used <= b->filled_bytes ? 1 : FC_BAD_BATCH;
}

/* Consecutive free units, evicting for them. Looks again only around what came free. */
static int make_room(fc_arena *a, uint64_t least, uint64_t most, uint64_t *found, uint64_t *got) {
    fc_limbo_free(a);
    *found = fc_units_take(a, least, most, got);
    while (*found == UINT64_MAX) {
        uint64_t unit, units;
        int rc = fc_evict_oldest(a, FC_FOR_ROOM, &unit, &units);
        if (rc == FC_NO_ROOM) {
            *found = fc_units_take_within(a, 0, a->data_units, least, most, got);
            return *found == UINT64_MAX ? FC_NO_ROOM : 0;
        }
        if (rc < 0) {
            return rc;
        }
        uint64_t from = unit > most ? unit - most : 0;
        uint64_t to = unit + units + most < a->data_units ? unit + units + most : a->data_units;
        *found = fc_units_take_within(a, from, to, least, most, got);
    }
    return 0;
}

/* Consecutive units, evicted for where need be, become a block that is in no queue yet. */
int fc_block_take(fc_arena *a, uint32_t slot, uint64_t least, uint64_t most, uint64_t *at) {
    uint64_t unit, units;
    int rc = make_room(a, least, most, &unit, &units);
    if (rc < 0) {
        return rc;
    }
    *at = a->data_at + unit * FC_UNIT;
    fc_block *b = fc_block_at(a, *at);
    memset(b, 0, sizeof(*b));
    b->units = (uint32_t)units;
    b->generation = ++a->generation;
    b->slot = slot;
    b->used_bytes = b->filled_bytes = b->first_bytes = sizeof(fc_block);
    b->opened = a->admitted_bytes;
    fc_set_bit(a, a->starts_at, unit, 1);
    return 0;
}

/* Opens a block of `want_bytes`, header apart. It may be a quarter of that where a gap is no larger (stepped over, the
 * gap would stay empty for a whole turn), and what holds `need_bytes` where all else is pinned. */
static int open_block(fc_arena *a, uint32_t slot, uint64_t need_bytes, uint64_t want_bytes, uint64_t *at) {
    uint64_t need = fc_units(need_bytes + sizeof(fc_block)), most = fc_units(want_bytes + sizeof(fc_block));
    int rc = fc_block_take(a, slot, need > most / 4 ? need : most / 4, most, at);
    if (rc == FC_NO_ROOM) {
        rc = fc_block_take(a, slot, need, need, at);
    }
    if (rc == 0) {
        fc_block_append(a, fc_block_at(a, *at));
    }
    return rc;
}

/* Gives back the units that a block did not need. */
static void trim(fc_arena *a, uint64_t at) {
    fc_block *b = fc_block_at(a, at);
    uint64_t keep = fc_units(b->used_bytes), spare = b->units - keep;
    if (spare > 0) {
        b->units = (uint32_t)keep;
        fc_units_give(a, fc_unit_of(a, at) + keep, spare);
        a->pinned_bytes -= b->pins > 0 ? spare * FC_UNIT : 0;
    }
}

/* Closes a partition's own block and fits the size of the next one to the partition's rate. */
static void seal(fc_arena *a, fc_partition *p) {
    uint64_t lasted = a->admitted_bytes - fc_block_at(a, p->open_block)->opened;
    if (lasted < fc_data_bytes(a) / QUICK) {
        uint64_t larger = p->block_bytes == 0 ? a->block_min_bytes : p->block_bytes * 2;
        p->block_bytes = larger <= a->block_max_bytes ? larger : p->block_bytes;
    } else if (lasted > fc_data_bytes(a) / LASTS) {
        uint64_t smallest = a->shared_bytes > 0 ? 0 : a->block_min_bytes;
        p->block_bytes = p->block_bytes / 2 >= a->block_min_bytes ? p->block_bytes / 2 : smallest;
    }
    trim(a, p->open_block);
    p->open_block = 0;
}

/* A batch of a slow partition was stored: after so many bytes, in so short a time, it is none any more. */
void fc_count_rate(fc_arena *a, fc_partition *p, uint64_t length) {
    if (p->window_bytes == 0) {
        p->window_opened = a->admitted_bytes;
    }
    p->window_bytes += length;
    if (p->window_bytes >= a->block_min_bytes) {
        uint64_t lasted = a->admitted_bytes - p->window_opened;
        p->block_bytes = lasted < fc_data_bytes(a) / QUICK ? a->block_min_bytes : 0;
        p->window_bytes = 0;
    }
}

static int has_room(fc_arena *a, uint64_t at, uint64_t length) {
    const fc_block *b = fc_block_at(a, at);
    int fits = (uint64_t)b->units * FC_UNIT - b->used_bytes >= length + fc_owner_bytes(b);
    return fits && a->admitted_bytes - b->opened <= fc_data_bytes(a) / LASTS;
}

static int shared_block_for(fc_arena *a, uint64_t length, uint64_t *at) {
    if (a->shared_block != 0 && !has_room(a, a->shared_block, length)) {
        trim(a, a->shared_block);
        a->shared_block = 0;
    }
    if (a->shared_block == 0) {
        uint64_t header = sizeof(fc_block), need = length + FC_OWNER_BYTES;
        uint64_t want = a->shared_bytes > need + header ? a->shared_bytes - header : need;
        int rc = open_block(a, FC_SHARED, need, want, &a->shared_block);
        if (rc < 0) {
            a->shared_block = 0;
            return rc;
        }
    }
    *at = a->shared_block;
    return 0;
}

/* The block that takes a batch of `length` bytes, with `remaining` of its run still to come: one with room. */
int fc_block_for(fc_arena *a, uint32_t index, uint64_t length, uint64_t remaining, uint64_t *at) {
    fc_partition *p = fc_partition_at(a, index);
    if (p->open_block != 0 && !has_room(a, p->open_block, length)) {
        seal(a, p);
    }
    if (p->open_block == 0 && p->block_bytes == 0 && remaining <= a->shared_bytes / 8) {
        return shared_block_for(a, length, at);
    }
    if (p->open_block == 0) {
        uint64_t want = p->block_bytes / length * length; /* whole batches, if they go on as this one is */
        uint64_t run = remaining < a->block_max_bytes ? remaining : a->block_max_bytes;
        want = want > run ? want : run;
        want = want > length ? want : length;
        int rc = open_block(a, index, length, want, &p->open_block);
        if (rc < 0) {
            p->open_block = 0;
            return rc;
        }
    }
    *at = p->open_block;
    return 0;
}
