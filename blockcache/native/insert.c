/* Admits a run of consecutive batches of one partition: walks headers, compares with what is stored, copies. */
#include <string.h>

#include "pyfastcache.h"

enum { STORE, KEEP, CONFLICT, SKIP };

/* The whole run is looked at before anything is stored: ascending whole batches, none below `covers_from`. */
static int scan_run(const uint8_t *run, uint64_t size, int64_t covers_from) {
    if (covers_from < 0 || size == 0) {
        return FC_BAD_BATCH;
    }
    for (uint64_t at = 0; at < size;) {
        fc_batch batch;
        if (fc_read_batch(run + at, size - at, &batch) < 0 || batch.base < covers_from) {
            return FC_BAD_BATCH;
        }
        covers_from = batch.last + 1;
        at += batch.length;
    }
    return 0;
}

/* What is stored decides: the same append is kept as it is (the log cleaner may have thinned the newcomer), a batch
 * within offsets known to be empty was cleaned away, any other overlap is a truncation. */
static int plan_batch(fc_arena *a, const fc_partition *p, const fc_batch *batch) {
    if (batch->last < p->log_start || batch->length > a->batch_max_bytes) {
        return SKIP;
    }
    const fc_entry *e = fc_tree_floor(a, p, batch->last);
    if (e != NULL && fc_last(e) >= batch->base) {
        int same = e->base_offset == batch->base && fc_last(e) == batch->last && e->leader_epoch == batch->epoch &&
                   fc_same_batch(fc_at(a, e->position), batch);
        return same ? KEEP : CONFLICT;
    }
    const fc_entry *after = fc_tree_after(a, p, batch->last);
    if (after != NULL && after->covers_from <= batch->last) {
        return batch->epoch > after->leader_epoch ? CONFLICT : KEEP;
    }
    return STORE;
}

/* Index nodes for one insertion. */
static int make_index_room(fc_arena *a, uint32_t index) {
    while (fc_tree_room(a) < (uint64_t)fc_partition_at(a, index)->height + 1) {
        uint64_t unit, units;
        int rc = fc_evict_oldest(a, FC_FOR_INDEX, &unit, &units);
        if (rc < 0) {
            return rc;
        }
    }
    return 0;
}

/* Index nodes for one insertion, and a place in a block. */
static int reserve(fc_arena *a, uint32_t index, uint64_t length, uint64_t remaining, uint64_t *at) {
    int rc = make_index_room(a, index);
    return rc < 0 ? rc : fc_block_for(a, index, length, remaining, at);
}

static void store(fc_arena *a, uint32_t index, uint64_t at, const fc_batch *batch, int64_t covers_from) {
    fc_partition *p = fc_partition_at(a, index);
    fc_block *b = fc_block_at(a, at);
    uint64_t owner = fc_owner_bytes(b), position = at + b->filled_bytes + owner;
    memcpy(fc_at(a, position - owner), &index, owner);
    if (fc_at(a, position) != batch->bytes) { /* else it was received here */
        memcpy(fc_at(a, position), batch->bytes, fc_footprint(a, batch->length));
    }
    fc_write_head(fc_at(a, position), batch);
    a->admitted_bytes += batch->length;
    a->admitted_batches++;
    fc_entry entry = {.covers_from = covers_from,
                      .base_offset = batch->base,
                      .position = position,
                      .admitted = a->admitted_bytes,
                      .last_delta = (uint32_t)(batch->last - batch->base),
                      .length = (uint32_t)batch->length,
                      .leader_epoch = batch->epoch};
    fc_index_add(a, p, &entry);
    b->opened = b->live == 0 && b->used_bytes == b->first_bytes ? a->admitted_bytes : b->opened;
    b->written = a->admitted_bytes;
    b->used_bytes += owner + batch->length;
    b->filled_bytes += owner + fc_footprint(a, batch->length);
    b->live++;
    b->live_bytes += batch->length;
    p->entries++;
    p->live_bytes += batch->length;
    a->entries++;
    a->live_bytes += batch->length;
    if (owner > 0) {
        fc_count_rate(a, p, batch->length);
    }
}

/* Returns what became of the batch, or a negative error with nothing changed but evictions. */
static int insert_batch(fc_arena *a, uint32_t index, const fc_batch *batch, uint64_t remaining, int64_t covers_from) {
    fc_partition *p = fc_partition_at(a, index);
    int plan = plan_batch(a, p, batch);
    if (plan == KEEP) {
        const fc_entry *e = fc_tree_floor(a, p, batch->base);
        if (e != NULL && e->base_offset == batch->base) {
            fc_index_cover(a, p, batch->base, covers_from);
        }
        a->kept_batches++;
    }
    if (plan != STORE) {
        return plan;
    }
    uint64_t at;
    int rc = reserve(a, index, batch->length, remaining, &at);
    if (rc == FC_NO_ROOM) {
        return SKIP;
    }
    if (rc < 0) {
        return rc;
    }
    store(a, index, at, batch, covers_from);
    return STORE;
}

/* Stores the batches of the run from out->position on that begin before `until`. */
static int insert_run(fc_arena *a, uint32_t index, const uint8_t *run, uint64_t size, uint64_t until, fc_inserted *out) {
    while (out->position < until) {
        fc_batch batch;
        uint64_t remaining = size - out->position;
        if (fc_read_batch(run + out->position, remaining, &batch) < 0) {
            return FC_BAD_BATCH;
        }
        if (out->position == 0) {
            out->first_offset = out->next_offset = batch.base;
            out->conflict_offset = -1;
        }
        int done = insert_batch(a, index, &batch, remaining, out->covers_from);
        if (done < 0) {
            return done;
        }
        if (done == CONFLICT) {
            a->conflicts++;
            out->conflict_offset = batch.base;
            return 0;
        }
        out->stored_bytes += done == STORE ? batch.length : 0;
        out->stored_batches += done == STORE;
        out->skipped_bytes += done == SKIP ? batch.length : 0;
        a->skipped_batches += done == SKIP;
        a->skipped_bytes += done == SKIP ? batch.length : 0;
        out->next_offset = out->covers_from = batch.last + 1;
        out->position += batch.length;
    }
    return 0;
}

