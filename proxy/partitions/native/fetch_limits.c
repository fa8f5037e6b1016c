/* The judge of a Fetch: up to which offset each of its partitions may be read from memory now. Without effect on any row, but that a
 * copy of a shown one becomes what is shown now. */
#include "rows.h"

static int64_t least(int64_t one, int64_t other) {
    return one < other ? one : other;
}

/* Whether nothing but offsets is against reading the partition. Nothing readable of the proven epoch can diverge, since the
 * epoch's end is the log's end (Partition.readRecords): a fetched epoch equal to it is as good as none. */
static bool is_served(const pt_row *row, const pt_asked *asked, int version, double now) {
    return row->epoch >= 0 && now < row->lease->until && !row->frozen &&
           (asked->leader_epoch == -1 || asked->leader_epoch == row->epoch) &&
           (asked->fetched_epoch == -1 || asked->fetched_epoch == row->epoch) &&
           asked->fetch_offset >= row->log_start_offset && asked->max_bytes >= 0 && !row->old_format &&
           (!row->zstd || version >= PT_ZSTD_FROM_VERSION) &&
           (version >= PT_FOLLOWER_FETCH_FROM_VERSION || row->led_epoch == row->epoch);
}

/* The greatest end for which the aborted transactions from `offset` on are known; `offset`: none (Transactions.listed_end). */
static int64_t find_listed_end(const pt_row *row, int64_t offset) {
    if (row->known_from < 0 || offset < row->known_from) {
        return offset;
    }
    int64_t end = row->first_open < 0 ? row->observed_end : least(row->observed_end, row->first_open);
    return end > offset ? end : offset;
}

static void judge_below(const pt_row *row, const pt_asked *asked, int64_t number, int64_t limit, _Bool committed,
                        pt_judged *out) {
    int64_t offset = asked->fetch_offset;
    if (offset >= limit) {
        bool is_at_end = limit >= 0 && limit < INT64_MAX && offset <= row->high_watermark; /* the number has 64 bits */
        out->limits[number] = is_at_end ? PT_AT_END_BELOW - limit : PT_UNREADABLE;
        return;
    }
    if (row->view != NULL) { /* what is stored beyond the tail that was shown is not judged yet */
        limit = least(limit, row->tail);
        if (offset >= limit) {
            return;
        }
    }
    int64_t end = offset + 1;
    if (row->fidelity->may_be_compacted) { /* a missing tombstone may delete a stored value */
        int64_t tail = least(limit, row->tail);
        end = tail > end ? tail : end;
    }
    out->stored_numbers[out->stored] = number;
    out->least_ends[out->stored] = end;
    out->places[2 * out->stored] = row->slot;
    out->places[2 * out->stored + 1] = offset;
    out->stored++;
    if (committed) {
        int64_t listed = find_listed_end(row, offset);
        limit = listed > offset ? least(limit, listed) : PT_UNREADABLE;
    }
    out->limits[number] = limit;
}

void pt_find_limits(pt_row *const *rows, const pt_asked *asked, int64_t count, int version, _Bool committed, double now,
                    pt_judged *out) {
    out->unsettled = out->stored = 0;
    for (int64_t number = 0; number < count; number++) {
        pt_row *row = rows[number];
        out->limits[number] = PT_UNREADABLE;
        if (row != NULL && row->view != NULL) {
            pt_look(row);
        }
        if (row == NULL || !is_served(row, asked + number, version, now)) {
            continue;
        }
        if (committed && row->last_stable_offset < row->high_watermark) {
            out->numbers[out->unsettled++] = number;
        } else {
            judge_below(row, asked + number, number, row->high_watermark, committed, out);
        }
    }
}

void pt_settle(const pt_row *row, const pt_asked *asked, int64_t number, int64_t stable_offset, pt_judged *out) {
    judge_below(row, asked + number, number, stable_offset, true, out);
}

void pt_find_stored(pt_judged *out) {
    for (int64_t place = 0; place < out->stored; place++) {
        if (out->ends[place] < out->least_ends[place]) {
            out->limits[out->stored_numbers[place]] = PT_UNREADABLE;
        }
    }
}
