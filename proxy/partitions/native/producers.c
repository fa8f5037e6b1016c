/* The producers of one partition: whether the broker may take a batch for a duplicate (UnifiedLog.append). */
#include <stdlib.h>
#include <string.h>

#include "rows.h"

#define SEQUENCES (INT64_C(1) << 31)
#define FIRST_ROOM 2

/* A sequence as brokers count, 0 to 2^31 - 1: it wraps around, and a client may send negative ones. */
static int64_t wrap(int64_t sequence) {
    return (sequence % SEQUENCES + SEQUENCES) % SEQUENCES;
}

/* One more place, dropping the oldest producer at the limit. 0: there is no memory. */
static int make_room(pt_ledger *ledger) {
    if (ledger->count < ledger->room) {
        return 1;
    }
    if (ledger->room >= ledger->limit) {
        ledger->count--;
        return 1;
    }
    uint32_t room = ledger->room ? ledger->room * 2 : FIRST_ROOM;
    room = room < ledger->limit ? room : ledger->limit;
    pt_producer *producers = realloc(ledger->producers, room * sizeof *producers);
    if (producers == NULL) {
        return 0;
    }
    ledger->producers = producers;
    ledger->room = room;
    return 1;
}

/* Moves the producer to the front, where a new one with this epoch begins if there is none. NULL: there is no memory. */
static pt_producer *find_producer(pt_ledger *ledger, int64_t id, int64_t epoch) {
    uint32_t at = 0;
    while (at < ledger->count && ledger->producers[at].id != id) {
        at++;
    }
    pt_producer found = {.id = id, .next_sequence = -1, .epoch = (int32_t)epoch};
    if (at == ledger->count) {
        if (ledger->limit == 0 || !make_room(ledger)) {
            return NULL;
        }
        at = ledger->count++;
    } else if (ledger->producers[at].epoch == epoch) {
        found = ledger->producers[at];
    }
    memmove(ledger->producers + 1, ledger->producers, at * sizeof found);
    ledger->producers[0] = found;
    return ledger->producers;
}

int pt_note_producer(pt_ledger *ledger, int64_t leader_epoch, int64_t id, int64_t epoch, int64_t base_sequence,
                     int64_t count) {
    if (id < 0) {
        return PT_NOT_DUPLICATE;
    }
    if (leader_epoch != ledger->leader_epoch) {
        ledger->count = 0;
        ledger->leader_epoch = leader_epoch;
    }
    pt_producer *producer = find_producer(ledger, id, epoch);
    if (producer == NULL) {
        return PT_UNDECIDED;
    }
    if (producer->next_sequence >= 0 && base_sequence != producer->next_sequence) {
        /* sequences wrap around at 2^31, so the shorter distance tells behind from ahead */
        if (wrap(producer->next_sequence - base_sequence) < SEQUENCES / 2) {
            return PT_RESENT;
        }
        producer->forwarded = 0;
    }
    producer->next_sequence = wrap(base_sequence + count);
    producer->forwarded += producer->forwarded <= PT_RETAINED;
    return producer->forwarded > PT_RETAINED ? PT_NOT_DUPLICATE : PT_UNDECIDED;
}