/* Stores batches of the run from out->position on; in a shared arena not all of many bytes while the lock is held. */
static int insert_part(fc_arena *a, int64_t slot, const uint8_t *run, uint64_t size, fc_inserted *out) {
    FC_HOLD(a, FC_TORN);
    uint64_t until = a->shared && size - out->position > FC_HOLD_BYTES ? out->position + FC_HOLD_BYTES : size;
    fc_begin(&a->changes);
    int rc = insert_run(a, fc_index_of_slot(slot), run, size, until, out);
    fc_done(&a->changes);
    return rc;
}

/* Stores what of the run is new. Returns 0, also where it stopped at a conflict (out->conflict_offset, nothing stored
 * from there on); FC_RECLAIM: offer the block that the header names and call again with `out` as it is. */
int fc_insert(fc_arena *a, int64_t slot, const uint8_t *run, uint64_t size, fc_inserted *out) {
    if (fc_partition_of(a, slot) == NULL) {
        return FC_STALE;
    }
    if (out->position == 0 && scan_run(run, size, out->covers_from) < 0) {
        return FC_BAD_BATCH;
    }
    int rc = 0;
    do {
        rc = insert_part(a, slot, run, size, out);
    } while (rc == 0 && out->position < size && out->conflict_offset < 0);
    return rc;
}

/* The batch that `placed` names, with the place that its broker gave it. */
static int read_placed(const uint8_t *buf, uint64_t size, const fc_placed *placed, fc_batch *out) {
    if (placed->start < 0 || placed->end < placed->start || (uint64_t)placed->end > size) {
        return FC_BAD_BATCH;
    }
    uint64_t length = (uint64_t)(placed->end - placed->start);
    if (fc_read_batch(buf + placed->start, length, out) < 0 || out->length != length) {
        return FC_BAD_BATCH;
    }
    int64_t base = placed->base_offset, delta = out->last - out->base;
    if (base < 0 || base >= INT64_MAX - delta) {
        return FC_BAD_BATCH;
    }
    out->base = base;
    out->last = base + delta;
    out->epoch = (int32_t)placed->leader_epoch;
    return 0;
}

static int append_batch(fc_arena *a, uint32_t index, const fc_batch *batch) {
    if (plan_batch(a, fc_partition_at(a, index), batch) != STORE) {
        return FC_NOT_STORED;
    }
    uint64_t at;
    fc_block *lent = fc_reserved_around(a, batch->bytes, batch->length);
    int rc = lent == NULL ? reserve(a, index, batch->length, batch->length, &at) : make_index_room(a, index);
    if (rc == 0 && lent != NULL) {
        fc_adopt(a, lent, index, batch->bytes);
        at = (uint64_t)((uint8_t *)lent - (uint8_t *)a);
    }
    if (rc == 0) {
        store(a, index, at, batch, batch->base);
    }
    return rc == FC_NO_ROOM ? FC_NOT_STORED : rc;
}

/* Where the run of the batch ends now, or a negative error with nothing changed but evictions. */
static int64_t append_placed(fc_arena *a, const uint8_t *buf, uint64_t size, fc_placed *placed, uint64_t used_max) {
    FC_HOLD(a, FC_TORN);
    fc_batch batch;
    if (fc_partition_of(a, placed->slot) == NULL) {
        return FC_STALE;
    }
    if (read_placed(buf, size, placed, &batch) < 0) {
        return FC_BAD_BATCH;
    }
    if ((a->data_units - a->free_units) * FC_UNIT > used_max &&
        fc_reserved_around(a, batch.bytes, batch.length) == NULL) {
        return FC_NOT_STORED;
    }
    placed->clock = (int64_t)a->admitted_bytes;
    fc_begin(&a->changes);
    int rc = append_batch(a, fc_index_of_slot(placed->slot), &batch);
    fc_done(&a->changes);
    return rc < 0 ? rc : fc_contiguous_end(a, placed->slot, placed->base_offset);
}

/* Batches of `buf` that were acknowledged, each stored with its base offset and epoch. In memory that fc_reserve lent one
 * is stored where it lies: that needs no room. The first `done` of `placed` are done already; returns how many are now. Less
 * than `count`: FC_RECLAIM as in fc_insert, call again. run_end FC_NOT_STORED: something of it is there, it may not enter, or
 * more than `used_max` bytes of blocks are used; nothing but evictions has happened, and fc_insert says which. */
uint64_t fc_append(fc_arena *a, const uint8_t *buf, uint64_t size, fc_placed *placed, uint64_t done, uint64_t count,
                   uint64_t used_max) {
    for (; done < count; done++) {
        placed[done].run_end = append_placed(a, buf, size, &placed[done], used_max);
        if (placed[done].run_end == FC_RECLAIM) {
            break;
        }
    }
    return done;
}

/* fc_append for C that knows neither arena nor places: `placed` has fc_placed. */
uint64_t fc_append_to(void *arena, const uint8_t *buf, uint64_t size, void *placed, uint64_t done, uint64_t count,
                      uint64_t used_max) {
    return fc_append(arena, buf, size, placed, done, count, used_max);
}
