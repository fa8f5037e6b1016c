/* Reads: contiguous whole batches as segments with pins, the edges that admission asks for, ages. */
#include <stddef.h>
#include <string.h>

#include "pyfastcache.h"

static fc_entry *next_entry(fc_arena *a, fc_entry *e) {
    uint64_t from_nodes = (uint64_t)((uint8_t *)e - fc_at(a, a->nodes_at));
    fc_node *leaf = fc_node_at(a, (uint32_t)(from_nodes / sizeof(fc_node)));
    if (e + 1 < leaf->entry + leaf->count) {
        return e + 1;
    }
    return leaf->next == 0 ? NULL : &fc_node_at(a, leaf->next)->entry[0];
}

/* Adds an entry's bytes; 0 when there is no place for another segment. */
static int add_segment(fc_arena *a, fc_hit *out, const fc_entry *e) {
    fc_segment *s = &out->segment[out->segments];
    if (out->segments > 0 && s[-1].position + s[-1].length == e->position) {
        s[-1].length += e->length; /* adjacent bytes are in one block: a header stands between two blocks */
    } else if (out->segments == FC_SEGMENTS_MAX) {
        return 0;
    } else {
        uint64_t at = fc_block_holding(a, e->position);
        *s = (fc_segment){e->position, e->length, at, fc_block_at(a, at)->generation};
        out->segments++;
    }
    return 1;
}

/* Whether a block has as many pins of the holder as can be counted. */
static int has_no_count(fc_arena *a, uint32_t holder, const fc_hit *hit) {
    int full = 0;
    for (uint64_t i = 0; i < hit->segments; i++) {
        full |= fc_block_at(a, hit->segment[i].block)->pins_of[holder] > FC_PINS_OF_BLOCK_MAX;
    }
    return full;
}

/* Pins what the hit points into, unless it is better copied: many small pieces, or the pin limit is reached. Holder 0 copies
 * before anything else is called; another one holds the pins until it has copied, for which pins may take as much again. */
static int pin_segments(fc_arena *a, uint32_t holder, fc_hit *out) {
    uint64_t more = 0;
    for (uint64_t i = 0; i < out->segments; i++) {
        const fc_block *b = fc_block_at(a, out->segment[i].block);
        more += b->pins == 0 ? (uint64_t)b->units * FC_UNIT : 0;
    }
    int gathered = out->segments > 1 && out->size_bytes <= out->segments * FC_GATHER_BYTES;
    int limited = a->pinned_bytes + more > a->pin_limit_bytes;
    if (holder != 0 && (a->pinned_bytes + more > 2 * a->pin_limit_bytes || has_no_count(a, holder, out))) {
        a->refused_lookups++;
        return FC_NOT_STORED;
    }
    uint32_t when_copied = holder == 0 ? 0 : FC_PINNED_TO_COPY;
    out->pinned = gathered || limited ? when_copied : FC_PINNED;
    a->gathered_lookups += gathered;
    a->copied_lookups += !gathered && limited;
    for (uint64_t i = 0; i < out->segments && out->pinned; i++) {
        fc_block_pin(a, fc_block_at(a, out->segment[i].block), holder);
    }
    return 0;
}

/* Copies a hit's bytes, in order, to `out`: of one that holds no pins, before anything else is called. */
int fc_gather(fc_arena *a, const fc_hit *hit, uint8_t *out) {
    for (uint64_t i = 0; i < hit->segments; i++) {
        memcpy(out, fc_at(a, hit->segment[i].position), hit->segment[i].length);
        out += hit->segment[i].length;
    }
    return 0;
}

static int64_t tail_end(fc_arena *a, const fc_partition *p) {
    const fc_entry *last = fc_tree_last(a, p);
    return last != NULL ? fc_end(last) : p->expect;
}

/* Whole batches from the one that answers `offset`, each ending below `limit_offset`, within `max_bytes` (the first
 * may exceed it if `at_least_one`): where they end, how much they are, in which pieces they lie.
 * `cut`: another stored batch begins below `limit_offset`. FC_NOT_STORED where nothing covers the offset and the tail does
 * not end there. */
