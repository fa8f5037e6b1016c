/* The data pool: units, a bit each. Next fit from a cursor, so that with a FIFO above it the pool works as a ring
 * that steps over what is pinned. */
#include <string.h>

#include "pyfastcache.h"

static uint64_t *word_at(fc_arena *a, uint64_t map_at, uint64_t i) {
    return (uint64_t *)(void *)fc_at(a, map_at) + i / 64;
}

int fc_bit(fc_arena *a, uint64_t map_at, uint64_t i) { return (int)(*word_at(a, map_at, i) >> (i % 64) & 1); }

void fc_set_bit(fc_arena *a, uint64_t map_at, uint64_t i, int value) {
    uint64_t mask = (uint64_t)1 << (i % 64);
    uint64_t *word = word_at(a, map_at, i);
    *word = value ? *word | mask : *word & ~mask;
}

/* The first place in [from, to) whose bit is `value`, or `to`. */
uint64_t fc_find_bit(fc_arena *a, uint64_t map_at, uint64_t from, uint64_t to, int value) {
    while (from < to) {
        uint64_t word = *word_at(a, map_at, from);
        word = (value ? word : ~word) >> (from % 64);
        if (word != 0) {
            from += (uint64_t)__builtin_ctzll(word);
            return from < to ? from : to;
        }
        from += 64 - from % 64;
    }
    return to;
}

/* The last set bit at or below `from`; there is one. */
uint64_t fc_find_bit_before(fc_arena *a, uint64_t map_at, uint64_t from) {
    for (;;) {
        uint64_t word = *word_at(a, map_at, from) << (63 - from % 64);
        if (word != 0) {
            return from - (uint64_t)__builtin_clzll(word);
        }
        from -= from % 64 + 1;
    }
}

uint64_t fc_count_bits(fc_arena *a, uint64_t map_at) {
    uint64_t count = 0;
    for (uint64_t i = 0; i < a->data_units; i += 64) {
        count += (uint64_t)__builtin_popcountll(*word_at(a, map_at, i));
    }
    return count;
}

static void fill(fc_arena *a, uint64_t unit, uint64_t units, int value) {
    for (uint64_t end = unit + units; unit < end;) {
        uint64_t bits = 64 - unit % 64;
        bits = bits < end - unit ? bits : end - unit;
        uint64_t mask = (bits == 64 ? ~(uint64_t)0 : ((uint64_t)1 << bits) - 1) << (unit % 64);
        uint64_t *word = word_at(a, a->taken_at, unit);
        *word = value ? *word | mask : *word & ~mask;
        unit += bits;
    }
}

/* Takes consecutive free units that begin in [from, to): as many as there are, at least `least`, at most `most`.
 * Returns the first, or UINT64_MAX, and how many in *got. */
uint64_t fc_units_take_within(fc_arena *a, uint64_t from, uint64_t to, uint64_t least, uint64_t most, uint64_t *got) {
    while (a->free_units >= least) {
        uint64_t start = fc_find_bit(a, a->taken_at, from, to, 0);
        if (to - start < least) {
            break;
        }
        uint64_t end = fc_find_bit(a, a->taken_at, start, start + most < to ? start + most : to, 1);
        if (end - start >= least) {
            *got = end - start;
            fill(a, start, *got, 1);
            a->free_units -= *got;
            a->cursor = end;
            return start;
        }
        from = end;
    }
    return UINT64_MAX;
}

/* Next fit, at most FC_SCAN_UNITS beyond the cursor. */
uint64_t fc_units_take(fc_arena *a, uint64_t least, uint64_t most, uint64_t *got) {
    uint64_t end = a->data_units;
    uint64_t to = a->cursor + FC_SCAN_UNITS < end ? a->cursor + FC_SCAN_UNITS : end;
    uint64_t unit = fc_units_take_within(a, a->cursor, to, least, most, got);
    if (unit == UINT64_MAX && to == end) {
        uint64_t wrapped = FC_SCAN_UNITS < end ? FC_SCAN_UNITS : end;
        unit = fc_units_take_within(a, 0, wrapped, least, most, got);
    }
    return unit;
}

void fc_units_give(fc_arena *a, uint64_t unit, uint64_t units) {
    fill(a, unit, units, 0);
    a->free_units += units;
}
