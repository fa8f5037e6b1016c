/* A single-batch Produce to the broker and its response back. The only C here that knows sockets. */
#include "pipeline.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#define CORRELATION_AT 4 /* in a response, behind its length */
#define ANSWER_LEAST 8

typedef struct {
    po_produce head;
    po_row row;
} fl_said;

_Static_assert(sizeof(fl_said) == FL_WORDS * 8, "said is po_produce and po_row");
_Static_assert(sizeof(po_produce) == FL_HEAD_WORDS * 8, "po_produce");
_Static_assert(sizeof(po_produced) == FL_PRODUCED_WORDS * 8, "produced is po_produced");
_Static_assert(sizeof(((fl_link *)0)->produced) == FL_PRODUCED_WORDS * 8, "produced");
_Static_assert(sizeof(((fl_link *)0)->said) == FL_RING * FL_WORDS * 8, "one for each request in flight");
_Static_assert(sizeof(((fl_counts *)0)->took) == (FL_BOUNDS + 1) * 8, "one cell more than bounds");
_Static_assert(sizeof(((fl_counts *)0)->bounds_s) == FL_BOUNDS * 8, "bounds");

static int32_t read_int32(const uint8_t *bytes) {
    return (int32_t)((uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3]);
}

static void count(fl_hop *hop, uint64_t size) {
    hop->frames++;
    hop->size_bytes += (int64_t)size;
}

/* Bytes of `frame` that the kernel took; 0 on an error, too: the sender of the rest then meets that error. */
static int64_t give(int fd, const uint8_t *frame, uint64_t size, int has_more) {
    ssize_t sent;
    do {
        sent = send(fd, frame, size, MSG_NOSIGNAL | MSG_DONTWAIT | (has_more ? MSG_MORE : 0));
    } while (sent < 0 && errno == EINTR);
    return sent < 0 ? 0 : sent;
}

static int is_about(const fl_route *route, const uint8_t *frame, const po_produce *said) {
    return route != NULL && said->version == route->version &&
           (uint64_t)said->route_end - PO_ROUTE_START == route->size &&
           memcmp(frame + PO_ROUTE_START, route->bytes, route->size) == 0;
}

int fl_forward(fl_link *link, const uint8_t *frame, uint64_t size, int fd, int has_more) {
    if (link->count == FL_RING) {
        return FL_NOT_FORWARDED;
    }
    uint64_t at = (link->first + link->count) % FL_RING;
    fl_said said;
    if (!po_scan_single(frame, size, size, &said.head, &said.row)) {
        return FL_NOT_FORWARDED;
    }
    memcpy(link->said[at], &said, sizeof said);
    if (!is_about(link->route, frame, &said.head)) {
        return FL_OTHER_ROUTE;
    }
    link->count++;
    count(&link->counts->requests_in, size);
    count(&link->counts->requests_out, size);
    link->sent = give(fd, frame, size, has_more);
    return FL_FORWARDED;
}

void fl_push(int fd) {
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* a dead socket has nothing to send */
}

static void observe(fl_counts *counts, double took_s) {
    int cell = 0;
    while (cell < FL_BOUNDS && counts->bounds_s[cell] < took_s) {
        cell++;
    }
    counts->took[cell]++;
    counts->took_s[0] += took_s;
}

int fl_complete(fl_link *link, const uint8_t *frame, uint64_t size, int fd, int has_more, double took_s) {
    if (link->count == 0 || size < ANSWER_LEAST) {
        return FL_NOT_COMPLETED;
    }
    fl_said said;
    memcpy(&said, link->said[link->first], sizeof said);
    if (read_int32(frame + CORRELATION_AT) != (int32_t)said.head.correlation_id) {
        return FL_NOT_COMPLETED;
    }
    link->first = (link->first + 1) % FL_RING;
    link->count--;
    count(&link->counts->responses_in, size);
    observe(link->counts, took_s);
    link->sent = give(fd, frame, size, has_more);
    if (link->sent == (int64_t)size) {
        count(&link->counts->responses_out, size);
    }
    po_produced produced;
    link->produced_count = po_scan_produced(frame, size, (int)said.head.version, &produced, 1);
    if (link->produced_count == 1) {
        memcpy(link->produced, &produced, sizeof produced);
    }
    return FL_COMPLETED;
}
