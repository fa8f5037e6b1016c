/* pipeline: single-batch Produces from a client's socket to the broker's and back. The only declaration.
 *
 * Owns: which Produces of a connection are in flight, and their header fields; the check that a response belongs to the
 * oldest; the write of both to their sockets; the counts. Must not know: Python, the arena, isolation, clocks.
 * proxy/produce/pipeline.py decides which request may go this way, and what follows from a response.
 * Invariants: a request or response of another form is rejected without any change; `sent` says how many bytes
 * the kernel took, and the caller sends the rest; a request is completed once.
 * The part between the cdef marks is fed to cffi unchanged.
 * Form of a single Produce: protocol/native/ordinary.h. */
#ifndef PIPELINE_H
#define PIPELINE_H
#include "ordinary.h"
/* cdef begin */
#define FL_RING 8               /* requests in flight of one connection, at most */
#define FL_HEAD_WORDS 8         /* fields of a request: as po_produce, then as po_row */
#define FL_WORDS 20
#define FL_PRODUCED_WORDS 7     /* fields of a response: as po_produced */
#define FL_BOUNDS 15            /* bounds of a histogram; it has one cell more */
#define FL_NOT_FORWARDED 0
#define FL_OTHER_ROUTE 1        /* single-batch, but of another route than the last: `said` has the route's end */
#define FL_FORWARDED 2          /* in flight; written as far as `sent` says */
#define FL_NOT_COMPLETED 0
#define FL_COMPLETED 1

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
    uint64_t size;
} fl_route;

typedef struct {                /* of one connection */
    fl_counts *counts;
    const fl_route *route;      /* of the next request, if it is for the same partition */
    uint64_t first, count;      /* of the requests in flight in the ring */
    int64_t sent;               /* bytes that the kernel took of the last frame */
    int64_t produced_count;     /* of the last response: its number of partitions, or negative if it is malformed */
    int64_t produced[7];        /* its only partition; not set where there are none or several */
    int64_t said[8][20];        /* fields of FL_RING requests */
} fl_link;

/* Forwards a whole request. FL_FORWARDED: the request is in flight, and was written to `fd`, a non-blocking socket with
 * nothing queued. FL_NOT_FORWARDED: the request has another form, or the ring is full.
 * FL_OTHER_ROUTE: see above. Nothing was sent with either of these two. `has_more`: the kernel may hold the bytes back
 * until those of another call follow, or fl_push. */
int fl_forward(fl_link *link, const uint8_t *frame, uint64_t size, int fd, int has_more);
/* Takes a whole response, `took_s` seconds after the arrival of the oldest request in flight. FL_COMPLETED: it is that
 * request's; the request is completed, and the response was written to `fd`, of which `sent` says how much. FL_NOT_COMPLETED:
 * nothing has changed. */
int fl_complete(fl_link *link, const uint8_t *frame, uint64_t size, int fd, int has_more, double took_s);
/* Has the kernel send what it holds back because of `has_more` (tcp(7): TCP_NODELAY flushes). */
void fl_push(int fd);
/* cdef end */
#endif
