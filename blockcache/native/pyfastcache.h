/* pyfastcache: record batches by partition and offset, in one arena. The only declaration of the C code.
 *
 * Owns: the arena's layout. Must not know: Kafka beyond a record batch v2's header, Python, files (but for send.c), clocks
 * and locks (but for lock.c).
 * Invariants: everything inside is found by offset from the arena's first byte, never by pointer; errors are negative ints;
 * a block is in exactly one state: free, reserved, in the FIFO, or in limbo (see check.c); `changes` is odd while a call
 * changes what it stands in, so that a reader beside (inspect.py) knows what it read half done; memory that is lent (lent.c)
 * is written by who has it.
 * One caller at a time: one thread of one process, or each call holds the lock of an arena that is `shared` (lock.c). Holder
 * 0 is the process that changes content. The others, 1 to FC_HOLDERS - 1, look up, and change nothing but counts of pins
 * (pins.c): one that dies at any instruction leaves an arena that is whole once lock.c has undone its last pin.
 *
 *   0            +-------------------------+
 *                | fc_arena                |  this header: sections, pools, FIFO ends, counts
 *   partitions_at| fc_partition[max]       |  slots, recycled through a free list
 *   ghosts_at    | fc_ghost[max]           |  ring of evicted blocks, chained by partition
 *   taken_at     | bit per unit            |  1 = the unit belongs to a block
 *   starts_at    | bit per unit            |  1 = a block's fc_block header stands here
 *   nodes_at     | fc_node[max]            |  the index pool: B+ tree nodes, number 0 unused
 *   data_at      | FC_UNIT[data_units]     |  the data pool
 *   size_bytes   +-------------------------+
 *
 *   a data block, 1..n consecutive units, of one partition (an own block) or of all slow ones (the shared block):
 *     own     | fc_block | batch | batch | ...                        | unused |
 *     shared  | fc_block | slot  | batch | slot | batch | ...         | unused |    slot: FC_OWNER_BYTES
 *     lent    | fc_block | head of a request | batch | its rest   | unused |    filled: to the batch's end
 *     observe | fc_block | head  | head  | ...  | never touched ...            |    head: FC_BATCH_HEADER bytes
 *                                               ^ filled_bytes        ^ used_bytes (headers included; the same but
 *                                                                       in an observing arena)
 *   an index node:  0 | level, count, prev, next | 16: fc_entry[5], a leaf, or fc_item[15]                    | 256
 *   fc_entry:       0 | covers_from | 8 base_offset | 16 position | 24 admitted | 32 last_delta | 36 length
 *                                                          | 40 leader_epoch | 44 run_start                   | 48
 * Sizes and places are asserted in layout.c, and in layout.py for who reads an arena from beside.
 * The part between the cdef marks is fed to cffi unchanged. */
#ifndef PYFASTCACHE_H
#define PYFASTCACHE_H
#include <stddef.h>
#include <stdint.h>
/* cdef begin */
#define FC_MAGIC 0x7961626572734631
#define FC_LAYOUT 6
#define FC_UNIT 1024
#define FC_LEAF_MAX 5
#define FC_INNER_MAX 15
#define FC_HEIGHT_MAX 11
#define FC_SEGMENTS_MAX 512
#define FC_HIT_HEAD 6
#define FC_SLOT_BITS 24
#define FC_SHARED 0xffffffff
#define FC_BATCH_HEADER 61
#define FC_TIMESTAMP_END 43 /* of maxTimestamp in the header */
#define FC_OWNER_BYTES 4  /* before each batch of a shared block: its partition's place */
#define FC_IDENTITY_BYTES 496 /* for the caller, who says whose bytes these are */
#define FC_GATHER_BYTES 8192 /* a hit in pieces of at most this, on average, is copied: so are all of a shared block */
#define FC_HOLDERS 32     /* processes that may have pins; 0 changes content */
#define FC_PINNED 1       /* fc_hit.pinned: until it is released */
#define FC_PINNED_TO_COPY 2 /* until it is copied, which is to be soon: of a holder other than 0 */