static int walk(fc_arena *a, int64_t slot, int64_t offset, int64_t limit_offset, uint64_t max_bytes, int at_least_one,
                fc_hit *out, int with_segments) {
    const fc_partition *p = fc_partition_of(a, slot);
    if (p == NULL) {
        return FC_STALE;
    }
    fc_entry *e = fc_covering(a, p, offset);
    if (e == NULL && tail_end(a, p) != offset) {
        return FC_NOT_STORED;
    }
    a->lookups++;
    out->next_offset = offset;
    out->size_bytes = out->segments = 0;
    out->pinned = 1;
    out->cut = 0;
    out->admitted = e == NULL ? a->admitted_bytes : e->admitted - e->length;
    while (e != NULL && fc_last(e) < limit_offset) {
        int fits = out->size_bytes + e->length <= max_bytes || (out->size_bytes == 0 && at_least_one);
        if (!fits || (with_segments && !add_segment(a, out, e))) {
            break;
        }
        out->size_bytes += e->length;
        out->next_offset = fc_end(e);
        e = next_entry(a, e);
        if (e != NULL && e->run_start) {
            e = NULL;
        }
    }
    out->cut = e != NULL && out->next_offset < limit_offset;
    return 0;
}

/* What fc_lookup would find, in an observing arena too: next_offset and size_bytes only, nothing pinned. */
int fc_span(fc_arena *a, int64_t slot, int64_t offset, int64_t limit_offset, uint64_t max_bytes, int at_least_one,
            fc_hit *out) {
    FC_HOLD_TO_READ(a);
    return walk(a, slot, offset, limit_offset, max_bytes, at_least_one, out, 0);
}

static int look_up(fc_arena *a, uint32_t holder, int64_t slot, int64_t offset, int64_t limit_offset, uint64_t max_bytes,
                   int at_least_one, fc_hit *out) {
    int rc = a->observe ? FC_NOT_STORED : walk(a, slot, offset, limit_offset, max_bytes, at_least_one, out, 1);
    return rc == 0 ? pin_segments(a, holder, out) : rc;
}

/* The same with segments, pinned or to be gathered (out->pinned). FC_NOT_STORED from an observing arena, and where a holder
 * other than 0 may pin no more. */
int fc_lookup(fc_arena *a, uint32_t holder, int64_t slot, int64_t offset, int64_t limit_offset, uint64_t max_bytes,
              int at_least_one, fc_hit *out) {
    FC_HOLD_TO_READ(a);
    return look_up(a, holder, slot, offset, limit_offset, max_bytes, at_least_one, out);
}

static int64_t first_timestamp(fc_arena *a, const fc_hit *hit) {
    if (hit->segments == 0 || hit->segment[0].length < FC_TIMESTAMP_END) {
        return -1;
    }
    return fc_batch_timestamp(fc_at(a, hit->segment[0].position));
}

/* What one partition gives to a response. A broker reads `most` bytes of a log, the last batch in part if it is longer, so
 * that all of them are used (LogSegment.read). */
static void find_one(fc_arena *a, const fc_wanted *w, int is_first, fc_response *r, fc_hit *hit, fc_taken *taken) {
    uint64_t most = w->max_bytes < 0 ? 0 : (uint64_t)w->max_bytes;
    most = most < r->room_bytes ? most : r->room_bytes;
    int rc = FC_NO_ROOM;
    if (most > 0 || is_first) {
        uint32_t holder = (uint32_t)r->holder;
        rc = hit == NULL ? FC_FULL : look_up(a, holder, w->slot, w->offset, w->limit_offset, most, is_first, hit);
    }
    *taken = (fc_taken){rc, w->offset, 0, -1};
    if (rc == 0) {
        *taken = (fc_taken){(int64_t)hit->size_bytes, hit->next_offset, hit->admitted, first_timestamp(a, hit)};
    }
    if (taken->size_bytes > 0) {
        uint64_t used = hit->cut && hit->size_bytes < most ? most : hit->size_bytes;
        r->room_bytes -= used < r->room_bytes ? used : r->room_bytes;
        r->size_bytes += hit->size_bytes;
        r->hit_bytes += offsetof(fc_hit, segment) + hit->segments * sizeof(fc_segment);
        r->hits++;
    }
}

/* One part of fc_find_all: the partitions from `i` to `end`. */
static int find_some(fc_arena *a, const fc_wanted *wanted, uint64_t i, uint64_t end, int has_records, fc_response *response,
                     uint8_t *hits, uint64_t hits_room, fc_taken *taken) {
    FC_HOLD_TO_READ(a);
    for (; i < end; i++) {
        int has_place = response->hit_bytes + sizeof(fc_hit) <= hits_room;
        fc_hit *hit = has_place ? (fc_hit *)(void *)(hits + response->hit_bytes) : NULL;
        find_one(a, &wanted[i], !has_records && response->hits == 0, response, hit, &taken[i]);
    }
    return 0;
}

