/* Acknowledged batches through two rings, beside a plain list, and rings with anything in them; built with sanitizers by
 * test_native_told.py.
 *
 * usage: told_spoiled SEED ROUNDS. A round tells of one request or takes what there is. Ring and frames have memory of their
 * very size. At its end each life spoils bytes of the ring, and takes once more. */
#include <math.h>
#include <rows.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"

enum { ROWS = 100, FOREIGN = 3, MOST = 100, EVENTS = 200, RING = 1 << 16, RINGS = 2, QUEUED = 1 << 14 };

typedef struct {
    int64_t slot, base, size;
} batch_told;

static pt_fidelity fidelity = {.equal_codecs = 1, .log_append_time = 0};
static pt_row *kept[ROWS], *seen[ROWS + FOREIGN];
static pt_shown *shown[ROWS + FOREIGN];
static pt_lease leases[2];
static batch_told queue[QUEUED];
static int64_t queue_first, queue_end, next_base[ROWS];
static int is_spoiled;
static struct {
    uint64_t told, full, stored, left, passed, broken, around;
} counted;

static uint8_t content(int64_t slot, int64_t base, int64_t at) { return (uint8_t)(slot * 31 + base * 7 + at); }

/* The store: each batch is the next one that was told, byte by byte. */
static uint64_t append(void *arena, const uint8_t *buf, uint64_t size, void *placed, uint64_t done, uint64_t count,
                       uint64_t used_max) {
    int64_t *places = placed;
    MUST(arena != NULL && used_max == 7);
    for (uint64_t number = done; number < count; number++) {
        int64_t *place = places + number * PT_PLACED_WORDS;
        MUST(place[1] >= 0 && place[1] <= place[2] && (uint64_t)place[2] <= size);
        for (int64_t at = 0; is_spoiled && at < place[2] - place[1]; at++) {
            counted.passed += buf[place[1] + at] == 255;
        }
        if (!is_spoiled) {
            batch_told one = queue[queue_first++ % QUEUED];
            MUST(queue_first <= queue_end && place[0] == one.slot && place[3] == one.base);
            MUST(place[2] - place[1] == one.size);
            for (int64_t at = 0; at < one.size; at++) {
                MUST(buf[place[1] + at] == content(one.slot, one.base, at));
            }
        }
        place[5] = place[3] + 1;
        place[6] = 0;
    }
    return count;
}

static void make_rows(void) {
    leases[0].until = leases[1].until = INFINITY;
    for (int64_t number = 0; number < ROWS + FOREIGN; number++) {
        int is_foreign = number >= ROWS;
        int64_t slot = (draw(50) << 24) | number;
        shown[number] = allocate(sizeof(pt_shown));
        memset(shown[number], 0, sizeof(pt_shown));
        pt_row *row = pt_new_row(slot, &fidelity);
        MUST(row != NULL);
        row->epoch = 3;
        row->tail = row->observed_end = 0;
        row->high_watermark = row->log_start_offset = 0;
        row->proven_at = 1;
        pt_show(row, shown[number], 0, 0, 0, NULL, 0);
        seen[number] = pt_new_view(shown[number], is_foreign ? leases + 1 : leases, slot);
        MUST(seen[number] != NULL);
        if (is_foreign) {
            pt_free_row(row);
        } else {
            row->has_gap = number < 3; /* Python has to be told of what is stored of these */
            kept[number] = row;
            next_base[number] = 0;
        }
    }
}

static void free_rows(void) {
    for (int64_t number = 0; number < ROWS + FOREIGN; number++) {
        pt_free_row(seen[number]);
        free(shown[number]);
        if (number < ROWS) {
            pt_free_row(kept[number]);
        }
    }
}

/* One batch of a request, from byte `at` of the frame. */
static void forward(pt_forwarded *one, uint8_t *frame, int64_t at, int64_t size, int64_t number) {
    int64_t which = (int64_t)draw(ROWS + FOREIGN), is_acknowledged = draw(6) > 0;
    po_row batch = {.magic = 2, .start = at, .end = at + size, .record_count = 1, .producer_id = -1};
    po_produced said = {.base_offset = which < ROWS ? next_base[which] : 0, .log_append_time_ms = -1};
    *one = (pt_forwarded){.row = seen[which], .epoch = 3, .number = number,
                          .verdict = is_acknowledged ? PT_UNJUDGED : PT_FORWARDED};
    memcpy(one->batch, &batch, sizeof batch);
    memcpy(one->produced, &said, sizeof said);
    if (is_acknowledged && which < ROWS) {
        next_base[which]++;
        queue[queue_end++ % QUEUED] = (batch_told){seen[which]->slot, said.base_offset, size};
        for (int64_t byte = 0; byte < size; byte++) {
            frame[at + byte] = content(seen[which]->slot, said.base_offset, byte);
        }
    }
}

