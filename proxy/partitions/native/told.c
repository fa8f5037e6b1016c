/* Rings in memory of two processes each, through which one tells the other what the broker has acknowledged.
 *
 * Owns the places of entries, their order over all rings of a reader, and who may sleep. Must not know sockets or Python.
 * Invariants: an entry is seen once it is whole, so that a writer may die at any moment; nothing outside of a ring is read,
 * whatever is written in it; an entry lies in one piece; what is not taken is bounded by the ring; entries of several rings
 * are taken as they were written, so that the offsets of a partition come in order but for acknowledgements that cross. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "rows.h"

#define LINE 64
#define SKIP -1

typedef struct { /* each word has a line of the processor's cache of its own */
    _Alignas(LINE) _Atomic uint64_t written; /* bytes ever, up to the last whole entry */
    _Atomic uint64_t begun;                  /* where the writer began anew, in an empty ring: nothing is before */
    _Alignas(LINE) _Atomic uint64_t taken;
    _Alignas(LINE) _Atomic uint64_t sleeps;  /* the reader: who writes next wakes it */
} ring_head;

typedef struct { /* batches follow, and the bytes of the frame that they lie in */
    uint64_t bytes; /* of the whole entry: a multiple of LINE */
    uint64_t frame_bytes;
    int64_t count;  /* of batches; SKIP: the next entry is at the beginning of the ring */
    uint64_t written_ns; /* when, by the machine's clock: one for all writers */
} entry_head;

_Static_assert(sizeof(ring_head) <= PT_RING_HEAD, "PT_RING_HEAD");
_Static_assert(LINE % sizeof(entry_head) == 0, "an entry's head lies in one piece");
_Static_assert(sizeof(((pt_taken *)0)->stored) == PT_ENTRY_BATCHES * sizeof(pt_stored), "stored");

static ring_head *head_of(const pt_ring *ring) {
    return ring->shared;
}

static uint8_t *place_of(const pt_ring *ring, uint64_t at) {
    return (uint8_t *)ring->shared + PT_RING_HEAD + (at & (ring->size - 1));
}

static uint64_t read_clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static uint64_t round_up(uint64_t bytes) {
    return (bytes + LINE - 1) & ~(uint64_t)(LINE - 1);
}

/* -- the writer ------------------------------------------------------------------------------------------------------ */

uint64_t pt_untaken(const pt_ring *ring) {
    uint64_t taken = atomic_load_explicit(&head_of(ring)->taken, memory_order_acquire);
    uint64_t begun = atomic_load_explicit(&head_of(ring)->begun, memory_order_relaxed);
    return ring->at - (taken > begun ? taken : begun);
}

/* Where an entry of `bytes` may be written; ring->at is there then. NULL: there is no room. An empty ring begins at its
 * beginning again, so that only as much memory is touched as is behind. */
static uint8_t *find_room(pt_ring *ring, uint64_t bytes) {
    uint64_t used = pt_untaken(ring), in_ring = ring->at & (ring->size - 1), left = ring->size - in_ring;
    int begins = used == 0 && in_ring >= bytes;
    uint64_t skipped = begins || left < bytes ? left : 0;
    if (bytes > ring->size / 2 || used > ring->size || (!begins && used + skipped + bytes > ring->size)) {
        return NULL;
    }
    if (skipped > 0 && !begins) {
        memcpy(place_of(ring, ring->at), &(entry_head){skipped, 0, SKIP, 0}, sizeof(entry_head));
    }
    ring->at += skipped;
    if (begins) {
        atomic_store_explicit(&head_of(ring)->begun, ring->at, memory_order_relaxed); /* seen with `written` */
    }
    return place_of(ring, ring->at);
}

static int is_for_reader(const pt_ring *ring, const pt_forwarded *one) {
    const pt_view *view = one->row->view;
    return one->verdict != PT_FORWARDED && view != NULL && view->leases == ring->leases;
}