#define FC_BAD_BATCH -1   /* the caller's bytes are no run of whole v2 batches, or lie below covers_from */
#define FC_STALE -2       /* a handle (slot, pin) whose generation has passed */
#define FC_RECLAIM -3     /* a pinned block is next to be evicted: offer it to its owners, then call again */
#define FC_NO_ROOM -4     /* nothing is left to evict */
#define FC_TOO_SMALL -5   /* the arena cannot hold the sections asked for */
#define FC_FULL -6        /* every partition slot is open */
#define FC_NOT_STORED -7  /* no batch covers this offset */
#define FC_OTHER -8       /* an arena of another layout, or of other sections */
#define FC_BUSY -10       /* a holder other than 0 did not get the lock in time: nothing was done, or not all */
#define FC_TORN -9        /* the process that changes the arena died in the middle of a change: all that is left is other memory */

#define FC_BROKEN_LAYOUT -101     /* check(): what was found wrong, by place */
#define FC_BROKEN_UNITS -102
#define FC_BROKEN_FIFO -103
#define FC_BROKEN_LIMBO -104
#define FC_BROKEN_BLOCK -105
#define FC_BROKEN_PINS -106
#define FC_BROKEN_TREE -107
#define FC_BROKEN_ORDER -108
#define FC_BROKEN_RUNS -109
#define FC_BROKEN_ENTRY -110
#define FC_BROKEN_COUNTS -111
#define FC_BROKEN_GHOSTS -112
#define FC_BROKEN_NODES -113
#define FC_BROKEN_LENT -114

enum { FC_FOR_ROOM = 0, FC_FOR_INDEX = 1, FC_FOR_WATER = 2, FC_REASONS = 3 };   /* why a block was evicted */
enum { FC_TRUNCATED = 0, FC_START_MOVED = 1, FC_DROPPED = 2, FC_INVALIDATIONS = 3 };
enum { FC_IN_FIFO = 1, FC_IN_LIMBO = 2, FC_RESERVED = 3 };                       /* fc_block.state */

typedef struct {
    uint64_t size_bytes;
    uint64_t partitions_max;
    uint64_t ghosts_max;
    uint64_t nodes_max;
    uint64_t block_min_bytes;   /* a partition's first own block; doubled while it fills quickly */
    uint64_t block_max_bytes;
    uint64_t shared_bytes;      /* the shared block of slow partitions; 0: every partition has its own */
    uint64_t pin_limit_bytes;   /* bytes of pinned blocks, limbo included; beyond it a lookup does not pin */
    uint64_t lent_limit_bytes;  /* bytes of blocks lent to requests that arrive; beyond it none is reserved */
    uint64_t observe;           /* 1: batches are placed and counted, but only their headers stored */
} fc_config;

typedef struct {                /* 1368 bytes */
    uint64_t magic, layout, size_bytes;
    uint64_t partitions_at, partitions_max, partitions_touched, partitions_free, partitions_open;
    uint64_t ghosts_at, ghosts_max, ghosts_written;
    uint64_t taken_at, starts_at;
    uint64_t nodes_at, nodes_max, nodes_touched, nodes_free, nodes_live;
    uint64_t data_at, data_units, free_units, cursor;
    uint64_t block_min_bytes, block_max_bytes, batch_max_bytes, pin_limit_bytes;
    uint64_t generation;                       /* of the newest block */
    uint64_t fifo_oldest, fifo_newest, blocks; /* offsets of fc_block, 0 = none */
    uint64_t limbo_first, limbo_blocks, limbo_bytes;
    uint64_t pins, pinned_bytes;               /* pins held; bytes of blocks that have any */
    uint64_t reclaim_block, reclaim_generation;
    uint64_t entries, live_bytes, admitted_bytes;
    uint64_t admitted_batches, kept_batches, conflicts, skipped_batches, skipped_bytes;
    uint64_t evicted_blocks[3], evicted_bytes; /* by FC_FOR_* */
    uint64_t invalidated_bytes[3];             /* by FC_TRUNCATED... */
    uint64_t limbo_entered, copied_lookups, gathered_lookups, lookups;
    uint64_t shared_block, shared_bytes;       /* appended to by slow partitions; 0 none */
    uint64_t observe;
    uint64_t changes;                          /* odd while a call changes the arena */
    uint64_t reserved_blocks, lent_bytes;      /* blocks that no batch was adopted in yet; bytes of all lent ones */
    uint64_t lent_limit_bytes, adopted_batches;
    uint64_t admitted_before;                  /* the clock of admitted bytes when this process began */
    uint64_t alive_at;                         /* of the caller: when its process was last alive */
    uint8_t identity[496];                     /* of the caller */
    uint64_t lock[8];                          /* a pthread_mutex_t (lock.c), valid if shared */
    uint64_t shared;                           /* 1: several processes use the arena, each call takes the lock */
    uint64_t torn;                             /* 1: of no use any more (FC_TORN) */
    uint64_t lock_calls, lock_waits, lock_waited_ns; /* taken; of them, not at once; how long that took */
    uint64_t lock_stuck;                       /* 1: a wait has ended in vain, and nobody has had the lock since */
    uint64_t lock_refusals;                    /* FC_BUSY */
    uint64_t keeper_pid;                       /* of holder 0, who waits for the lock without a bound; 0 until fc_share() */
    uint64_t limbo_idle;                       /* blocks in limbo that nobody pins any more: holder 0 frees them */
    uint64_t refused_lookups;                  /* of holders other than 0: not answered, no more may be pinned */
    uint64_t undo_block;                       /* a pin is being counted: the counts before it (pins.c); 0 none */
    uint64_t undo_holder, undo_block_pins, undo_block_pins_of, undo_pins, undo_pins_of, undo_pinned_bytes, undo_limbo_idle;
    uint32_t pins_of[32];                      /* of pins, those of each holder but 0 */
    uint64_t is_open;                          /* 1: another process may attach; 0 until a keeper has decided about the arena */
} fc_arena;

