/* pipeline: single-batch Produces from a client's socket to the broker's and back. The only declaration.
 *
 * Owns: which of a connection's Produces are in flight and what their headers said, that each answer is the next one's,
 * giving both to the kernel, and counting that. Must not know: Python, the arena, isolation, clocks; who may fly, and what
 * follows from an answer, is proxy/produce/pipeline.py's. Invariants: a request or an answer that is not as it must be is 0, and
 * nothing has happened; what the kernel did not take of one is said (`sent`), and the caller's to send; a flight lands once.
 * The part between the cdef marks is fed to cffi unchanged. What an ordinary Produce is: protocol/native/ordinary.h. */
#ifndef PIPELINE_H
#define PIPELINE_H
#include "ordinary.h"
/* cdef begin */
#define FL_RING 8               /* flights of one connection at a time */
#define FL_WORDS 13             /* of what a header said: as po_request */
#define FL_BOUNDS 15            /* of a histogram; one cell more */
#define FL_NOT_TAKEN 0
#define FL_OTHER_ROUTE 1        /* ordinary, but about something else than the last: `said` says where its route ends */
#define FL_TAKEN 2              /* whole, and of no producer with an id */
#define FL_TAKEN_SO 3           /* as `sent` and `producer_id` say */
#define FL_NOT_LANDED -2

typedef struct {
    int64_t frames, size_bytes;
} fl_hop;

typedef struct {                /* of one process */
    fl_hop requests_in, requests_out, responses_in, responses_out;
    int64_t took[16];           /* FL_BOUNDS + 1 */
    double took_s[1];           /* their sum */
    double bounds_s[15];        /* inclusive, growing */
} fl_counts;

typedef struct {                /* what stands between the header's fixed part and the records, the same in each request */
    int64_t version;
    const uint8_t *bytes;       /* from PO_ROUTE_START on */
    uint64_t size, names_at;    /* the array of topics begins there */
} fl_route;

typedef struct {                /* of one connection */
    fl_counts *counts;
    const fl_route *route;      /* of the next request, if it is about the same */
    uint64_t first, count;      /* in the ring */
    int64_t sent;               /* bytes that the kernel took of the last frame */
    int64_t producer_id;        /* of the last request */
    int64_t base_offset;        /* of the last answer: negative where it is another than an ordinary success */
    int64_t said[8][13];        /* FL_RING headers */
    const fl_route *about[8];
} fl_link;

/* A request has come whole. FL_TAKEN, FL_TAKEN_SO: it is in flight, and `fd`, a non-blocking socket that nothing waits for,
 * has been given it. FL_NOT_TAKEN: it is of another form, or there is no room. FL_OTHER_ROUTE. */
int fl_take(fl_link *link, const uint8_t *frame, uint64_t size, int fd);
/* An answer has come whole, `took_s` after the oldest in flight. If it is that one's, it has landed, and `fd` has been given
 * it: its base offset is returned, if it has left whole and is an ordinary success, else -1: `sent` and `base_offset` say
 * more. FL_NOT_LANDED. */
int64_t fl_land(fl_link *link, const uint8_t *frame, uint64_t size, int fd, double took_s);
/* cdef end */
#endif
