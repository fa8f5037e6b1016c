/* rows: the state of followed partitions that both C and Python change, and the journey of produced batches over it. The
 * only declaration.
 *
 * Owns: one pt_row for each partition, its producers, and the verdict on each produced batch. Must not know: Python, the
 * arena, sockets, clocks. proxy/partitions/ has the rules; each field's owner is the Python class that is named beside it.
 * Invariants: a row is changed by one thread; nothing is read outside the frames; a batch that is not plain is left to
 * Python, unchanged but for its verdict. Other processes see a row as pt_show has shown it last, and each keeps a copy.
 * The part between the cdef marks is fed to cffi unchanged. Batches and answers: protocol/native/ordinary.h. */
#ifndef ROWS_H
#define ROWS_H
#include <stdbool.h>

#include "ordinary.h"
/* cdef begin */
#define PT_BATCH_WORDS 12       /* of a po_row */
#define PT_PRODUCED_WORDS 7     /* of a po_produced */
#define PT_PLACED_WORDS 7       /* slot, start, end, base offset, leader epoch, end of the run, clock: fc_placed */
#define PT_RETAINED 5           /* batches of a producer that the broker compares: ProducerStateEntry.NUM_BATCHES_TO_RETAIN */
/* whether the broker may take a batch for a duplicate: DuplicateCheck of producer_state.py, in this order */
#define PT_NOT_DUPLICATE 0
#define PT_UNDECIDED 1
#define PT_RESENT 2
/* verdicts of store.py */
#define PT_NOT_STORED 0
#define PT_SAMPLED 1
#define PT_STAMPED 2
#define PT_AS_SENT 3
#define PT_UNJUDGED 4           /* acknowledged, and not yet judged, or not stored after all */
#define PT_FORWARDED 5          /* not acknowledged */
/* flags of a shown row */
#define PT_SHOWN_FOLLOWED 1
#define PT_SHOWN_FROZEN 2
#define PT_SHOWN_ZSTD 4
#define PT_SHOWN_OLD_FORMAT 8
#define PT_SHOWN_GAP 16
#define PT_SHOWN_COMPACTED 32
#define PT_SHOWN_RECALLING 64
#define PT_SHOWN_ABORTED 64     /* aborted transactions that are shown */
/* of a stored batch, what is left for Python */
#define PT_LEFT_TAIL 1          /* acknowledgements have crossed: look for the end of the run at the tail */
#define PT_LEFT_TRANSACTIONS 2  /* tell its offsets to Transactions */
#define PT_LEFT_RUN 4           /* tell its offsets to StoredRuns */
#define PT_LEFT_EPOCH 8         /* the epoch was proven long ago */
/* source of a run of stored batches: StoredRuns */
/* versions of a Fetch from which zstd batches and followers are served: readable.py says why */
#define PT_ZSTD_FROM_VERSION 10
#define PT_FOLLOWER_FETCH_FROM_VERSION 11
#define PT_UNREADABLE -1
#define PT_AT_END_BELOW -2
#define PT_AHEAD 32             /* most of what is ahead of a run: acknowledgements of several connections cross */
#define PT_NO_RUN 0
#define PT_RUN_PRODUCE 1
#define PT_RUN_WATCH 2
/* of a ring */
#define PT_RING_HEAD 4096
#define PT_ENTRY_BATCHES 64     /* most batches of one entry, and partitions of one call of pt_take */
#define PT_TAKE_ENTRIES 256     /* most entries of one call */
#define PT_RINGS 32             /* most rings of one call: a worker has one, and the processes that read an arena are 31 */
#define PT_PLACE_MASK 0xffffff  /* bits of a slot that are its place: FC_SLOT_BITS of the cache */
#define PT_ALL_TOLD -1
#define PT_TOLD 0
#define PT_WAKE 1
#define PT_FULL 2
#define PT_DRAINED 0
#define PT_MORE 1
#define PT_LEFT 2
#define PT_BROKEN -1
#define PT_RUN_POINTS 8         /* points of a run; what needs one more begins another run */
#define PT_RUN_TOLERANCE 65536  /* bytes: half of the greatest error of a clock between two points */