typedef struct {                /* 128 bytes */
    uint8_t topic_id[16];
    int32_t index;
    uint32_t generation;        /* odd while open; part of the slot handle */
    uint32_t root, height;      /* root node 0 = empty; height = levels */
    int64_t expect;             /* where the tail starts when nothing is stored, -1 unknown */
    int64_t log_start;          /* batches that end at or below it do not enter */
    int64_t evicted_end;        /* the highest end offset that the FIFO has let go, -1 none */
    uint64_t open_block;        /* appended to; 0 none */
    uint64_t block_bytes;       /* size of the next block; 0: the shared one */
    uint64_t entries, live_bytes;
    uint64_t ghost;             /* number of its newest ghost + 1; 0 none */
    uint64_t next_free;
    uint64_t window_opened, window_bytes;  /* since when, on the clock, and how much went to the shared block */
    uint64_t changes;           /* odd while its index changes */
} fc_partition;

typedef struct {                /* 48 bytes: one batch */
    int64_t covers_from;        /* offsets from here to base_offset are known to be empty */
    int64_t base_offset;
    uint64_t position;          /* of the batch's first byte in the arena */
    uint64_t admitted;          /* the all-time clock of admitted bytes, this batch counted */
    uint32_t last_delta;        /* last offset - base offset */
    uint32_t length;
    int32_t leader_epoch;
    uint32_t run_start;         /* 1: what precedes covers_from is not stored */
} fc_entry;

typedef struct {                /* 16 bytes: one child */
    int64_t key;                /* at most the smallest base offset below */
    uint32_t child;
    uint32_t starts;            /* entries below that start a run */
} fc_item;

typedef struct {                /* 256 bytes */
    uint32_t level, count;      /* level 0 = leaf */
    uint32_t prev, next;        /* neighbour leaves; next also links free nodes */
    union {
        fc_entry entry[5];
        fc_item item[15];
    };
} fc_node;

typedef struct {                /* 160 bytes, at a block's start */
    uint32_t state, units;
    uint64_t generation;
    uint64_t prev, next;        /* in the FIFO or in limbo; offsets, 0 = none */
    uint32_t pins, offered;     /* offered: its owners were asked once to let go */
    uint32_t slot, live;        /* slot: FC_SHARED if shared or reserved; live: entries that point into it */
    uint64_t used_bytes, live_bytes;
    uint64_t opened, written;   /* clock when the first batch came, and the last */
    uint64_t filled_bytes;      /* where the next batch goes */
    uint32_t first_bytes;       /* where its first batch stands */
    uint32_t lent;              /* 1: somebody may write into it, and has a pin (lent.c) */
    uint16_t pins_of[32];       /* of pins, those of each holder but 0 */
} fc_block;

typedef struct {                /* 48 bytes: evicted batches, consecutive in offsets and close in age */
    int64_t first_offset, next_offset;
    uint64_t first_admitted, last_admitted; /* the clock before the first batch, and before the last */
    uint64_t before;            /* number of the partition's ghost before this one + 1 */
    uint32_t slot, generation;
} fc_ghost;