/* Finds the records of `count` partitions of one response, in its order and within its limit (KIP-74,
 * ReplicaManager.readFromLog): the first records of a response are a whole batch whatever its size. `has_records`: others
 * come before these. The hits follow those that `response` counts already, in memory of `hits_room` bytes; a partition for
 * which it does not suffice gets FC_FULL. `words`: an fc_wanted for each. Other calls come between FC_HOLD_PARTITIONS and the
 * next. FC_TORN, FC_BUSY: not all were looked for, and those that were not have that as their size. */
int fc_find_all(fc_arena *a, const int64_t *words, uint64_t count, int has_records, fc_response *response,
                uint8_t *hits, uint64_t hits_room, fc_taken *taken) {
    const fc_wanted *wanted = (const fc_wanted *)(const void *)words;
    int rc = 0;
    for (uint64_t i = 0; i < count;) {
        uint64_t end = count - i > FC_HOLD_PARTITIONS ? i + FC_HOLD_PARTITIONS : count;
        rc = rc < 0 ? rc : find_some(a, wanted, i, end, has_records, response, hits, hits_room, taken);
        for (; i < end; i++) {
            if (rc < 0) {
                taken[i] = (fc_taken){rc, wanted[i].offset, 0, -1};
            }
        }
    }
    return rc;
}

/* The end of the last batch before the next gap above an entry. */
static int64_t run_end(fc_arena *a, const fc_partition *p, const fc_entry *e) {
    const fc_entry *next = fc_run_after(a, p, e->base_offset);
    return fc_end(next == NULL ? fc_tree_last(a, p) : fc_tree_floor(a, p, next->base_offset - 1));
}

static int64_t contiguous_end(fc_arena *a, int64_t slot, int64_t offset) {
    const fc_partition *p = fc_partition_of(a, slot);
    if (p == NULL) {
        return FC_STALE;
    }
    const fc_entry *e = fc_covering(a, p, offset);
    return e == NULL ? offset : run_end(a, p, e);
}

/* Where the stored run that covers `offset` ends; `offset` itself where nothing does. */
int64_t fc_contiguous_end(fc_arena *a, int64_t slot, int64_t offset) {
    FC_HOLD_TO_READ(a);
    return contiguous_end(a, slot, offset);
}

static int find_ends(fc_arena *a, const int64_t *places, uint64_t count, int64_t *ends) {
    FC_HOLD_TO_READ(a);
    for (uint64_t i = 0; i < count; i++) {
        ends[i] = contiguous_end(a, places[2 * i], places[2 * i + 1]);
    }
    return 0;
}

/* The same of `count` places, each a slot and an offset. Other calls come between, and not all may be found, as in
 * fc_find_all. */
int fc_contiguous_ends(fc_arena *a, const int64_t *places, uint64_t count, int64_t *ends) {
    int rc = 0;
    for (uint64_t i = 0; i < count;) {
        uint64_t end = count - i > FC_HOLD_PARTITIONS ? i + FC_HOLD_PARTITIONS : count;
        rc = rc < 0 ? rc : find_ends(a, places + 2 * i, end - i, ends + i);
        for (; i < end; i++) {
            ends[i] = rc < 0 ? rc : ends[i];
        }
    }
    return rc;
}

/* The tail, the hole at or next above `offset`, the newest epoch. */
int fc_find_edges(fc_arena *a, int64_t slot, int64_t offset, fc_edges *out) {
    FC_HOLD_TO_READ(a);
    const fc_partition *p = fc_partition_of(a, slot);
    if (p == NULL) {
        return FC_STALE;
    }
    *out = (fc_edges){p->expect, p->expect, -1, -1, p->evicted_end, -1};
    const fc_entry *last = fc_tree_last(a, p);
    if (last == NULL) {
        return 0;
    }
    out->tail_start = fc_run_at_or_before(a, p, last->base_offset)->covers_from;
    out->tail_end = fc_end(last);
    out->last_epoch = last->leader_epoch;
    const fc_entry *e = fc_covering(a, p, offset);
    e = e == NULL ? fc_tree_floor(a, p, offset) : e;
    if (e == NULL) {
        return 0;
    }
    const fc_entry *next = fc_run_after(a, p, e->base_offset);
    if (next != NULL) {
        out->hole_start = run_end(a, p, e);
        out->hole_end = next->covers_from;
    }
    return 0;
}

