/* What the random C test programs share: a source of numbers by seed, and memory of its very size. */
#ifndef DRAW_H
#define DRAW_H

#include <stdint.h>
#include <stdlib.h>

#include "../../blockcache/native/must.h"

static uint64_t state; /* the seed, before the first number */

static inline uint64_t draw(uint64_t below) { /* splitmix64 */
    uint64_t z = state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return (z ^ z >> 31) % below;
}

static inline void *allocate(size_t size) { /* no more than that: a byte beyond it is seen */
    void *memory = malloc(size);
    MUST(memory != NULL);
    return memory;
}

#endif
