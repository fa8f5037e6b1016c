/* The mapping's pages: brought in ahead of their first use, and in an observing arena given back after the last.
 * fc_prefault may run beside any other call: it changes no byte. */
#define _DEFAULT_SOURCE
#include <sys/mman.h>

#include "pyfastcache.h"

enum { PAGE = 4096 };

/* Touches every page of [from, from + size), that no later write has to wait for one. */
int fc_prefault(fc_arena *a, uint64_t from, uint64_t size) {
    uint64_t end = from + size < a->size_bytes ? from + size : a->size_bytes;
    from = from / PAGE * PAGE;
    if (from >= end) {
        return 0;
    }
#ifdef MADV_POPULATE_WRITE
    if (madvise(fc_at(a, from), end - from, MADV_POPULATE_WRITE) == 0) {
        return 0;
    }
#endif
    for (uint64_t at = from; at < end; at += PAGE) {
        __atomic_fetch_or(fc_at(a, at), 0, __ATOMIC_RELAXED);
    }
    return 0;
}

/* Whole pages of a freed block: their memory goes back, zeros come instead. */
void fc_pages_give(fc_arena *a, uint64_t from, uint64_t size) {
    uint64_t first = (from + PAGE - 1) / PAGE * PAGE, end = (from + size) / PAGE * PAGE;
    if (first < end && madvise(fc_at(a, first), end - first, MADV_REMOVE) != 0) {
        (void)madvise(fc_at(a, first), end - first, MADV_DONTNEED);
    }
}