typedef struct {
    int64_t id, next_sequence;  /* next_sequence -1: none was forwarded yet */
    int32_t epoch;
    uint32_t forwarded;
} pt_producer;

typedef struct {                /* ProducerLedger: the last noted producer is the first */
    int64_t leader_epoch;
    uint32_t limit, count, room;
    pt_producer *producers;
} pt_ledger;

typedef struct {                /* of one topic */
    int64_t generation;         /* these three: Recompression */
    int64_t equal_codecs;       /* bit n: codec n */
    int64_t log_append_time;    /* -1: unknown, 0: no, 1: yes */
    _Bool may_be_compacted;     /* Topic */
} pt_fidelity;

typedef struct {                /* Lease */
    double until;
} pt_lease;

typedef struct {                /* offsets: first <= offset < end */
    int64_t first, end;
} pt_range;

typedef struct {                /* batches that came one behind another: offsets, and the clock before them */
    int64_t first, following, bytes, batches, clock;
} pt_run_part;

typedef struct pt_view pt_view;

typedef struct {                /* times are seconds of a monotonic clock; offsets and epochs are -1 while unknown */
    pt_view *view;              /* NULL: this process's own; else a copy of what another one shows */
    const pt_fidelity *fidelity;
    const pt_lease *lease;
    pt_ledger ledger;
    int64_t slot;
    /* LeaderState */
    int64_t epoch, led_epoch, suggested_epoch;
    int64_t high_watermark, last_stable_offset, log_start_offset;
    double proven_at;
    _Bool frozen;
    /* Partition */
    _Bool is_followed, zstd, old_format;
    int64_t tail, probe_offset, acknowledged_end, produced_from, young_from;
    /* Transactions */
    int64_t known_from;         /* where the contiguous run begins */
    int64_t observed_end;       /* where it ends */
    int64_t first_open;         /* first offset of the oldest open transaction in it; -1: none is open */
    _Bool has_gap;              /* Transactions has to be told of all batches: it knows of events beyond it, or of many pieces */
    int64_t ahead_count;        /* while it has not: offsets of plain batches beyond it, in order, each apart from the next */
    pt_range *ahead;            /* PT_AHEAD of them; NULL until acknowledgements have crossed */
    /* StoredRuns. A clock is that of admitted bytes; a point is an offset, and the clock before the batch there. */
    int64_t run_source, run_first, run_following, run_bytes, run_batches;
    int64_t run_began, run_ended;  /* the clock before the first batch, and behind the last */
    int64_t run_last, run_before, run_piece;  /* the point of what came last in one piece, and how many batches it was */
    int64_t run_points;            /* how many there are, between run_first and run_last */
    int64_t run_offsets[8], run_clocks[8];
    double run_least, run_most;    /* bytes an offset: slopes from the last point that come near all batches since */
    int64_t run_part_count;        /* batches ahead of it, in order, from the same source: they go on once those between have come */
    pt_run_part *run_parts;        /* PT_AHEAD of them; NULL until there was one */
    /* of the request that pt_forward noted last for it: its stamp, and the batch's place */
    int64_t stamp, forwarded_at;
} pt_row;

typedef struct {                /* an aborted transaction: Aborted */
    int64_t marker, first, producer_id, stable;
} pt_aborted;

typedef struct {                /* of one partition, in memory that processes share: shown by one of them */
    uint64_t version;           /* odd while it is being written */
    uint64_t era;               /* another one: nothing that was read from the arena before may be served */
    int64_t acknowledged_end;   /* the only word that others write, too */
    int64_t lease;              /* number of the shared lease, -1: `until` is of this partition alone */
    double until, proven_at;
    int64_t slot;
    int64_t epoch, led_epoch, suggested_epoch;
    int64_t high_watermark, last_stable_offset, log_start_offset;
    int64_t tail, probe_offset, produced_from, young_from;
    int64_t known_from, observed_end, first_open;
    int64_t generation, equal_codecs, log_append_time;
    int64_t flags;              /* PT_SHOWN_* */
    int64_t aborted;            /* how many are listed; those before have raised known_from */
    pt_aborted list[64];        /* at the end: only what is listed is copied */
} pt_shown;

