/* What lookups found, given to the kernel from where it lies. The only place that knows descriptors. */
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/uio.h>

#include "pyfastcache.h"

#define PIECES_MAX 256 /* of one writev; a response of more takes several */

typedef struct {
    struct iovec piece[PIECES_MAX];
    int count, fd;
    uint64_t size; /* of the pieces */
    int64_t sent;  /* of all pieces so far */
} writing;

/* Gives the kernel the pieces; 0 where it did not take all. */
static int flush(writing *w) {
    ssize_t sent = 0;
    do {
        sent = w->count == 0 ? 0 : writev(w->fd, w->piece, w->count);
    } while (sent < 0 && errno == EINTR);
    int whole = sent >= 0 && (uint64_t)sent == w->size; /* who sends the rest meets an error */
    w->sent += sent > 0 ? sent : 0;
    w->size = 0;
    w->count = 0;
    return whole;
}

/* Adds a piece; 0 where earlier ones had to go first, and the kernel did not take all. */
static int add(writing *w, const uint8_t *bytes, uint64_t size) {
    if (w->count == PIECES_MAX && !flush(w)) {
        return 0;
    }
    w->piece[w->count++] = (struct iovec){(void *)(uintptr_t)bytes, size};
    w->size += size;
    return 1;
}

static int add_hit(fc_arena *a, writing *w, const fc_hit *hit) {
    for (uint64_t i = 0; i < hit->segments; i++) {
        if (!add(w, fc_at(a, hit->segment[i].position), hit->segment[i].length)) {
            return 0;
        }
    }
    return 1;
}

static const fc_hit *hit_after(const fc_hit *hit) {
    return (const fc_hit *)((const uint8_t *)hit + offsetof(fc_hit, segment) + hit->segments * sizeof(fc_segment));
}

/* Lets go of the pins of `count` hits, and sets `hit` behind them. */
static int release_some(fc_arena *a, uint32_t holder, const fc_hit **hit, uint64_t count) {
    FC_HOLD_TO_READ(a);
    for (uint64_t i = 0; i < count; i++) {
        if ((*hit)->pinned) {
            fc_release_held(a, holder, (*hit)->segment, (*hit)->segments);
        }
        *hit = hit_after(*hit);
    }
    return 0;
}

/* Lets go of the pins of all hits of a response, which is empty then. `hits`: they lie one behind another, each without the
 * places that it does not use. Where the lock was not to be had (FC_BUSY), the response has those that are left, which lie at
 * the beginning of `hits`. Pins in a torn arena stay for good. */
void fc_release_all(fc_arena *a, fc_response *response, uint8_t *hits) {
    const fc_hit *hit = (const fc_hit *)(const void *)hits;
    uint64_t left = response->hits, hit_bytes = response->hit_bytes;
    int rc = 0;
    while (left > 0 && rc == 0) {
        uint64_t some = left < FC_HOLD_PARTITIONS ? left : FC_HOLD_PARTITIONS;
        rc = release_some(a, (uint32_t)response->holder, &hit, some);
        left -= rc == 0 ? some : 0;
    }
    *response = (fc_response){.holder = response->holder};
    if (rc == FC_BUSY) {
        response->hits = left;
        response->hit_bytes = hit_bytes - (uint64_t)((const uint8_t *)hit - hits);
        memmove(hits, hit, response->hit_bytes);
    }
}

/* Writes `heads` and the bytes of a response's hits, which lie as `fc_release_all` says, to a non-blocking socket at once.
 * The bytes of hit i stand before heads[cuts[i]]. Returns how many bytes the kernel took: if all, the pins are let go as by
 * fc_release_all; else, and where it took none or refuses, they are held. */
int64_t fc_send(fc_arena *a, fc_response *response, uint8_t *hits, int fd, const uint8_t *heads,
                uint64_t heads_size, const uint64_t *cuts) {
    writing w = {.fd = fd};
    const fc_hit *hit = (const fc_hit *)(const void *)hits;
    uint64_t at = 0;
    for (uint64_t i = 0; i < response->hits; i++) {
        if (!add(&w, heads + at, cuts[i] - at) || !add_hit(a, &w, hit)) {
            return w.sent;
        }
        at = cuts[i];
        hit = hit_after(hit);
    }
    if (!add(&w, heads + at, heads_size - at) || !flush(&w)) {
        return w.sent;
    }
    fc_release_all(a, response, hits);
    return w.sent;
}