typedef struct {
    uint64_t position;          /* in the caller's buffer; 0 at the first call, kept over FC_RECLAIM */
    int64_t covers_from;
    int64_t first_offset, next_offset, conflict_offset;
    uint64_t stored_bytes, skipped_bytes, stored_batches;
} fc_inserted;

typedef struct {                /* 32 bytes */
    uint64_t position, length;
    uint64_t block, generation; /* the pin */
} fc_segment;

typedef struct {                /* FC_HIT_HEAD words, then the segments */
    int64_t next_offset;
    uint64_t size_bytes, segments, pinned; /* pinned: FC_PINNED, FC_PINNED_TO_COPY, or 0: to be copied at once, by holder 0 */
    uint64_t admitted;             /* the clock of admitted bytes before the first batch */
    uint64_t cut;                  /* 1: a stored batch follows below the limit offset; it is left out, whole */
    fc_segment segment[512];
} fc_hit;

typedef struct {                   /* one partition of a response; words */
    int64_t slot, offset, limit_offset, max_bytes;
} fc_wanted;

typedef struct {                   /* what a response gets of it */
    int64_t size_bytes;            /* 0: no batch fits; FC_NO_ROOM: the response is full; other negatives: fc_lookup's */
    int64_t next_offset;
    uint64_t admitted;
    int64_t timestamp;             /* maxTimestamp of the first batch's header; -1 without one */
} fc_taken;

typedef struct {                   /* a response that is being put together */
    uint64_t room_bytes;           /* of its limit, left for records */
    uint64_t hits, hit_bytes;      /* lookups that gave records, one behind another, and the memory that they take */
    uint64_t size_bytes;           /* of their records */
    uint64_t holder;               /* who has the pins; stays */
} fc_response;

typedef struct {
    int64_t tail_start, tail_end;  /* the newest contiguous run; equal when nothing is stored; -1 unknown */
    int64_t hole_start, hole_end;  /* the gap between two runs that an offset stands in, else -1 */
    int64_t evicted_end;
    int64_t last_epoch;            /* of the newest batch, -1 none */
} fc_edges;

typedef struct {                   /* one batch of a buffer, with the place that its broker gave it */
    int64_t slot;
    int64_t start, end;            /* in the buffer */
    int64_t base_offset, leader_epoch;
    int64_t run_end;               /* set by fc_append: where its run ends now; negative: not stored, and why */
    int64_t clock;                 /* set by fc_append: the clock of admitted bytes before it */
} fc_placed;

typedef struct {                   /* how other C stores batches: `append` is fc_append_to */
    uint64_t (*append)(void *arena, const uint8_t *buf, uint64_t size, void *placed, uint64_t done, uint64_t count,
                       uint64_t used_max);
    void *arena;                   /* NULL: nothing may be stored now */
    uint64_t used_max;
} fc_appender;

/* partition.c */
int fc_format(fc_arena *a, const fc_config *config);
int64_t fc_open(fc_arena *a, const uint8_t *topic_id, int32_t index);
int fc_drop(fc_arena *a, int64_t slot);
int fc_expect(fc_arena *a, int64_t slot, int64_t offset);
int fc_truncate(fc_arena *a, int64_t slot, int64_t from_offset);
int fc_advance_start(fc_arena *a, int64_t slot, int64_t log_start_offset);
/* insert.c */
int fc_insert(fc_arena *a, int64_t slot, const uint8_t *run, uint64_t size, fc_inserted *out);
uint64_t fc_append(fc_arena *a, const uint8_t *buf, uint64_t size, fc_placed *placed, uint64_t done, uint64_t count,
                   uint64_t used_max);
uint64_t fc_append_to(void *arena, const uint8_t *buf, uint64_t size, void *placed, uint64_t done, uint64_t count,
                      uint64_t used_max);
/* lent.c */
int64_t fc_reserve(fc_arena *a, uint64_t size, uint64_t used_max);
int fc_give_back(fc_arena *a, const uint8_t *bytes);
/* lookup.c */
int fc_lookup(fc_arena *a, uint32_t holder, int64_t slot, int64_t offset, int64_t limit_offset, uint64_t max_bytes,
              int at_least_one, fc_hit *out);
int fc_find_all(fc_arena *a, const int64_t *words, uint64_t count, int has_records, fc_response *response,
                uint8_t *hits, uint64_t hits_room, fc_taken *taken);