struct pt_view {                /* what a process has seen of it last */
    const pt_shown *shown;
    const pt_lease *leases;     /* the shared ones */
    pt_lease lease;             /* that of this partition alone */
    pt_fidelity fidelity;
    pt_shown seen;
};

typedef struct {                /* a produced batch in flight, and its partition when it was forwarded */
    pt_row *row;
    int64_t batch[12];          /* the po_row */
    int64_t duplicate_check, epoch, high_watermark, generation;
    int64_t number;             /* of the partition among those that the request names */
    int64_t produced[7];        /* the po_produced of its acknowledgement */
    int64_t verdict;
    int64_t left;
    int64_t clock;              /* of admitted bytes, before it; once it is stored */
} pt_forwarded;

typedef struct {                /* where batches are stored: fc_appender of the cache */
    uint64_t (*append)(void *arena, const uint8_t *buf, uint64_t size, void *placed, uint64_t done, uint64_t count,
                       uint64_t used_max);
    void *arena;                /* NULL: nothing may be stored now */
    uint64_t used_max;
} pt_store;

typedef struct {                /* of one response; room for as many batches as were forwarded */
    uint64_t key[2];            /* secret and random: no client can choose topics whose names collide */
    int64_t acknowledged, stamped, placed, stored;
    int64_t changed;            /* of the acknowledged ones, how many were forwarded in another epoch than the proven one */
    int64_t appended;           /* of the placed ones, how many the store has taken or refused */
    int64_t any_left;           /* `left` of all stored batches, united */
    int64_t *order;             /* numbers of the acknowledged batches; once they are placed, of those that are */
    int64_t *others;            /* of the acknowledged ones that are not placed */
    int64_t *places;            /* PT_PLACED_WORDS for each that is placed, in the order of `order` */
} pt_work;

typedef struct {                /* what a Fetch asks of one partition; epochs are -1 where it names none */
    int64_t leader_epoch, fetch_offset, fetched_epoch, max_bytes;
} pt_asked;

typedef struct {                /* of one Fetch; room for as many partitions as it asks */
    int64_t *limits;            /* of each: the end up to which it may be read; PT_UNREADABLE; PT_AT_END_BELOW less its end */
    int64_t unsettled;          /* partitions whose last stable offset Transactions has to say */
    int64_t *numbers;           /* of those */
    int64_t stored;             /* partitions that may be read if their records are stored */
    int64_t *places;            /* of each of those: slot and offset */
    int64_t *stored_numbers, *least_ends;
    int64_t *ends;              /* where the stored run at each place ends */
} pt_judged;

typedef struct {                /* where one process learns which partitions have records that others saw acknowledged: a bit by place */
    uint64_t *shared;           /* for each number of a process: a word that says whether there are any, and `words` of bits */
    const uint64_t *listening;  /* bits of the numbers that hear */
    int64_t words, number;      /* number: of this process */
    const pt_lease *leases;     /* of the rows that the bits are about */
} pt_heard;

typedef struct {                /* one end of a ring of acknowledged batches: one process writes, another reads */
    void *shared;               /* memory of both: a head of PT_RING_HEAD bytes, and `size` bytes of entries */
    uint64_t size;              /* a power of two */
    uint64_t at;                /* the byte at which this end goes on, counted from the first one ever */
    const pt_lease *leases;     /* of a writer: rows that another reader shows are none of this ring's */
} pt_ring;

typedef struct {                /* a partition of which pt_take has stored batches at offsets from `first` to `last` */
    pt_row *row;
    int64_t first, last;
} pt_stored;

