/* The index pool: B+ tree nodes by number. Fresh nodes are touched only when first taken; freed ones are linked. */
#include <string.h>

#include "pyfastcache.h"

/* The caller has made sure of fc_tree_room(). */
uint32_t fc_node_take(fc_arena *a, uint32_t level) {
    uint32_t n = (uint32_t)a->nodes_free;
    if (n != 0) {
        a->nodes_free = fc_node_at(a, n)->next;
    } else {
        n = (uint32_t)a->nodes_touched++;
    }
    fc_node *node = fc_node_at(a, n);
    memset(node, 0, offsetof(fc_node, entry));
    node->level = level;
    a->nodes_live++;
    return n;
}

void fc_node_give(fc_arena *a, uint32_t n) {
    fc_node *node = fc_node_at(a, n);
    node->count = 0;
    node->level = FC_NONE; /* check() tells a free node by it */
    node->next = (uint32_t)a->nodes_free;
    a->nodes_free = n;
    a->nodes_live--;
}

uint32_t fc_node_starts(const fc_node *node) {
    uint32_t starts = 0;
    for (uint32_t i = 0; i < node->count; i++) {
        starts += node->level == 0 ? node->entry[i].run_start : node->item[i].starts;
    }
    return starts;
}

/* Nodes that can still be taken. Number 0 is never used. */
uint64_t fc_tree_room(fc_arena *a) { return a->nodes_max - 1 - a->nodes_live; }