/* One entry of batches that lie between `start` and `end` of the frame. */
static int tell(pt_ring *ring, const pt_forwarded *const *batches, int64_t count, const uint8_t *frame, int64_t start,
                int64_t end) {
    ring_head *head = head_of(ring);
    uint64_t batch_bytes = (uint64_t)count * sizeof(pt_forwarded), frame_bytes = (uint64_t)(end - start);
    uint64_t bytes = round_up(sizeof(entry_head) + batch_bytes + frame_bytes);
    uint8_t *to = find_room(ring, bytes);
    if (to == NULL) {
        return PT_FULL;
    }
    memcpy(to, &(entry_head){bytes, frame_bytes, count, read_clock_ns()}, sizeof(entry_head));
    to += sizeof(entry_head);
    for (int64_t number = 0; number < count; number++, to += sizeof(pt_forwarded)) {
        pt_forwarded copy = *batches[number];
        po_row batch;
        memcpy(&batch, copy.batch, sizeof batch);
        batch.start -= start;
        batch.end -= start;
        memcpy(copy.batch, &batch, sizeof batch);
        copy.clock = copy.row->slot;
        copy.row = NULL;
        memcpy(to, &copy, sizeof copy);
    }
    memcpy(to, frame + start, frame_bytes);
    ring->at += bytes;
    atomic_store(&head->written, ring->at);
    return atomic_load(&head->sleeps) && atomic_exchange(&head->sleeps, 0) ? PT_WAKE : PT_TOLD;
}

int pt_tell(pt_ring *ring, const pt_forwarded *forwarded, int64_t count, const uint8_t *frame, uint64_t size) {
    const pt_forwarded *batches[PT_ENTRY_BATCHES];
    int64_t found = 0, start = 0, end = 0;
    int said = PT_TOLD;
    for (int64_t number = 0; number < count; number++) {
        po_row batch;
        memcpy(&batch, forwarded[number].batch, sizeof batch);
        int is_within = batch.start >= 0 && batch.start <= batch.end && (uint64_t)batch.end <= size;
        if (is_within && is_for_reader(ring, forwarded + number)) {
            start = found == 0 || batch.start < start ? batch.start : start;
            end = found == 0 || batch.end > end ? batch.end : end;
            batches[found++] = forwarded + number;
        }
        if (found == PT_ENTRY_BATCHES || (found > 0 && number == count - 1)) {
            said |= tell(ring, batches, found, frame, start, end);
            found = 0;
        }
    }
    return said;
}

/* -- the reader ------------------------------------------------------------------------------------------------------ */

_Bool pt_may_sleep(pt_ring *ring) {
    ring_head *head = head_of(ring);
    atomic_store(&head->sleeps, 1);
    if (atomic_load(&head->written) == ring->at) {
        return 1;
    }
    atomic_store(&head->sleeps, 0);
    return 0;
}

/* The batches of an entry whose partitions this process follows, in place; -1: this is no entry. */
static int64_t adopt(pt_forwarded *batches, int64_t count, uint64_t frame_bytes, pt_row *const *rows, int64_t room) {
    int64_t kept = 0;
    for (int64_t number = 0; number < count; number++) {
        pt_forwarded one = batches[number];
        po_row batch;
        memcpy(&batch, one.batch, sizeof batch);
        if (batch.start < 0 || batch.end < batch.start || (uint64_t)batch.end > frame_bytes || batch.record_count < 0 ||
            batch.record_count > INT32_MAX || batch.last_delta < 0 || batch.last_delta > INT32_MAX) {
            return -1;
        }
        int64_t place = one.clock & PT_PLACE_MASK;
        one.row = place < room ? rows[place] : NULL;
        if (one.row == NULL || one.row->slot != one.clock) {
            continue;
        }
        one.clock = one.left = 0;
        one.number = kept;
        one.verdict = PT_FORWARDED;
        batches[kept++] = one;
    }
    return kept;
}

static int is_finished(const pt_work *work, int64_t kept) {
    return work->acknowledged == kept && !work->changed && !work->stamped && work->appended == work->placed &&
           work->stored == work->acknowledged && !work->any_left;
}

static void note_stored(const pt_forwarded *batches, int64_t count, int64_t turn, pt_taken *taken) {
    for (int64_t number = 0; number < count; number++) {
        const pt_forwarded *one = batches + number;
        po_produced said;
        memcpy(&said, one->produced, sizeof said);
        if (one->row->stamp != turn) {
            one->row->stamp = turn;
            one->row->forwarded_at = taken->count++;
            taken->stored[one->row->forwarded_at] = (pt_stored){one->row, said.base_offset, said.base_offset};
        }
        pt_stored *stored = taken->stored + one->row->forwarded_at;
        stored->first = said.base_offset < stored->first ? said.base_offset : stored->first;
        stored->last = said.base_offset > stored->last ? said.base_offset : stored->last;
    }
    taken->batches += count;
}