typedef struct {                /* what one call of pt_take has done */
    int64_t entries, batches;   /* taken, and stored */
    int64_t ring;               /* of the entry that is left, or that is none */
    int64_t count;              /* of `stored` */
    pt_stored stored[64];
    pt_forwarded *forwarded;    /* these four: the entry that is left to Python */
    int64_t number;
    uint8_t *frame;
    uint64_t frame_bytes;
} pt_taken;

pt_row *pt_new_row(int64_t slot, const pt_fidelity *fidelity);  /* NULL: no memory */
void pt_free_row(pt_row *row);
/* Begins a run with `batches` batches of `size_bytes` at the offsets [first, following), which came in one piece when the
 * clock showed `clock`. */
void pt_begin_run(pt_row *row, int64_t source, int64_t first, int64_t following, int64_t size_bytes, int64_t batches,
                  int64_t clock);
/* The same for what belongs to an open run of this source: it follows, or comes before what does. Returns 1; 0, and nothing is
 * changed: it begins another. */
int pt_extend_run(pt_row *row, int64_t source, int64_t first, int64_t following, int64_t size_bytes, int64_t batches,
                  int64_t clock);
/* Notes offsets that are ahead of the run of observed ones. Returns 0, and nothing is changed: there is no room. */
int pt_note_ahead(pt_row *row, int64_t first, int64_t end);
/* Notes that a batch of `count` records of a producer is about to be forwarded while `leader_epoch` is proven. Returns
 * PT_NOT_DUPLICATE, PT_UNDECIDED or PT_RESENT. */
int pt_note_producer(pt_ledger *ledger, int64_t leader_epoch, int64_t id, int64_t epoch, int64_t base_sequence,
                     int64_t count);
/* Notes that batches are about to be forwarded: `batches` has `count` po_row; `rows` their partitions, NULL: nothing of it is
 * stored. Writes those that may be stored to `out`; returns their number. Of a partition that the request names repeatedly the
 * last batch counts, as for the broker (KafkaApis.handleProduceRequest). `stamp` is another for each request. */
int64_t pt_forward(const void *batches, pt_row *const *rows, int64_t count, int64_t stamp, pt_forwarded *out);
/* Finds the batches of the request `frame` that `answered` po_produced of the response `answer` acknowledge, and notes of each
 * that the broker has its records. `work` gets their numbers in `forwarded`, in the order of the response. Each is
 * acknowledged once, and none at an offset that no log reaches. Nothing is acknowledged where there is no memory. Then judges
 * and places them, unless some have a log append time: these come first. `answered` PT_ALL_TOLD: another process has found all of them,
 * and written what it found to `produced` of each. */
void pt_acknowledge(const uint8_t *frame, pt_forwarded *forwarded, int64_t count, const uint8_t *answer,
                    const void *produced, int64_t answered, pt_work *work);
/* The verdict on one batch acknowledged at `base_offset`. */
int pt_judge(const pt_row *row, int64_t magic, int64_t attributes, int64_t duplicate_check, int64_t epoch,
             int64_t high_watermark, int64_t generation, int64_t base_offset);
/* Judges the acknowledged batches, but for those with a log append time. Those with the verdict PT_AS_SENT are placed. */
void pt_place(pt_forwarded *forwarded, pt_work *work);
/* Notes that the placed batches are stored; one whose run_end is negative is not, and its verdict becomes PT_UNJUDGED. `left`
 * of each says what remains to be done. `epoch_since`: when an epoch must have been proven, at least. */
void pt_note_stored(pt_forwarded *forwarded, pt_work *work, _Bool has_runs, double epoch_since);
/* Gives the placed batches to `store` (pt_store), those that it has not had, and notes what is stored once it has had all. While
 * `appended` is less than `placed`, the store wants memory back: call again then. `size` is the frame's. */
void pt_store_placed(const uint8_t *frame, uint64_t size, pt_forwarded *forwarded, const void *store, _Bool has_runs,
                     double epoch_since, pt_work *work);
