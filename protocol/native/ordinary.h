/* ordinary: the Produces and Fetches of the form that nearly all have, and their answers, read in one pass; and how much
 * any other names. The only declaration.
 *
 * The ordinary form. A request: acks is not 0; one topic, one partition, one whole record batch v2 that fills the
 * records field. Its answer: that same partition, without record errors or a message. Of both: versions 3 to 13, no
 * tagged field, nothing after the last field. A Fetch: versions 4 to 18, one topic and one partition, or none; nothing is
 * forgotten, no tagged field, ASCII names. Its answer: one partition, records that are not null.
 * Owns: recognising it, and where what of it stands. Must not know: Python, what is done with it. Invariants: nothing is
 * read beyond `size`; whatever is of another form, garbage included, is 0 and for protocol/produce.py or fetch.py to judge,
 * which say the same of what is ordinary; no state.
 * The part between the cdef marks is fed to cffi unchanged; the structs are words, in the order that Python unpacks. */
#ifndef ORDINARY_H
#define ORDINARY_H
#include <stddef.h>
#include <stdint.h>
/* cdef begin */
#define PO_ROUTE_START 12   /* of the client id's length: behind length, API key, version and correlation id */
#define PO_ROUTE_MAX 1024   /* bytes; longer names are not ordinary */

typedef struct {                /* 13 words */
    int64_t version, correlation_id;
    int64_t names_start;        /* where the array of topics begins */
    int64_t route_end;          /* behind the partition's index: up to here a client's requests to it are the same */
    int64_t start, end;         /* of the batch */
    int64_t attributes, last_delta, crc;
    int64_t producer_id, producer_epoch, base_sequence, record_count;
} po_request;

typedef struct {                /* 8 words */
    int64_t version, correlation_id;
    int64_t client_id_end, body_start;
    int64_t replica_id;         /* -1: a consumer's */
    int64_t partitions;         /* 0 or 1 */
    int64_t names_start;        /* where the array of topics begins */
    int64_t names_end;          /* behind the partition's index, or behind that array where it is empty */
} po_fetch;

typedef struct {                /* 2 words */
    int64_t start, end;         /* of the records */
} po_fetched;

typedef struct {                /* 3 words */
    int64_t correlation_id, session_epoch, fetch_offset;
} po_changed;

typedef struct {                /* 3 words */
    int64_t throttle_time_ms, error_code, session_id;
} po_answer;

typedef struct {                /* 9 words */
    int64_t topic_at;           /* where the topic's id begins */
    int64_t partition, error_code, high_watermark, last_stable_offset, log_start_offset, preferred_replica;
    int64_t start, end;         /* of the records; both -1: null */
} po_row;

/* 1: `frame` is an ordinary request, and `out` says what is in it. */
int po_scan_request(const uint8_t *frame, uint64_t size, po_request *out);
/* 1: `begun`, the first `have` bytes of a frame of `size`, begins one: `out` is what it will be if the rest is as announced. */
int po_scan_begun(const uint8_t *begun, uint64_t have, uint64_t size, po_request *out);
/* Where the log has what was sent: `frame` is an ordinary answer in `version`, without an error or a log append time, about
 * what `names` says, the bytes from `names_start` to `route_end` of the request. Negative: it is not. */
int64_t po_base_offset(const uint8_t *frame, uint64_t size, int version, const uint8_t *names, uint64_t names_size);
/* 1: `frame` is an ordinary Fetch. */
int po_scan_fetch(const uint8_t *frame, uint64_t size, po_fetch *out);
/* 1: an ordinary answer of `size` bytes in `version`, about what `names` says (from `names_start` to `names_end` of a
 * request for one partition; about anything where `names_size` is 0), begins with the `received` bytes of `head`, and they
 * are the whole of it, or end among its records. */
int po_scan_fetched(const uint8_t *head, uint64_t received, uint64_t size, int version, const uint8_t *names,
                    uint64_t names_size, po_fetched *out);
/* How many partitions `frame` answers, a whole answer of version 13: no more than `most`, without aborted transactions or
 * tagged fields; `out` and as many `rows` say what. Negative: it is of another form. */
int64_t po_scan_rows(const uint8_t *frame, uint64_t size, po_answer *out, po_row *rows, int64_t most);
/* 1: `frame` is `last`, a Fetch of at least a header, but for its correlation id, the four bytes at `epoch_at` and the
 * eight at `offset_at`, which is not before them; either may be the frame's end, or both the same where it has no epoch. */
int po_repeats(const uint8_t *frame, uint64_t size, const uint8_t *last, uint64_t last_size, uint64_t epoch_at,
               uint64_t offset_at, po_changed *out);
/* How much a Produce (API key 0, versions 3 to 13) or Fetch (4 to 18) names: its topics, partitions, forgotten partitions
 * and tagged fields, and one for each 256 bytes of a text. Beyond `most` it is not counted on. Negative: it is garbled. */
int64_t po_weigh(const uint8_t *frame, uint64_t size, uint64_t body_start, int api_key, int version, int64_t most);
/* cdef end */
#endif