/* The head of the entry at ring->at, of which `written` bytes are seen; false: this is none. */
static int read_head(const pt_ring *ring, uint64_t written, entry_head *entry) {
    uint64_t seen = written - ring->at, left = ring->size - (ring->at & (ring->size - 1));
    if (seen > ring->size || seen < sizeof *entry || ring->at % LINE != 0) {
        return 0;
    }
    memcpy(entry, place_of(ring, ring->at), sizeof *entry);
    if (entry->bytes < sizeof *entry || entry->bytes > left || entry->bytes > seen || entry->bytes % LINE != 0) {
        return 0;
    }
    if (entry->count == SKIP) {
        return entry->bytes == left;
    }
    uint64_t room = entry->bytes - sizeof *entry;
    return entry->count >= 0 && entry->count <= PT_ENTRY_BATCHES && entry->frame_bytes <= room &&
           (uint64_t)entry->count * sizeof(pt_forwarded) <= room - entry->frame_bytes;
}

/* Stores one entry, at ring->at. Returns PT_MORE: all is done; PT_LEFT; PT_BROKEN. */
static int take_entry(const pt_ring *ring, const entry_head *entry, pt_row *const *rows, int64_t room, int64_t turn,
                      const void *store, _Bool has_runs, double epoch_since, pt_work *work, pt_taken *taken) {
    pt_forwarded *batches = (pt_forwarded *)(void *)(place_of(ring, ring->at) + sizeof *entry);
    uint8_t *frame = (uint8_t *)(batches + entry->count);
    int64_t kept = adopt(batches, entry->count, entry->frame_bytes, rows, room);
    if (kept < 0) {
        return PT_BROKEN;
    }
    pt_admit(frame, entry->frame_bytes, batches, kept, NULL, NULL, PT_ALL_TOLD, store, has_runs, epoch_since, work);
    if (is_finished(work, kept)) {
        note_stored(batches, kept, turn, taken);
        return PT_MORE;
    }
    taken->forwarded = batches;
    taken->number = kept;
    taken->frame = frame;
    taken->frame_bytes = entry->frame_bytes;
    return PT_LEFT;
}

/* What the ring has next, from ring->at on. PT_MORE: `entry`; PT_DRAINED; PT_BROKEN. */
static int peek(pt_ring *ring, entry_head *entry) {
    ring_head *head = head_of(ring);
    for (;;) {
        uint64_t written = atomic_load(&head->written), begun = atomic_load(&head->begun);
        if (ring->at < begun && begun <= written) {
            ring->at = begun;
        }
        if (written == ring->at) {
            return PT_DRAINED;
        }
        if (!read_head(ring, written, entry)) {
            return PT_BROKEN;
        }
        if (entry->count != SKIP) {
            return PT_MORE;
        }
        ring->at += entry->bytes; /* to the ring's beginning, from which nobody skips again */
        if (written == ring->at) {
            return PT_DRAINED;
        }
    }
}

/* The ring whose next entry was written first; -1: none has any. */
static int64_t find_first(const entry_head *next, const int *found, int64_t count) {
    int64_t first = -1;
    for (int64_t number = 0; number < count; number++) {
        if (found[number] == PT_MORE && (first < 0 || next[number].written_ns < next[first].written_ns)) {
            first = number;
        }
    }
    return first;
}

int pt_take(pt_ring *const *rings, int64_t ring_count, pt_row *const *rows, int64_t room, int64_t turn, const void *store,
            _Bool has_runs, double epoch_since, pt_work *work, pt_taken *taken) {
    entry_head next[PT_RINGS];
    int found[PT_RINGS];
    taken->entries = taken->batches = taken->count = taken->number = 0;
    for (int64_t number = 0; number < ring_count; number++) {
        atomic_store_explicit(&head_of(rings[number])->taken, rings[number]->at, memory_order_release);
        found[number] = peek(rings[number], next + number);
        if (found[number] == PT_BROKEN) {
            taken->ring = number;
            return PT_BROKEN;
        }
    }
    while (taken->entries < PT_TAKE_ENTRIES) {
        int64_t first = find_first(next, found, ring_count);
        if (first < 0) {
            return PT_DRAINED;
        }
        pt_ring *ring = rings[first];
        if (taken->count + next[first].count > PT_ENTRY_BATCHES) {
            return PT_MORE;
        }
        taken->entries++;
        taken->ring = first;
        int said = take_entry(ring, next + first, rows, room, turn, store, has_runs, epoch_since, work, taken);
        if (said == PT_BROKEN) {
            return PT_BROKEN;
        }
        ring->at += next[first].bytes;
        if (said == PT_LEFT) {
            return PT_LEFT;
        }
        atomic_store_explicit(&head_of(ring)->taken, ring->at, memory_order_release);
        found[first] = peek(ring, next + first);
        if (found[first] == PT_BROKEN) {
            return PT_BROKEN;
        }
    }
    return PT_MORE;
}
