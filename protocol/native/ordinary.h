/* Requests and answers of Produce and Fetch, read in one pass, and an answer to a Fetch, written; and how much any names.
 * The only declaration.
 *
 * A Produce and a Fetch are read whole, whatever they are: a row for each partition, versions 3 to 13 and 4 to 18; so is the
 * answer to a Produce. Of an answer to a Fetch only the ordinary form is read: one partition, records that are not null.
 * Owns: recognising them, and where what of them stands. Must not know: Python, what is done with it. Invariants: nothing
 * is read beyond `size`; bytes behind the last field of a request are ignored (AbstractRequest.parseRequest); texts of a
 * Produce are not decoded, those of a Fetch are UTF-8; an answer to a Fetch of another form, garbage included, is for
 * protocol/fetch.py to judge, which says the same of what is ordinary; no state.
 * The part between the cdef marks is fed to cffi unchanged; the structs are words. Python asserts that its fields have these
 * names, in this order. */
#ifndef ORDINARY_H
#define ORDINARY_H
#include <stddef.h>
#include <stdint.h>
/* cdef begin */
#define PO_ROUTE_START 12   /* of the client id's length: behind length, API key, version and correlation id */
#define PO_ROUTE_MAX 1024   /* bytes of a route; a Produce with longer names is not single */
#define PO_PRODUCE_WORDS 8
#define PO_ROW_WORDS 12
#define PO_PRODUCED_WORDS 7
#define PO_FETCH_WORDS 19
#define PO_TOPIC_WORDS 3
#define PO_ASKED_WORDS 6
#define PO_ANSWER_WORDS 4
#define PO_POLLED_WORDS 8
#define PO_MALFORMED -1
#define PO_WIDE -2          /* names more than may be read */

typedef struct {            /* a Produce */
    int64_t version, correlation_id;
    int64_t body_start;         /* behind the header */
    int64_t is_transactional;   /* 1: it has a transactional id */
    int64_t acks;
    int64_t names_start;        /* where the array of topics begins */
    int64_t route_end;          /* of a single one, behind the partition's index: up to here it is as the last one to it */
    int64_t null_records;       /* partitions whose records are null */
} po_produce;

typedef struct {            /* one of its partitions; what is not known is -1 */
    int64_t topic_start, topic_end; /* the topic: a name behind its length, or an id */
    int64_t partition;
    int64_t start, end;         /* of the records; where they are one batch, of that; both -1: they are null */
    int64_t magic;              /* of the one batch; -1: they are none, or several, or garbage. Only if 2 is known: */
    int64_t attributes, last_delta, producer_id, producer_epoch, base_sequence, record_count;
} po_row;

typedef struct {            /* one partition of an answer */
    int64_t topic_start, topic_end; /* as in a request of that version */
    int64_t partition;
    int64_t error_code, base_offset, log_append_time_ms, log_start_offset;
} po_produced;

typedef struct {            /* a Fetch; what its version lacks is -1, but session 0 */
    int64_t version, correlation_id;
    int64_t client_id_end;      /* the client id begins behind its length */
    int64_t body_start;         /* behind the header */
    int64_t replica_id;         /* -1: a consumer's; from version 15 as its tagged field says */
    int64_t max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch;
    int64_t session_at;         /* where the session's id begins */
    int64_t names_start;        /* where the array of topics begins */
    int64_t names_end;          /* behind the first partition's index, or behind that array where there is none */
    int64_t topics;             /* those asked for, then those of forgotten partitions */
    int64_t partitions, forgotten;
    int64_t rack_start, rack_end; /* UTF-8; both 0 where its version has none */
} po_fetch;

typedef struct {            /* one of its topics */
    int64_t start, end;         /* a name behind its length, UTF-8, or an id */
    int64_t partitions;
} po_topic;

typedef struct {            /* one of its partitions: those asked for, then those forgotten, which have the index alone */
    int64_t partition, current_leader_epoch, fetch_offset, last_fetched_epoch, log_start_offset, max_bytes;
} po_asked;

typedef struct {                /* 2 words */
    int64_t start, end;         /* of the records */
} po_fetched;

typedef struct {                /* an answer to a Fetch */
    int64_t throttle_time_ms, error_code, session_id, topics;
} po_answer;

typedef struct {                /* one of its partitions */
    int64_t partition, error_code, high_watermark, last_stable_offset, log_start_offset, preferred_read_replica;
    int64_t start, end;         /* of the records; both -1: null */
} po_polled;

typedef struct {                /* an answer to a Fetch that is built */
    int64_t version, correlation_id, throttle_time_ms, error_code, session_id;
} po_heading;

typedef struct {                /* 6 words: one of its partitions */
    int64_t error_code, high_watermark, last_stable_offset, log_start_offset;
    int64_t aborted;            /* how many transactions its list has; -1: it is null */
    int64_t records_bytes;
} po_answered;