int fc_gather(fc_arena *a, const fc_hit *hit, uint8_t *out);
int fc_span(fc_arena *a, int64_t slot, int64_t offset, int64_t limit_offset, uint64_t max_bytes, int at_least_one,
            fc_hit *out);
int64_t fc_contiguous_end(fc_arena *a, int64_t slot, int64_t offset);
int fc_contiguous_ends(fc_arena *a, const int64_t *places, uint64_t count, int64_t *ends);
int fc_find_edges(fc_arena *a, int64_t slot, int64_t offset, fc_edges *out);
int64_t fc_first_after_epoch(fc_arena *a, int64_t slot, int32_t epoch);
int64_t fc_unaborted_from(fc_arena *a, int64_t slot, int64_t end, uint64_t batches);
int64_t fc_age(fc_arena *a, int64_t slot, int64_t offset);
int fc_find_batch(fc_arena *a, int64_t slot, int64_t offset, fc_entry *out);
int fc_copy_head(fc_arena *a, int64_t slot, int64_t offset, uint8_t *out);
/* send.c */
int64_t fc_send(fc_arena *a, fc_response *response, uint8_t *hits, int fd, const uint8_t *heads,
                uint64_t heads_size, const uint64_t *cuts);
void fc_release_all(fc_arena *a, fc_response *response, uint8_t *hits);
/* fifo.c */
int64_t fc_evict_to(fc_arena *a, uint64_t used_bytes);
int64_t fc_oldest_admitted(fc_arena *a);
/* pins.c */
int fc_release(fc_arena *a, uint32_t holder, const fc_segment *segments, uint64_t count);
int64_t fc_release_holder(fc_arena *a, uint32_t holder, uint32_t by);
/* lock.c */
int fc_share(fc_arena *a);
/* pages.c */
int fc_prefault(fc_arena *a, uint64_t from, uint64_t size);
/* check.c */
int fc_check(fc_arena *a);
/* takeover.c */
void fc_close(fc_arena *a);
int fc_take_over(fc_arena *a, const fc_config *config, uint32_t living);
int fc_begin_anew(fc_arena *a, const fc_config *config, uint64_t admitted_bytes);
int64_t fc_slot_at(fc_arena *a, uint64_t place, uint8_t *topic_id, int32_t *index);
/* cdef end */

/* Between the files of native/. */
#define FC_NONE 0xffffffffu
#define FC_HEADER_BYTES 1368
#define FC_PINS_OF_BLOCK_MAX (UINT16_MAX - FC_SEGMENTS_MAX) /* ... before a lookup, of a holder other than 0 */
#define FC_SCAN_UNITS (1u << 18)   /* how far from the cursor free room is looked for before evicting */
#define FC_HOLD_PARTITIONS 16      /* the lock is let go after so many of a response, */
#define FC_HOLD_BYTES (1u << 16)   /* ... so many bytes of an insertion, */
#define FC_HOLD_BATCHES 64         /* ... so many batches that are invalidated, */
#define FC_HOLD_UNITS 8192         /* ... and so many units of a walk over blocks */
#define FC_LOCK_WAIT_NS 100000000u /* who reads waits so long for the lock of a process that was stopped within a call */
#define FC_ATTRIBUTES_AT 21        /* 2 bytes */
#define FC_CONTROL 0x20            /* bit of the second: the batch is a marker */
#define FC_PRODUCER_AT 43          /* producer id, producer epoch, base sequence: 14 bytes */
#define FC_PRODUCER_BYTES 14

typedef struct {
    int64_t base, last;
    uint64_t length;
    int32_t epoch;
    const uint8_t *bytes;
} fc_batch;

typedef struct {               /* the nodes from the root (highest level) to a leaf, and the place in each */
    uint32_t node[FC_HEIGHT_MAX];
    uint32_t at[FC_HEIGHT_MAX]; /* leaf: entries at or below the key (so 0 = before the first) */
} fc_path;

