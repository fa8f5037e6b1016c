/* Spoiled Produces and answers through the pipeline, between two real socket pairs; built with sanitizers by
 * test_native_pipeline.py.
 *
 * usage: pipeline_spoiled < rows. A row: kind (1 byte: 0 a request, 1 an answer, 2 an answer with the correlation id of the
 * oldest in flight), state of the socket (1: 0 it takes all, 1 its buffer is full, 2 its peer is gone), size (4,
 * little-endian), and so many bytes. Each is copied to memory of its very size, so that a read beyond it is seen. What the
 * kernel took must be what the peer gets. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pipeline.h"
#include "rows.h"

enum { ROW_HEAD = 6, REQUEST = 0, MATCHING = 2, FULL = 1, GONE = 2, ROUTES = 4096, SMALL = 4096, LONGEST = 1 << 20 };

typedef struct {
    int ours, theirs;
} pair;

static pair open_pair(void) {
    int both[2], room = SMALL;
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, both) == 0);
    for (int i = 0; i < 2; i++) {
        MUST(fcntl(both[i], F_SETFL, O_NONBLOCK) == 0);
    }
    MUST(setsockopt(both[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room) == 0);
    return (pair){both[0], both[1]};
}

/* What came since the last time: at most LONGEST bytes. */
static uint64_t drain(const pair *sockets, uint8_t *into) {
    uint64_t got = 0;
    ssize_t part;
    while (got < LONGEST && (part = recv(sockets->theirs, into + got, LONGEST - got, 0)) > 0) {
        got += (uint64_t)part;
    }
    return got;
}

static void prepare(pair *sockets, int state, uint8_t *junk) {
    if (state == GONE) {
        close(sockets->theirs);
        sockets->theirs = -1;
    }
    while (state == FULL && send(sockets->ours, junk, SMALL, MSG_NOSIGNAL) > 0) {
    }
}

static void restore(pair *sockets, int state, uint8_t *junk) {
    if (state == GONE) {
        close(sockets->ours);
        *sockets = open_pair();
    } else if (state == FULL) {
        drain(sockets, junk);
    }
}

static void check_sent(const fl_link *link, const pair *sockets, int state, const uint8_t *frame, uint64_t size, uint8_t *got) {
    MUST(link->sent >= 0 && (uint64_t)link->sent <= size);
    if (state == 0) {
        MUST(drain(sockets, got) == (uint64_t)link->sent && memcmp(got, frame, (uint64_t)link->sent) == 0);
    } else {
        MUST(link->sent < (int64_t)size || size == 0);
    }
}

/* All that is fuzzed, and what came of it. */
static struct {
    fl_counts counts;
    fl_link link;
    fl_route routes[ROUTES];
    uint64_t known, forwarded, other, completed, succeeded;
} all;

/* As Python does where a request is the first of its route: it learns the route, and asks again. */
static int learn_route(const uint8_t *frame, uint64_t size, int fd) {
    po_produce said;
    fl_route *route = &all.routes[all.known++];
    memcpy(&said, all.link.said[(all.link.first + all.link.count) % FL_RING], sizeof said);
    uint64_t length = (uint64_t)said.route_end - PO_ROUTE_START;
    uint8_t *bytes = malloc(length);
    MUST(bytes != NULL);
    memcpy(bytes, frame + PO_ROUTE_START, length);
    *route = (fl_route){said.version, bytes, length};
    all.link.route = route;
    all.other++;
    int went = fl_forward(&all.link, frame, size, fd, 0);
    MUST(went != FL_OTHER_ROUTE);
    return went;
}

static void take(const pair *sockets, int state, const uint8_t *frame, uint64_t size, uint8_t *got) {
    int went = fl_forward(&all.link, frame, size, sockets->ours, 0);
    if (went == FL_OTHER_ROUTE && all.known < ROUTES) {
        went = learn_route(frame, size, sockets->ours);
    }
    if (went == FL_FORWARDED) {
        all.forwarded++;
        MUST(all.link.count <= FL_RING);
        check_sent(&all.link, sockets, state, frame, size, got);
    }
}

static void make_matching(uint8_t *frame, uint64_t size) {
    if (all.link.count > 0 && size >= 8) {
        po_produce said;
        memcpy(&said, all.link.said[all.link.first], sizeof said);
        uint32_t id = (uint32_t)said.correlation_id;
        for (int i = 0; i < 4; i++) {
            frame[4 + i] = (uint8_t)(id >> (24 - 8 * i));
        }
    }
}

static void complete(const pair *sockets, int state, const uint8_t *frame, uint64_t size, double took_s, uint8_t *got) {
    uint64_t before = all.link.count;
    int done = fl_complete(&all.link, frame, size, sockets->ours, 0, took_s);
    MUST(all.link.count == before - (done == FL_COMPLETED));
    if (done == FL_COMPLETED) {
        all.completed++;
        all.succeeded += all.link.produced_count == 1;
        MUST(all.link.produced_count != 1 || (uint64_t)all.link.produced[1] <= size);
        check_sent(&all.link, sockets, state, frame, size, got);
    }
}

static void check_counts(void) {
    int64_t cells = 0;
    for (int i = 0; i <= FL_BOUNDS; i++) {
        cells += all.counts.took[i];
    }
    MUST(cells == (int64_t)all.completed && all.counts.responses_in.frames == (int64_t)all.completed);
    MUST(all.counts.requests_in.frames == (int64_t)all.forwarded && all.completed + all.link.count == all.forwarded);
}

int main(void) {
    uint64_t rows = 0;
    uint8_t head[ROW_HEAD], *got = malloc(LONGEST), *junk = calloc(1, LONGEST);
    pair broker = open_pair(), client = open_pair();
    MUST(got != NULL && junk != NULL);
    all.link.counts = &all.counts;
    for (int i = 0; i < FL_BOUNDS; i++) {
        all.counts.bounds_s[i] = i;
    }
    for (; fread(head, 1, ROW_HEAD, stdin) == ROW_HEAD; rows++) {
        int kind = head[0], state = head[1];
        uint64_t size = read_little(head + 2, 4);
        uint8_t *frame = malloc(size);
        MUST(frame != NULL && fread(frame, 1, size, stdin) == size && size <= LONGEST);
        pair *sockets = kind == REQUEST ? &broker : &client;
        prepare(sockets, state, junk);
        if (kind == REQUEST) {
            take(sockets, state, frame, size, got);
        } else {
            if (kind == MATCHING) {
                make_matching(frame, size);
            }
            complete(sockets, state, frame, size, (double)(rows % 20), got);
        }
        restore(sockets, state, junk);
        free(frame);
    }
    check_counts();
    printf("rows %llu forwarded %llu other %llu completed %llu succeeded %llu\n", (unsigned long long)rows,
           (unsigned long long)all.forwarded, (unsigned long long)all.other, (unsigned long long)all.completed,
           (unsigned long long)all.succeeded);
    for (uint64_t i = 0; i < all.known; i++) {
        free((void *)all.routes[i].bytes);
    }
    free(got);
    free(junk);
    return 0;
}