static void tell(pt_ring *ring) {
    int64_t count = 1 + (int64_t)draw(draw(8) ? 4 : MOST), before = queue_end;
    int64_t sizes[MOST], frame_bytes = 0, at = 0, bases[ROWS];
    for (int64_t number = 0; number < count; number++) {
        sizes[number] = (int64_t)draw(draw(16) ? 100 : 3000);
        frame_bytes += 20 + sizes[number];
    }
    pt_forwarded *forwarded = allocate((size_t)count * sizeof *forwarded);
    uint8_t *frame = allocate((size_t)frame_bytes);
    memset(frame, 255, (size_t)frame_bytes);
    memcpy(bases, next_base, sizeof bases);
    for (int64_t number = 0; number < count; number++) {
        at += (int64_t)draw(20);
        forward(forwarded + number, frame, at, sizes[number], number);
        at += sizes[number];
    }
    uint64_t written = ring->at;
    int said = pt_tell(ring, forwarded, count, frame, (uint64_t)frame_bytes), is_full = (said & PT_FULL) != 0;
    counted.around += (ring->at & (RING - 1)) < (written & (RING - 1));
    MUST(pt_untaken(ring) <= RING && (said & ~(PT_WAKE | PT_FULL)) == 0);
    counted.told += !is_full;
    counted.full += is_full;
    if (is_full && ring->at == written) { /* else a part of it has been told: its life ends */
        queue_end = before;
        memcpy(next_base, bases, sizeof bases);
    }
    free(forwarded);
    free(frame);
}

static int take(pt_ring *rings, int64_t turn) {
    static int64_t order[PT_ENTRY_BATCHES], others[PT_ENTRY_BATCHES], places[PT_ENTRY_BATCHES * PT_PLACED_WORDS];
    static int arena;
    pt_work work = {.key = {1, 2}, .order = order, .others = others, .places = places};
    pt_store store = {append, &arena, 7};
    pt_taken taken;
    pt_ring *both[RINGS] = {rings, rings + 1};
    int said = pt_take(both, RINGS, kept, ROWS, turn, &store, false, 0, &work, &taken);
    MUST(said == PT_DRAINED || (taken.ring >= 0 && taken.ring < RINGS));
    MUST(taken.count <= PT_ENTRY_BATCHES && taken.entries <= PT_TAKE_ENTRIES);
    for (int64_t number = 0; number < taken.count; number++) {
        pt_stored one = taken.stored[number];
        MUST(one.first <= one.last && one.row == kept[one.row->slot & PT_PLACE_MASK]);
        MUST(is_spoiled || one.row->acknowledged_end >= one.last + 1);
    }
    counted.stored += (uint64_t)taken.batches;
    if (said == PT_LEFT) {
        counted.left++;
        MUST(taken.number >= 0 && taken.number <= PT_ENTRY_BATCHES);
        for (uint64_t at = 0; at < taken.frame_bytes; at++) {
            counted.passed += taken.frame[at] == 254; /* it may all be read */
        }
    }
    return said;
}

/* Bytes of a ring become anything: nothing beyond it may be read. */
static void spoil(pt_ring *writers, pt_ring *readers, int64_t turn) {
    is_spoiled = 1;
    for (int event = 0; event < 20; event++) {
        int64_t which = (int64_t)draw(RINGS);
        uint8_t *bytes = writers[which].shared;
        tell(writers + which);
        for (int64_t flips = (int64_t)draw(30); flips >= 0; flips--) {
            uint64_t at = draw(4) ? (readers[which].at + draw(300)) & (RING - 1) : draw(RING);
            bytes[PT_RING_HEAD + at] = (uint8_t)draw(256);
        }
        for (int calls = 0; calls < 50; calls++) {
            if (take(readers, turn--) == PT_BROKEN) {
                counted.broken++;
                break;
            }
        }
    }
    is_spoiled = 0;
}

static void live(void) {
    pt_ring writers[RINGS], readers[RINGS];
    for (int64_t number = 0; number < RINGS; number++) {
        void *memory = aligned_alloc(64, PT_RING_HEAD + RING);
        MUST(memory != NULL);
        memset(memory, 0, PT_RING_HEAD + RING);
        writers[number] = (pt_ring){memory, RING, 0, leases};
        readers[number] = (pt_ring){memory, RING, 0, NULL};
    }
    uint64_t was_full = counted.full;
    int64_t turn = -1;
    queue_first = queue_end = 0;
    make_rows();
    for (int event = 0; event < EVENTS && counted.full == was_full; event++) {
        if (draw(3)) {
            tell(writers + draw(RINGS));
            continue;
        }
        int said;
        do {
            said = take(readers, turn--);
            MUST(said != PT_BROKEN);
        } while (said == PT_MORE || (said == PT_LEFT && draw(2)));
        if (said == PT_DRAINED) {
            MUST(queue_first == queue_end);
            for (int64_t number = 0; number < RINGS; number++) {
                MUST(pt_untaken(writers + number) == 0 && pt_may_sleep(readers + number));
            }
        }
    }
    spoil(writers, readers, turn);
    free_rows();
    for (int64_t number = 0; number < RINGS; number++) {
        free(writers[number].shared);
    }
}

int main(int argc, char **argv) {
    MUST(argc == 3);
    state = strtoull(argv[1], NULL, 10);
    for (long rounds = strtol(argv[2], NULL, 10); rounds > 0; rounds--) {
        live();
    }
    printf("told %llu full %llu stored %llu left %llu broken %llu around %llu\n", (unsigned long long)counted.told,
           (unsigned long long)counted.full, (unsigned long long)counted.stored, (unsigned long long)counted.left,
           (unsigned long long)counted.broken, (unsigned long long)counted.around);
    return 0;
}