typedef struct {                /* the partitions of a client's Fetches, a slot for each, in the order of the first */
    int64_t slots, topics;
    const uint8_t *names;       /* the topics' names or ids, which `topic` cuts */
    const po_topic *topic;
    int64_t *topic_of;          /* of each slot: index into `topic` */
    po_asked *asked;            /* of each slot: what was asked last */
    int64_t *named;             /* of each slot: 1 if the last request named it */
    int64_t *mark;              /* of each slot: the last request in which it was found */
    int64_t *place;             /* of each slot: its number in that request */
    int64_t *order;             /* slots of the last request, in its order */
    int64_t *dropped;           /* slots that it no longer names */
    int64_t count, drops;       /* how many of each */
    int64_t request;            /* numbers the requests */
    int64_t next;               /* the slot at which the search begins */
} po_ring;

/* The number of partitions of a Produce, the first `room` of them in `rows`. PO_MALFORMED; PO_WIDE: po_weigh finds more than
 * `most` in it. */
int64_t po_scan_produce(const uint8_t *frame, uint64_t size, int64_t most, po_produce *out, po_row *rows, int64_t room);
/* 1: `begun`, the first `have` bytes of a frame of `size`, begins a single Produce: acks is not 0, one topic, one partition,
 * one whole batch v2 that fills the records, no tagged field behind it, nothing after the last. `out` and `row` are what they
 * will be if the rest is as announced. */
int po_scan_single(const uint8_t *begun, uint64_t have, uint64_t size, po_produce *out, po_row *row);
/* The number of partitions of an answer in `version`, the first `room` of them in `rows`; or PO_MALFORMED. */
int64_t po_scan_produced(const uint8_t *frame, uint64_t size, int version, po_produced *rows, int64_t room);
/* The number of topics or partitions of a Fetch, those forgotten included: the greater. The first `room` of them are in
 * `topics` and `rows`. PO_MALFORMED; PO_WIDE: po_weigh finds more than `most` in it. */
int64_t po_scan_fetch(const uint8_t *frame, uint64_t size, int64_t most, po_fetch *out, po_topic *topics,
                      po_asked *rows, int64_t room);
/* 1: an ordinary answer of `size` bytes in `version`, about what `names` says (from `names_start` to `names_end` of a
 * request for one partition; about anything where `names_size` is 0), begins with the `received` bytes of `head`, and they
 * are the whole of it, or end among its records. */
int po_scan_fetched(const uint8_t *head, uint64_t received, uint64_t size, int version, const uint8_t *names,
                    uint64_t names_size, po_fetched *out);
/* How many partitions `frame` answers, a whole answer of version 13: no more than `most`, nor more topics, without aborted
 * transactions or tagged fields; `out`, `topics` and as many `rows` say what. Negative: it is of another form. */
int64_t po_scan_rows(const uint8_t *frame, uint64_t size, po_answer *out, po_topic *topics, po_polled *rows, int64_t most);
/* Writes an answer without its records to `out`, and returns its size; PO_WIDE where `room` does not suffice. `words` are a
 * po_answered for each of `count` partitions; before the n-th stand the bytes of `names` that end at name_ends[n], behind
 * the last those that end at name_ends[count]. `aborted` has two words for each transaction: producer id, first offset.
 * The records of the n-th partition that has any stand before out[cuts[n]]. */
int64_t po_build_heads(const po_heading *heading, const uint8_t *names, const uint32_t *name_ends,
                       const int64_t *words, uint64_t count, const int64_t *aborted, uint8_t *out, uint64_t room,
                       uint64_t *cuts);
/* Finds each of `count` partitions of a Fetch, scanned into `topics` and `rows`, in the ring: searching begins where the last
 * one was found, so that a request in another rotation, or with some left out, is found in one round. Returns the number of
 * slots in `changed`: what is asked of them has changed, or the request before did not name them. `order`, `place` and
 * `named` say what this request names; `dropped` has the `drops` slots that it no longer names. PO_MALFORMED, and the ring is of
 * no use any more: it names a partition that the ring does not have, or one twice, or takes too many steps. */
int64_t po_match_ring(po_ring *ring, const uint8_t *frame, const po_topic *topics, int64_t topic_count,
                      const po_asked *rows, int64_t count, int64_t *changed);
/* Writes the answer to the request that the ring has matched, as po_build_heads does: `words` are a po_answered for each
 * slot. */
int64_t po_build_ring(const po_heading *heading, const po_ring *ring, const int64_t *words, const int64_t *aborted,
                      uint8_t *out, uint64_t room, uint64_t *cuts);
/* How much a Produce (API key 0, versions 3 to 13) or Fetch (4 to 18) names: its topics, partitions, forgotten partitions
 * and tagged fields, and one for each 256 bytes of a text. Beyond `most` it is not counted on. Negative: it is garbled. */
int64_t po_weigh(const uint8_t *frame, uint64_t size, uint64_t body_start, int api_key, int version, int64_t most);
/* cdef end */
#endif
