/* The ghost: a bounded ring of what was evicted, so that a miss knows its age. Chained newest first by partition.
 * What follows on a partition's newest ghost, in offsets and within a sixteenth of the turnover (the precision that
 * the FIFO over blocks has), makes that one longer. */
#include "pyfastcache.h"

static fc_ghost *find_newest(fc_arena *a, uint32_t index) {
    const fc_partition *p = fc_partition_at(a, index);
    if (p->ghost == 0 || a->ghosts_written - p->ghost >= a->ghosts_max) {
        return NULL;
    }
    fc_ghost *g = fc_ghost_at(a, p->ghost - 1);
    return g->slot == index && g->generation == p->generation ? g : NULL;
}

/* The entry is being evicted. */
void fc_ghost_add(fc_arena *a, uint32_t index, const fc_entry *e) {
    fc_partition *p = fc_partition_at(a, index);
    fc_ghost *g = find_newest(a, index);
    uint64_t clock = e->admitted - e->length;
    if (g != NULL && g->next_offset == e->covers_from && g->last_admitted <= clock &&
        clock - g->first_admitted <= fc_data_bytes(a) / 16) {
        g->next_offset = fc_end(e);
        g->last_admitted = clock;
        return;
    }
    g = fc_ghost_at(a, a->ghosts_written);
    *g = (fc_ghost){e->covers_from, fc_end(e), clock, clock, p->ghost, index, p->generation};
    p->ghost = ++a->ghosts_written;
}

/* The clock before an evicted offset was admitted (between the first and the last batch by share), or -1. */
int64_t fc_ghost_clock(fc_arena *a, uint32_t index, int64_t offset) {
    const fc_partition *p = fc_partition_at(a, index);
    uint64_t number = p->ghost;
    while (number != 0 && a->ghosts_written - number < a->ghosts_max) {
        const fc_ghost *g = fc_ghost_at(a, number - 1);
        if (g->slot != index || g->generation != p->generation) {
            return -1;
        }
        if (g->first_offset <= offset && offset < g->next_offset) {
            int64_t steps = g->next_offset - 1 - g->first_offset;
            double share = steps > 0 ? (double)(offset - g->first_offset) / (double)steps : 0;
            double span = (double)(g->last_admitted - g->first_admitted);
            return (int64_t)(g->first_admitted + (uint64_t)(span * share));
        }
        number = g->before;
    }
    return -1;
}
