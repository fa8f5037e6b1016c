/* A single-batch Produce to the broker and its response back. The only C here that knows sockets. */
#include "pipeline.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#define CORRELATION_AT 4 /* in a response, behind its length */
#define ANSWER_LEAST 8
#define NO_PRODUCER_ID (-1)

_Static_assert(sizeof(po_request) == FL_WORDS * 8, "said is po_request");
_Static_assert(sizeof(((fl_counts *)0)->took) == (FL_BOUNDS + 1) * 8, "one cell more than bounds");
_Static_assert(sizeof(((fl_counts *)0)->bounds_s) == FL_BOUNDS * 8, "bounds");
_Static_assert(sizeof(((fl_link *)0)->about) == FL_RING * sizeof(fl_route *), "one for each request in flight");

static int32_t read_int32(const uint8_t *bytes) {
    return (int32_t)((uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3]);
}

static void count(fl_hop *hop, uint64_t size) {
    hop->frames++;
    hop->size_bytes += (int64_t)size;
}

/* Bytes of `frame` that the kernel took; 0 on an error, too: the sender of the rest then meets that error. */
static int64_t give(int fd, const uint8_t *frame, uint64_t size) {
    ssize_t sent;
    do {
        sent = send(fd, frame, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    return sent < 0 ? 0 : sent;
}

static int is_about(const fl_route *route, const uint8_t *frame, const po_request *said) {
    return route != NULL && said->version == route->version &&
           (uint64_t)said->route_end - PO_ROUTE_START == route->size &&
           memcmp(frame + PO_ROUTE_START, route->bytes, route->size) == 0;
}

int fl_forward(fl_link *link, const uint8_t *frame, uint64_t size, int fd) {
    if (link->count == FL_RING) {
        return FL_NOT_FORWARDED;
    }
    uint64_t at = (link->first + link->count) % FL_RING;
    po_request said;
    if (!po_scan_request(frame, size, &said)) {
        return FL_NOT_FORWARDED;
    }
    memcpy(link->said[at], &said, sizeof said);
    if (!is_about(link->route, frame, &said)) {
        return FL_OTHER_ROUTE;
    }
    link->about[at] = link->route;
    link->count++;
    link->producer_id = said.producer_id;
    count(&link->counts->requests_in, size);
    count(&link->counts->requests_out, size);
    link->sent = give(fd, frame, size);
    return link->sent == (int64_t)size && said.producer_id == NO_PRODUCER_ID ? FL_FORWARDED : FL_FORWARDED_CHECK;
}

static void observe(fl_counts *counts, double took_s) {
    int cell = 0;
    while (cell < FL_BOUNDS && counts->bounds_s[cell] < took_s) {
        cell++;
    }
    counts->took[cell]++;
    counts->took_s[0] += took_s;
}

int64_t fl_complete(fl_link *link, const uint8_t *frame, uint64_t size, int fd, double took_s) {
    uint64_t at = link->first;
    if (link->count == 0 || size < ANSWER_LEAST) {
        return FL_NOT_COMPLETED;
    }
    po_request said;
    memcpy(&said, link->said[at], sizeof said);
    if (read_int32(frame + CORRELATION_AT) != (int32_t)said.correlation_id) {
        return FL_NOT_COMPLETED;
    }
    const fl_route *route = link->about[at];
    link->first = (at + 1) % FL_RING;
    link->count--;
    count(&link->counts->responses_in, size);
    observe(link->counts, took_s);
    link->sent = give(fd, frame, size);
    if (link->sent == (int64_t)size) {
        count(&link->counts->responses_out, size);
    }
    link->base_offset = po_base_offset(frame, size, (int)route->version, route->bytes + route->names_at,
                                       route->size - route->names_at);
    return link->sent == (int64_t)size && link->base_offset >= 0 ? link->base_offset : -1;
}
