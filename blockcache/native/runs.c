/* The index seen as runs: batches of which each covers what follows the one before. A run's first entry is marked. */
#include "pyfastcache.h"

/* The entry that answers a read of `offset`: its batch holds it, or only known-empty offsets lie between. */
fc_entry *fc_covering(fc_arena *a, const fc_partition *p, int64_t offset) {
    fc_entry *floor = fc_tree_floor(a, p, offset);
    if (floor != NULL && offset <= fc_last(floor)) {
        return floor;
    }
    fc_entry *after = fc_tree_after(a, p, offset);
    return after != NULL && after->covers_from <= offset ? after : NULL;
}

static fc_entry *first_start_below(fc_arena *a, uint32_t n) {
    for (;;) {
        fc_node *node = fc_node_at(a, n);
        uint32_t i = 0;
        if (node->level == 0) {
            while (node->entry[i].run_start == 0) {
                i++;
            }
            return &node->entry[i];
        }
        while (node->item[i].starts == 0) {
            i++;
        }
        n = node->item[i].child;
    }
}

static fc_entry *last_start_below(fc_arena *a, uint32_t n) {
    for (;;) {
        fc_node *node = fc_node_at(a, n);
        uint32_t i = node->count - 1;
        if (node->level == 0) {
            while (node->entry[i].run_start == 0) {
                i--;
            }
            return &node->entry[i];
        }
        while (node->item[i].starts == 0) {
            i--;
        }
        n = node->item[i].child;
    }
}

/* The first entry above `base_offset` that starts a run, or NULL. */
fc_entry *fc_run_after(fc_arena *a, const fc_partition *p, int64_t base_offset) {
    fc_path path;
    fc_tree_descend(a, p, base_offset, &path);
    fc_node *node = fc_node_at(a, path.node[0]);
    for (uint32_t i = path.at[0]; i < node->count; i++) {
        if (node->entry[i].run_start) {
            return &node->entry[i];
        }
    }
    for (uint32_t level = 1; level < p->height; level++) {
        node = fc_node_at(a, path.node[level]);
        for (uint32_t i = path.at[level] + 1; i < node->count; i++) {
            if (node->item[i].starts) {
                return first_start_below(a, node->item[i].child);
            }
        }
    }
    return NULL;
}

/* The start of the run that the entry at `base_offset` is in. There is one: the first entry of all starts a run. */
fc_entry *fc_run_at_or_before(fc_arena *a, const fc_partition *p, int64_t base_offset) {
    fc_path path;
    fc_tree_descend(a, p, base_offset, &path);
    fc_node *node = fc_node_at(a, path.node[0]);
    for (uint32_t i = path.at[0]; i-- > 0;) {
        if (node->entry[i].run_start) {
            return &node->entry[i];
        }
    }
    for (uint32_t level = 1; level < p->height; level++) {
        node = fc_node_at(a, path.node[level]);
        for (uint32_t i = path.at[level]; i-- > 0;) {
            if (node->item[i].starts) {
                return last_start_below(a, node->item[i].child);
            }
        }
    }
    return NULL;
}

/* Adds an entry that overlaps none; its coverage is cut to what is not stored, its run_start is found. */
void fc_index_add(fc_arena *a, fc_partition *p, fc_entry *entry) {
    fc_begin(&p->changes);
    const fc_entry *before = fc_tree_floor(a, p, entry->base_offset);
    if (before != NULL && entry->covers_from < fc_end(before)) {
        entry->covers_from = fc_end(before);
    }
    entry->run_start = before == NULL || fc_end(before) != entry->covers_from;
    const fc_entry *after = fc_tree_after(a, p, entry->base_offset);
    if (after != NULL && after->run_start && after->covers_from == fc_end(entry)) {
        fc_tree_mark(a, p, after->base_offset, 0);
    }
    fc_tree_insert(a, p, entry);
    fc_done(&p->changes);
}

void fc_index_remove(fc_arena *a, fc_partition *p, int64_t base_offset) {
    fc_begin(&p->changes);
    const fc_entry *after = fc_tree_after(a, p, base_offset);
    if (after != NULL && !after->run_start) {
        fc_tree_mark(a, p, after->base_offset, 1);
    }
    fc_tree_remove(a, p, base_offset);
    fc_done(&p->changes);
}

/* It became known that nothing lies between `covers_from` and an entry that is there. */
void fc_index_cover(fc_arena *a, fc_partition *p, int64_t base_offset, int64_t covers_from) {
    fc_entry *entry = fc_tree_floor(a, p, base_offset);
    if (covers_from >= entry->covers_from) {
        return;
    }
    const fc_entry *before = base_offset == INT64_MIN ? NULL : fc_tree_floor(a, p, base_offset - 1);
    if (before != NULL && covers_from < fc_end(before)) {
        covers_from = fc_end(before);
    }
    fc_begin(&p->changes);
    entry->covers_from = covers_from;
    if (before != NULL && entry->run_start && covers_from == fc_end(before)) {
        fc_tree_mark(a, p, base_offset, 0);
    }
    fc_done(&p->changes);
}
