/* The ghost: a bounded ring of what was evicted, so that a miss knows its age. Chained newest first by partition. */
#include "pyfastcache.h"

_Static_assert(sizeof(fc_ghost) == 48, "a ghost is 48 bytes");

void fc_ghost_add(fc_arena *a, uint32_t index, const fc_ghost *ghost) {
    fc_partition *p = fc_partition_at(a, index);
    fc_ghost *g = fc_ghost_at(a, a->ghosts_written);
    *g = *ghost;
    g->slot = index;
    g->generation = p->generation;
    g->before = p->ghost;
    p->ghost = ++a->ghosts_written;
}

/* The clock at which an evicted offset was admitted (between the block's first and last batch by share), or -1. */
int64_t fc_ghost_clock(fc_arena *a, uint32_t index, int64_t offset) {
    const fc_partition *p = fc_partition_at(a, index);
    uint64_t number = p->ghost;
    while (number != 0 && a->ghosts_written - number < a->ghosts_max) {
        const fc_ghost *g = fc_ghost_at(a, number - 1);
        if (g->slot != index || g->generation != p->generation) {
            return -1;
        }
        if (g->first_offset <= offset && offset < g->next_offset) {
            double share = (double)(offset - g->first_offset) / (double)(g->next_offset - g->first_offset);
            double span = (double)(g->last_admitted - g->first_admitted);
            return (int64_t)(g->first_admitted + (uint64_t)(span * share));
        }
        number = g->before;
    }
    return -1;
}
