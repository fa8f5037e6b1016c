/* What a lookup found, given to the kernel from where it lies. The only place that knows descriptors. */
#include <errno.h>
#include <sys/uio.h>

#include "pyfastcache.h"

static struct iovec piece(const uint8_t *bytes, uint64_t size) {
    return (struct iovec){(void *)(uintptr_t)bytes, size};
}

/* Writes `head`, a pinned hit's bytes and `end` to a non-blocking socket at once. Returns how many bytes the kernel took:
 * if all, the pins are let go; else, and where it took none or refuses, they are held. */
int64_t fc_send(fc_arena *a, const fc_hit *hit, int fd, const uint8_t *head, uint64_t head_size, const uint8_t *end,
                uint64_t end_size) {
    struct iovec pieces[FC_SEGMENTS_MAX + 2];
    uint64_t count = 0;
    pieces[count++] = piece(head, head_size);
    for (uint64_t i = 0; i < hit->segments; i++) {
        pieces[count++] = piece(fc_at(a, hit->segment[i].position), hit->segment[i].length);
    }
    pieces[count++] = piece(end, end_size);
    ssize_t sent;
    do {
        sent = writev(fd, pieces, (int)count);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0) {
        return 0; /* who sends the rest meets the error, if it is one */
    }
    if ((uint64_t)sent == head_size + hit->size_bytes + end_size) {
        fc_release(a, hit->segment, hit->segments);
    }
    return sent;
}