/* pt_acknowledge, and pt_store_placed unless some have a log append time. */
void pt_admit(const uint8_t *frame, uint64_t size, pt_forwarded *forwarded, int64_t count, const uint8_t *answer,
              const void *produced, int64_t answered, const void *store, _Bool has_runs, double epoch_since, pt_work *work);
/* fetch_limits.c: the one judge of every Fetch. Judges each of `count` partitions; `rows` NULL: it may not be read. Partitions in
 * `numbers` await pt_settle, those in `places` the ends of their runs and pt_find_stored. */
void pt_find_limits(pt_row *const *rows, const pt_asked *asked, int64_t count, int version, _Bool committed, double now,
                    pt_judged *out);
/* Goes on with partition `number`, whose last stable offset is `stable_offset`, for read_committed. */
void pt_settle(const pt_row *row, const pt_asked *asked, int64_t number, int64_t stable_offset, pt_judged *out);
/* Takes those back whose stored run does not reach their least end. */
void pt_find_stored(pt_judged *out);
/* shown.c. Shows the row to others. `lease`: number of its shared lease, -1: it has one of its own. `stable_offset`: the last stable
 * offset as far as it is known. The last of `count` aborted transactions are shown. Nothing is written where all is as it was shown. Returns
 * whether anything was. */
int pt_show(const pt_row *row, pt_shown *shown, int64_t lease, int64_t stable_offset, _Bool is_recalling,
            const pt_aborted *aborted, int64_t count);
/* Begins another era before what is in the arena changes in any way but by appending, or the row stands for nothing any more. */
void pt_show_end(pt_shown *shown);
/* A new row that follows what is shown; NULL: no memory. */
pt_row *pt_new_view(const pt_shown *shown, const pt_lease *leases, int64_t slot);
/* Copies what has been shown since, if anything. One that stands for another slot by now is not followed. */
void pt_look(pt_row *row);
/* Whether all rows are of the era that was seen: what was found in the arena since is theirs. */
_Bool pt_is_current(pt_row *const *rows, int64_t count);
/* Shows all processes which of the `count` batches the broker has acknowledged, in the epoch in which each was forwarded, and sets
 * the bits of all others that hear. */
void pt_show_acknowledged(const pt_forwarded *forwarded, int64_t count, const pt_heard *heard);
/* Takes the bits that were set for this process: writes the places of at most `room` partitions. Returns how many; there may be more
 * if it is more than `room` less 64. */
int64_t pt_hear(const pt_heard *heard, int64_t *places, int64_t room);
/* told.c. Writes the acknowledged batches of a request to the ring, as far as their rows are of the reader's. `size`: the frame's.
 * Returns PT_TOLD, or both or one of PT_WAKE: the reader sleeps, and PT_FULL: some of them found no room. */
int pt_tell(pt_ring *ring, const pt_forwarded *forwarded, int64_t count, const uint8_t *frame, uint64_t size);
/* Bytes of the ring that the reader has not taken, for the writer. */
uint64_t pt_untaken(const pt_ring *ring);
/* Stores what the rings have, as pt_admit does, in the order in which it was written over all of them; `rows` has `room` of this
 * process's by place, NULL where there is none. Batches of others are passed over. `turn` is another for each call, and negative.
 * Ends with PT_DRAINED; PT_MORE: `taken` is full; PT_LEFT: an entry is stored as `work` says, and Python goes on with it: it is there
 * until the next call of its ring; PT_BROKEN: the ring of that number is none. */
int pt_take(pt_ring *const *rings, int64_t ring_count, pt_row *const *rows, int64_t room, int64_t turn, const void *store,
            _Bool has_runs, double epoch_since, pt_work *work, pt_taken *taken);
/* Whether the reader may sleep: then the next pt_tell says PT_WAKE. */
_Bool pt_may_sleep(pt_ring *ring);
/* cdef end */
#endif