/* The base offset of the first batch of those at the newest end that are of a later leader epoch than `epoch`;
 * FC_NOT_STORED where the newest is not. Epochs grow with offsets. */
int64_t fc_first_after_epoch(fc_arena *a, int64_t slot, int32_t epoch) {
    FC_HOLD_TO_READ(a);
    const fc_partition *p = fc_partition_of(a, slot);
    if (p == NULL) {
        return FC_STALE;
    }
    int64_t first = FC_NOT_STORED;
    const fc_entry *e = fc_tree_last(a, p);
    while (e != NULL && e->leader_epoch > epoch) {
        first = e->base_offset;
        e = fc_tree_floor(a, p, first - 1);
    }
    return first;
}

/* Whether a stored batch may end a transaction other than by a commit (KIP-98). A commit is recognised in the form in which
 * brokers write it: one record, its key with version 0 and type 1 (ControlRecordType, MemoryRecords.writeEndTransactionalMarker). */
static int may_abort(const fc_arena *a, const fc_entry *e) {
    static const uint8_t commit[] = {0, 0, 0, 8, 0, 0, 0, 1}; /* attributes, deltas, key's length; version, type */
    const uint8_t *bytes = (const uint8_t *)a + e->position;
    if ((bytes[FC_ATTRIBUTES_AT + 1] & FC_CONTROL) == 0) {
        return 0;
    }
    return a->observe || e->length < FC_BATCH_HEADER + 1 + sizeof commit ||
           memcmp(bytes + FC_BATCH_HEADER + 1, commit, sizeof commit) != 0;
}

/* The least offset from which on, up to `end`, batches are stored without a gap and none is an abort marker; `end` where
 * that is unknown. Looks at the newest `batches` of them. */
int64_t fc_unaborted_from(fc_arena *a, int64_t slot, int64_t end, uint64_t batches) {
    FC_HOLD_TO_READ(a);
    const fc_partition *p = fc_partition_of(a, slot);
    if (p == NULL) {
        return FC_STALE;
    }
    int64_t from = end;
    const fc_entry *e = end > 0 ? fc_covering(a, p, end - 1) : NULL;
    for (; batches > 0 && e != NULL && !may_abort(a, e); batches--) {
        from = e->covers_from < from ? e->covers_from : from;
        e = e->run_start ? NULL : fc_tree_floor(a, p, e->base_offset - 1);
    }
    return from;
}

/* Bytes admitted since `offset` was, its own batch included, stored or in the ghost: the smallest FIFO of bytes that holds
 * it. FC_NOT_STORED where neither knows. */
int64_t fc_age(fc_arena *a, int64_t slot, int64_t offset) {
    FC_HOLD_TO_READ(a);
    const fc_partition *p = fc_partition_of(a, slot);
    if (p == NULL) {
        return FC_STALE;
    }
    const fc_entry *e = fc_covering(a, p, offset);
    if (e != NULL) {
        return (int64_t)(a->admitted_bytes - e->admitted + e->length);
    }
    int64_t clock = fc_ghost_clock(a, fc_index_of_slot(slot), offset);
    return clock < 0 ? FC_NOT_STORED : (int64_t)a->admitted_bytes - clock;
}

/* The index entry that answers `offset`, for tests and inspection. */
int fc_find_batch(fc_arena *a, int64_t slot, int64_t offset, fc_entry *out) {
    FC_HOLD_TO_READ(a);
    const fc_partition *p = fc_partition_of(a, slot);
    if (p == NULL) {
        return FC_STALE;
    }
    const fc_entry *e = fc_covering(a, p, offset);
    if (e == NULL) {
        return FC_NOT_STORED;
    }
    *out = *e;
    return 0;
}

/* The FC_BATCH_HEADER first bytes of the batch that answers `offset`, stored or observed. */
int fc_copy_head(fc_arena *a, int64_t slot, int64_t offset, uint8_t *out) {
    FC_HOLD_TO_READ(a);
    const fc_partition *p = fc_partition_of(a, slot);
    if (p == NULL) {
        return FC_STALE;
    }
    const fc_entry *e = fc_covering(a, p, offset);
    if (e == NULL) {
        return FC_NOT_STORED;
    }
    memcpy(out, fc_at(a, e->position), FC_BATCH_HEADER);
    return 0;
}