static inline uint8_t *fc_at(fc_arena *a, uint64_t offset) { return (uint8_t *)a + offset; }
static inline fc_block *fc_block_at(fc_arena *a, uint64_t offset) { return (fc_block *)(void *)fc_at(a, offset); }
static inline fc_node *fc_node_at(fc_arena *a, uint32_t n) {
    return (fc_node *)(void *)fc_at(a, a->nodes_at) + n;
}
static inline fc_partition *fc_partition_at(fc_arena *a, uint64_t i) {
    return (fc_partition *)(void *)fc_at(a, a->partitions_at) + i;
}
static inline fc_ghost *fc_ghost_at(fc_arena *a, uint64_t number) {
    return (fc_ghost *)(void *)fc_at(a, a->ghosts_at) + number % a->ghosts_max;
}
static inline int64_t fc_last(const fc_entry *e) { return e->base_offset + (int64_t)e->last_delta; }
static inline int64_t fc_end(const fc_entry *e) { return fc_last(e) + 1; }
static inline uint64_t fc_units(uint64_t bytes) { return (bytes + FC_UNIT - 1) / FC_UNIT; }
static inline uint64_t fc_unit_of(fc_arena *a, uint64_t offset) { return (offset - a->data_at) / FC_UNIT; }
/* How many bytes of a batch are there: all, or in an observing arena its header. */
static inline uint64_t fc_footprint(const fc_arena *a, uint64_t length) {
    return a->observe ? FC_BATCH_HEADER : length;
}
static inline uint64_t fc_owner_bytes(const fc_block *b) { return b->slot == FC_SHARED ? FC_OWNER_BYTES : 0; }
/* Around what a reader beside must not see half done; not nested. */
static inline void fc_begin(uint64_t *changes) {
    __atomic_store_n(changes, *changes + 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
static inline void fc_done(uint64_t *changes) { __atomic_store_n(changes, *changes + 1, __ATOMIC_RELEASE); }
static inline uint64_t fc_data_bytes(fc_arena *a) { return a->data_units * FC_UNIT; }

/* lock.c */
int fc_lock(fc_arena *a);
int fc_lock_to_read(fc_arena *a);
void fc_unlock(fc_arena *a);
static inline void fc_let_go(fc_arena **held) {
    if (*held != NULL) {
        fc_unlock(*held);
    }
}
/* Holds the lock of a shared arena until the end of the scope; returns `torn` where there is no use in it. */
#define FC_HOLD(a, torn)                                                      \
    fc_arena *fc_held __attribute__((cleanup(fc_let_go))) = NULL;             \
    if (__builtin_expect((a)->shared != 0, 0)) {                              \
        if (fc_lock(a) < 0) {                                                 \
            return (torn);                                                    \
        }                                                                     \
        fc_held = (a);                                                        \
    }
/* The same for who only reads and pins, which waits for FC_LOCK_WAIT_NS at most unless it is the keeper: returns FC_TORN or
 * FC_BUSY without the lock. */
#define FC_HOLD_TO_READ(a)                                                    \
    fc_arena *fc_held __attribute__((cleanup(fc_let_go))) = NULL;             \
    if (__builtin_expect((a)->shared != 0, 0)) {                              \
        int fc_refusal = fc_lock_to_read(a);                                  \
        if (fc_refusal < 0) {                                                 \
            return fc_refusal;                                                \
        }                                                                     \
        fc_held = (a);                                                        \
    }
/* pins.c */
int fc_release_held(fc_arena *a, uint32_t holder, const fc_segment *segments, uint64_t count);
uint32_t fc_pins_of(const fc_arena *a, const fc_block *b, uint32_t holder);
void fc_block_pin_shared(fc_arena *a, fc_block *b, uint32_t holder);
static inline void fc_count_pin(fc_arena *a, fc_block *b) {
    if (b->pins++ == 0) {
        a->pinned_bytes += (uint64_t)b->units * FC_UNIT;
    }
    a->pins++;
}
static inline void fc_block_pin(fc_arena *a, fc_block *b, uint32_t holder) {
    if (__builtin_expect(a->shared != 0, 0)) {
        fc_block_pin_shared(a, b, holder);
    } else {
        fc_count_pin(a, b);
    }
}
void fc_block_unpin(fc_arena *a, fc_block *b, uint32_t holder);
void fc_undo_pin(fc_arena *a);
int fc_let_dead_go(fc_arena *a, uint32_t living);
/* partition.c */
fc_partition *fc_partition_of(fc_arena *a, int64_t slot);
uint32_t fc_index_of_slot(int64_t slot);
/* batch.c */
int fc_read_batch(const uint8_t *bytes, uint64_t size, fc_batch *out);
int fc_read_head(const uint8_t *bytes, fc_batch *out);
int fc_same_batch(const uint8_t *stored, const fc_batch *batch);
int64_t fc_batch_timestamp(const uint8_t *bytes);
void fc_write_head(uint8_t *stored, const fc_batch *batch);
/* units.c */
uint64_t fc_units_take(fc_arena *a, uint64_t least, uint64_t most, uint64_t *got);
uint64_t fc_units_take_within(fc_arena *a, uint64_t from, uint64_t to, uint64_t least, uint64_t most, uint64_t *got);
void fc_units_give(fc_arena *a, uint64_t unit, uint64_t units);
int fc_bit(fc_arena *a, uint64_t map_at, uint64_t i);
void fc_set_bit(fc_arena *a, uint64_t map_at, uint64_t i, int value);
uint64_t fc_find_bit(fc_arena *a, uint64_t map_at, uint64_t from, uint64_t to, int value);
uint64_t fc_find_bit_before(fc_arena *a, uint64_t map_at, uint64_t from);
uint64_t fc_count_bits(fc_arena *a, uint64_t map_at);
/* check.c */
int fc_check_content(fc_arena *a);
int fc_check_pins(fc_arena *a);
/* blocks.c */
int fc_block_for(fc_arena *a, uint32_t index, uint64_t length, uint64_t remaining, uint64_t *at);
int fc_block_step(fc_arena *a, const fc_block *b, uint64_t *used, uint32_t *slot, fc_batch *batch);
int fc_block_take(fc_arena *a, uint32_t slot, uint64_t least, uint64_t most, uint64_t *at);
void fc_count_rate(fc_arena *a, fc_partition *p, uint64_t length);
/* fifo.c */
fc_block *fc_block_of(fc_arena *a, uint64_t at, uint64_t generation);
void fc_block_append(fc_arena *a, fc_block *b);
void fc_block_lost(fc_arena *a, fc_partition *p, fc_block *b, const fc_entry *e);
void fc_block_settle(fc_arena *a, fc_block *b);
void fc_limbo_free(fc_arena *a);
uint64_t fc_block_holding(fc_arena *a, uint64_t position);
int fc_block_let_go(fc_arena *a, uint64_t unit);
int fc_evict_oldest(fc_arena *a, int reason, uint64_t *unit, uint64_t *units);
/* pages.c */
void fc_pages_give(fc_arena *a, uint64_t from, uint64_t size);
/* lent.c */
fc_block *fc_reserved_around(fc_arena *a, const uint8_t *bytes, uint64_t length);
void fc_adopt(fc_arena *a, fc_block *b, uint32_t index, const uint8_t *bytes);
/* ghost.c */
void fc_ghost_add(fc_arena *a, uint32_t index, const fc_entry *e);
int64_t fc_ghost_clock(fc_arena *a, uint32_t index, int64_t offset);
/* tree.c: a B+ tree of entries by base offset, with the number of run starts below each child */
void fc_tree_descend(fc_arena *a, const fc_partition *p, int64_t key, fc_path *path);
fc_entry *fc_tree_floor(fc_arena *a, const fc_partition *p, int64_t key);
fc_entry *fc_tree_after(fc_arena *a, const fc_partition *p, int64_t key);
fc_entry *fc_tree_last(fc_arena *a, const fc_partition *p);
void fc_tree_insert(fc_arena *a, fc_partition *p, const fc_entry *entry);
void fc_tree_remove(fc_arena *a, fc_partition *p, int64_t base_offset);
void fc_tree_mark(fc_arena *a, fc_partition *p, int64_t base_offset, uint32_t run_start);
uint64_t fc_tree_room(fc_arena *a);
/* nodes.c */
uint32_t fc_node_take(fc_arena *a, uint32_t level);
void fc_node_give(fc_arena *a, uint32_t n);
uint32_t fc_node_starts(const fc_node *node);
/* runs.c: the index as runs of contiguous batches */
fc_entry *fc_covering(fc_arena *a, const fc_partition *p, int64_t offset);
fc_entry *fc_run_after(fc_arena *a, const fc_partition *p, int64_t base_offset);
fc_entry *fc_run_at_or_before(fc_arena *a, const fc_partition *p, int64_t base_offset);
void fc_index_add(fc_arena *a, fc_partition *p, fc_entry *entry);
void fc_index_remove(fc_arena *a, fc_partition *p, int64_t base_offset);
void fc_index_cover(fc_arena *a, fc_partition *p, int64_t base_offset, int64_t covers_from);
#endif
