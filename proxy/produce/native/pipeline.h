/* pipeline: single-batch Produces from a client's socket to the broker's and back. The only declaration.
 *
 * Owns: which Produces of a connection are in flight, and their header fields; the check that a response belongs to the
 * oldest; the write of both to their sockets; the counts. Must not know: Python, the arena, isolation, clocks.
 * proxy/produce/pipeline.py decides which request may go this way, and what follows from a response.
 * Invariants: a request or response of another form is rejected without any change; `sent` says how many bytes
 * the kernel took, and the caller sends the rest; a request is completed once.
 * The part between the cdef marks is fed to cffi unchanged.
 * Form of a single-batch Produce: protocol/native/ordinary.h. */
#ifndef PIPELINE_H
#define PIPELINE_H
#include "ordinary.h"
/* cdef begin */
#define FL_RING 8               /* requests in flight of one connection, at most */
#define FL_WORDS 13             /* fields of a header: as po_request */
#define FL_BOUNDS 15            /* bounds of a histogram; it has one cell more */
#define FL_NOT_FORWARDED 0
#define FL_OTHER_ROUTE 1        /* single-batch, but of another route than the last: `said` has the route's end */
#define FL_FORWARDED 2          /* sent whole, and without a producer id */
#define FL_FORWARDED_CHECK 3    /* sent as `sent` says; `producer_id` may be set */
#define FL_NOT_COMPLETED -2

typedef struct {
    int64_t frames, size_bytes;
} fl_hop;

typedef struct {                /* of one process */
    fl_hop requests_in, requests_out, responses_in, responses_out;
    int64_t took[16];           /* cells of the latency histogram: FL_BOUNDS + 1 */
    double took_s[1];           /* sum of the latencies, in seconds */
    double bounds_s[15];        /* inclusive, increasing, in seconds */
} fl_counts;

typedef struct {                /* the bytes between fixed header part and records, the same in repeated requests */
    int64_t version;
    const uint8_t *bytes;       /* from PO_ROUTE_START on */
    uint64_t size, names_at;    /* the array of topics begins at names_at */
} fl_route;

typedef struct {                /* of one connection */
    fl_counts *counts;
    const fl_route *route;      /* of the next request, if it is for the same partition */
    uint64_t first, count;      /* of the requests in flight in the ring */
    int64_t sent;               /* bytes that the kernel took of the last frame */
    int64_t producer_id;        /* of the last request */
    int64_t base_offset;        /* of the last response: negative if it is no plain success */
    int64_t said[8][13];        /* header fields of FL_RING requests */
    const fl_route *about[8];   /* their routes */
} fl_link;

/* Forwards a whole request. FL_FORWARDED, FL_FORWARDED_CHECK: the request is in flight, and was written to `fd`, a
 * non-blocking socket with nothing queued. FL_NOT_FORWARDED: the request has another form, or the ring is full.
 * FL_OTHER_ROUTE: see above. Nothing was sent with either of these two. */
int fl_forward(fl_link *link, const uint8_t *frame, uint64_t size, int fd);
/* Takes a whole response, `took_s` seconds after the arrival of the oldest request in flight. If the response is that
 * request's, the request is completed, and the response was written to `fd`. Returns its base offset if it was written
 * whole and is a plain success, else -1: `sent` and `base_offset` say more. FL_NOT_COMPLETED: nothing has changed. */
int64_t fl_complete(fl_link *link, const uint8_t *frame, uint64_t size, int fd, double took_s);
/* cdef end */
#endif
