/* Rows as one process shows them to others: each reader copies a row whole (a sequence lock), and looks again once it has read the
 * arena. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "rows.h"

#define WRITTEN_FROM offsetof(pt_shown, lease)

_Static_assert(sizeof(((pt_shown *)0)->list) == PT_SHOWN_ABORTED * sizeof(pt_aborted), "list");

/* Bytes of a shown row that say something. */
static size_t used_bytes(const pt_shown *shown) {
    int64_t listed = shown->aborted;
    listed = listed < 0 ? 0 : listed > PT_SHOWN_ABORTED ? PT_SHOWN_ABORTED : listed; /* a reader may see any */
    return offsetof(pt_shown, list) + (size_t)listed * sizeof(pt_aborted);
}

static uint64_t load(const uint64_t *word) {
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static pt_shown describe(const pt_row *row, int64_t lease, int64_t stable_offset, _Bool is_recalling) {
    const pt_fidelity *fidelity = row->fidelity;
    int64_t flags = (row->is_followed ? PT_SHOWN_FOLLOWED : 0) | (row->frozen ? PT_SHOWN_FROZEN : 0) |
                    (row->zstd ? PT_SHOWN_ZSTD : 0) | (row->old_format ? PT_SHOWN_OLD_FORMAT : 0) |
                    (row->has_gap ? PT_SHOWN_GAP : 0) | (fidelity->may_be_compacted ? PT_SHOWN_COMPACTED : 0) |
                    (is_recalling ? PT_SHOWN_RECALLING : 0);
    pt_shown now;
    memset(&now, 0, offsetof(pt_shown, list));
    now.lease = lease;
    now.until = lease < 0 ? row->lease->until : 0;
    now.proven_at = row->proven_at;
    now.slot = row->slot;
    now.epoch = row->epoch;
    now.led_epoch = row->led_epoch;
    now.suggested_epoch = row->suggested_epoch;
    now.high_watermark = row->high_watermark;
    now.last_stable_offset = stable_offset;
    now.log_start_offset = row->log_start_offset;
    now.tail = row->tail;
    now.probe_offset = row->probe_offset;
    now.produced_from = row->produced_from;
    now.young_from = row->young_from;
    now.known_from = row->known_from;
    now.observed_end = row->observed_end;
    now.first_open = row->first_open;
    now.generation = fidelity->generation;
    now.equal_codecs = fidelity->equal_codecs;
    now.log_append_time = fidelity->log_append_time;
    now.flags = flags;
    return now;
}

static void list_aborted(pt_shown *now, const pt_aborted *aborted, int64_t count) {
    int64_t dropped = count > PT_SHOWN_ABORTED ? count - PT_SHOWN_ABORTED : 0;
    if (dropped > 0 && aborted[dropped - 1].marker >= now->known_from) {
        now->known_from = aborted[dropped - 1].marker + 1;
    }
    now->aborted = count - dropped;
    if (count > 0) {
        memcpy(now->list, aborted + dropped, (size_t)now->aborted * sizeof *aborted);
    }
}

static int is_other_era(const pt_shown *shown, const pt_shown *now) {
    const int64_t ends = PT_SHOWN_FOLLOWED | PT_SHOWN_FROZEN | PT_SHOWN_OLD_FORMAT;
    return shown->slot != now->slot || shown->epoch != now->epoch || (shown->flags & ends) != (now->flags & ends) ||
           now->high_watermark < shown->high_watermark;
}

static void raise_end(int64_t *word, int64_t end) {
    int64_t known = __atomic_load_n(word, __ATOMIC_SEQ_CST);
    while (known < end &&
           !__atomic_compare_exchange_n(word, &known, end, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
}

int pt_show(const pt_row *row, pt_shown *shown, int64_t lease, int64_t stable_offset, _Bool is_recalling,
            const pt_aborted *aborted, int64_t count) {
    pt_shown now = describe(row, lease, stable_offset, is_recalling);
    list_aborted(&now, aborted, count);
    int is_other = is_other_era(shown, &now);
    size_t size = used_bytes(&now) - WRITTEN_FROM;
    raise_end(&shown->acknowledged_end, row->acknowledged_end);
    if (!is_other && memcmp((const char *)shown + WRITTEN_FROM, (const char *)&now + WRITTEN_FROM,
                            size) == 0) {
        return 0;
    }
    int is_other_log = shown->epoch != now.epoch || shown->slot != now.slot || now.high_watermark < shown->high_watermark;
    __atomic_store_n(&shown->version, shown->version + 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (is_other) {
        __atomic_store_n(&shown->era, shown->era + 1, __ATOMIC_SEQ_CST);
    }
    memcpy((char *)shown + WRITTEN_FROM, (const char *)&now + WRITTEN_FROM, size);
    __atomic_store_n(&shown->version, shown->version + 1, __ATOMIC_SEQ_CST);
    if (is_other_log) { /* what was acknowledged may be gone */
        __atomic_store_n(&shown->acknowledged_end, row->acknowledged_end, __ATOMIC_SEQ_CST);
    }
    return 1;
}

void pt_show_end(pt_shown *shown) {
    __atomic_store_n(&shown->era, shown->era + 1, __ATOMIC_SEQ_CST);
}

pt_row *pt_new_view(const pt_shown *shown, const pt_lease *leases, int64_t slot) {
    pt_view *view = calloc(1, sizeof *view);
    if (view == NULL) {
        return NULL;
    }
    pt_row *row = pt_new_row(slot, &view->fidelity);
    if (row == NULL) {
        free(view);
        return NULL;
    }
    view->shown = shown;
    view->leases = leases;
    view->fidelity.log_append_time = -1;
    view->seen.version = 1; /* none has been seen */
    row->view = view;
    row->lease = &view->lease;
    view->lease.until = -INFINITY;
    pt_look(row);
    return row;
}

static void copy_into(pt_row *row, const pt_shown *seen) {
    pt_view *view = row->view;
    row->is_followed = seen->flags & PT_SHOWN_FOLLOWED && seen->slot == row->slot;
    row->frozen = (seen->flags & PT_SHOWN_FROZEN) != 0;
    row->zstd = (seen->flags & PT_SHOWN_ZSTD) != 0;
    row->old_format = (seen->flags & PT_SHOWN_OLD_FORMAT) != 0;
    row->has_gap = (seen->flags & PT_SHOWN_GAP) != 0;
    view->fidelity.may_be_compacted = (seen->flags & PT_SHOWN_COMPACTED) != 0;
    view->fidelity.generation = seen->generation;
    view->fidelity.equal_codecs = seen->equal_codecs;
    view->fidelity.log_append_time = seen->log_append_time;
    view->lease.until = row->is_followed ? seen->until : -INFINITY;
    row->lease = seen->lease < 0 || !row->is_followed ? &view->lease : view->leases + seen->lease;
    row->proven_at = seen->proven_at;
    row->epoch = seen->epoch;
    row->led_epoch = seen->led_epoch;
    row->suggested_epoch = seen->suggested_epoch;
    row->high_watermark = seen->high_watermark;
    row->last_stable_offset = seen->last_stable_offset;
    row->log_start_offset = seen->log_start_offset;
    row->tail = seen->tail;
    row->probe_offset = seen->probe_offset;
    row->produced_from = seen->produced_from;
    row->young_from = seen->young_from;
    row->known_from = seen->known_from;
    row->observed_end = seen->observed_end;
    row->first_open = seen->first_open;
}

void pt_look(pt_row *row) {
    pt_view *view = row->view;
    const pt_shown *shown = view->shown;
    uint64_t version = load(&shown->version);
    if (version != view->seen.version || load(&shown->era) != view->seen.era) {
        pt_shown copy;
        for (;;) { /* a writer that dies in the middle leaves an odd version: its end is seen at the link */
            for (int turn = 0; version & 1 && turn < 10000; turn++) {
                version = load(&shown->version);
            }
            memcpy(&copy, shown, used_bytes(shown));
            __atomic_thread_fence(__ATOMIC_SEQ_CST);
            uint64_t after = load(&shown->version);
            if (version & 1) {
                row->is_followed = false;
                row->lease = &view->lease;
                view->lease.until = -INFINITY;
                view->seen.version = version;
                return;
            }
            if (after == version) {
                break;
            }
            version = after;
        }
        copy.version = version;
        memcpy(&view->seen, &copy, used_bytes(&copy));
        copy_into(row, &copy);
    }
    row->acknowledged_end = __atomic_load_n(&shown->acknowledged_end, __ATOMIC_SEQ_CST);
}

_Bool pt_is_current(pt_row *const *rows, int64_t count) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    for (int64_t number = 0; number < count; number++) {
        const pt_view *view = rows[number] == NULL ? NULL : rows[number]->view;
        if (view != NULL && load(&view->shown->era) != view->seen.era) {
            return false;
        }
    }
    return true;
}

static void tell_acknowledged(const pt_row *row, int64_t epoch) {
    pt_shown *shown = (pt_shown *)row->view->shown; /* the one word that readers write */
    if (epoch < 0 || __atomic_load_n(&shown->epoch, __ATOMIC_SEQ_CST) != epoch || shown->slot != row->slot) {
        return;
    }
    raise_end(&shown->acknowledged_end, row->acknowledged_end);
    if (__atomic_load_n(&shown->epoch, __ATOMIC_SEQ_CST) != epoch || shown->slot != row->slot) {
        /* it may have been truncated since, or be another partition */
        __atomic_store_n(&shown->acknowledged_end, -1, __ATOMIC_SEQ_CST);
    }
}

static uint64_t *words_of(const pt_heard *heard, int64_t number) {
    return heard->shared + number * (1 + heard->words);
}

static void set_bit(uint64_t *words, int64_t place) {
    uint64_t bit = UINT64_C(1) << (place & 63), *word = words + 1 + (place >> 6);
    if (!(__atomic_load_n(word, __ATOMIC_SEQ_CST) & bit)) {
        __atomic_fetch_or(word, bit, __ATOMIC_SEQ_CST);
    }
    __atomic_store_n(words, 1, __ATOMIC_SEQ_CST); /* last: whoever takes it before comes again */
}

void pt_show_acknowledged(const pt_forwarded *forwarded, int64_t count, const pt_heard *heard) {
    uint64_t others = __atomic_load_n(heard->listening, __ATOMIC_SEQ_CST) & ~(UINT64_C(1) << heard->number);
    for (int64_t number = 0; number < count; number++) {
        const pt_row *row = forwarded[number].row;
        int64_t place = row->slot & PT_PLACE_MASK;
        if (forwarded[number].verdict == PT_FORWARDED) {
            continue;
        }
        tell_acknowledged(row, forwarded[number].epoch);
        if (row->view->leases != heard->leases || place >> 6 >= heard->words) {
            continue;
        }
        for (uint64_t left = others; left != 0; left &= left - 1) {
            set_bit(words_of(heard, __builtin_ctzll(left)), place);
        }
    }
}

int64_t pt_hear(const pt_heard *heard, int64_t *places, int64_t room) {
    uint64_t *words = words_of(heard, heard->number);
    int64_t found = 0;
    if (!__atomic_load_n(words, __ATOMIC_SEQ_CST) || !__atomic_exchange_n(words, 0, __ATOMIC_SEQ_CST)) {
        return 0;
    }
    for (int64_t word = 0; word < heard->words; word++) {
        uint64_t *at = words + 1 + word;
        if (found > room - 64) {
            __atomic_store_n(words, 1, __ATOMIC_SEQ_CST);
            return found;
        }
        uint64_t bits = __atomic_load_n(at, __ATOMIC_SEQ_CST) == 0 ? 0 : __atomic_exchange_n(at, 0, __ATOMIC_SEQ_CST);
        for (; bits != 0; bits &= bits - 1) {
            places[found++] = word * 64 + __builtin_ctzll(bits);
        }
    }
    return found;
}
