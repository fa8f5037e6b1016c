/* One partition's index: a B+ tree of entries by base offset.
 * Invariants: keys ascend; an item's key is at most the smallest base offset below it and greater than every one
 * below its left neighbour; no node is empty (a node that empties is freed at once, none are merged); item.starts
 * is the number of entries below that start a run. */
#include <string.h>

#include "pyfastcache.h"

/* How many of the keys are at or below `key`. */
static uint32_t count_at_or_below(const fc_node *node, int64_t key) {
    uint32_t low = 0, high = node->count;
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        int64_t at = node->level == 0 ? node->entry[mid].base_offset : node->item[mid].key;
        if (at <= key) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

void fc_tree_descend(fc_arena *a, const fc_partition *p, int64_t key, fc_path *path) {
    uint32_t n = p->root;
    for (uint32_t level = p->height; level-- > 0;) {
        const fc_node *node = fc_node_at(a, n);
        uint32_t below = count_at_or_below(node, key);
        path->node[level] = n;
        if (level == 0) {
            path->at[0] = below;
        } else {
            path->at[level] = below == 0 ? 0 : below - 1;
            n = node->item[path->at[level]].child;
        }
    }
}

/* The last entry whose base offset is at or below `key`, or NULL. */
fc_entry *fc_tree_floor(fc_arena *a, const fc_partition *p, int64_t key) {
    if (p->root == 0) {
        return NULL;
    }
    fc_path path;
    fc_tree_descend(a, p, key, &path);
    fc_node *leaf = fc_node_at(a, path.node[0]);
    if (path.at[0] > 0) {
        return &leaf->entry[path.at[0] - 1];
    }
    if (leaf->prev == 0) {
        return NULL;
    }
    leaf = fc_node_at(a, leaf->prev);
    return &leaf->entry[leaf->count - 1];
}

/* The first entry whose base offset is above `key`, or NULL. */
fc_entry *fc_tree_after(fc_arena *a, const fc_partition *p, int64_t key) {
    if (p->root == 0) {
        return NULL;
    }
    fc_path path;
    fc_tree_descend(a, p, key, &path);
    fc_node *leaf = fc_node_at(a, path.node[0]);
    if (path.at[0] < leaf->count) {
        return &leaf->entry[path.at[0]];
    }
    return leaf->next == 0 ? NULL : &fc_node_at(a, leaf->next)->entry[0];
}

fc_entry *fc_tree_last(fc_arena *a, const fc_partition *p) { return fc_tree_floor(a, p, INT64_MAX); }

static void shift_counts(fc_arena *a, const fc_partition *p, const fc_path *path, uint32_t from_level, uint32_t by) {
    for (uint32_t level = from_level; level < p->height; level++) {
        fc_node_at(a, path->node[level])->item[path->at[level]].starts += by; /* modulo 2^32: `by` may be -1 */
    }
}

static void link_after(fc_arena *a, uint32_t left, uint32_t right) {
    fc_node *l = fc_node_at(a, left), *r = fc_node_at(a, right);
    r->prev = left;
    r->next = l->next;
    if (l->next != 0) {
        fc_node_at(a, l->next)->prev = right;
    }
    l->next = right;
}

/* Splits a full leaf before place `keep`; the rightmost leaf is left full when the log only grows. */
static uint32_t split_leaf(fc_arena *a, uint32_t left, uint32_t keep) {
    uint32_t right = fc_node_take(a, 0);
    fc_node *l = fc_node_at(a, left), *r = fc_node_at(a, right);
    r->count = l->count - keep;
    memcpy(r->entry, l->entry + keep, r->count * sizeof(fc_entry));
    l->count = keep;
    link_after(a, left, right);
    return right;
}

static void put_entry(fc_node *leaf, uint32_t at, const fc_entry *entry) {
    memmove(leaf->entry + at + 1, leaf->entry + at, (leaf->count - at) * sizeof(fc_entry));
    leaf->entry[at] = *entry;
    leaf->count++;
}

static void put_item(fc_node *node, uint32_t at, const fc_item *item) {
    memmove(node->item + at + 1, node->item + at, (node->count - at) * sizeof(fc_item));
    node->item[at] = *item;
    node->count++;
}

/* Puts `item` into an inner node; returns the node split off to the right, with its item in *item, or 0. */
static uint32_t insert_item(fc_arena *a, uint32_t n, uint32_t at, fc_item *item) {
    fc_node *node = fc_node_at(a, n);
    if (node->count < FC_INNER_MAX) {
        put_item(node, at, item);
        return 0;
    }
    uint32_t keep = at == node->count ? node->count - 1 : node->count / 2;
    uint32_t right = fc_node_take(a, node->level);
    fc_node *r = fc_node_at(a, right);
    r->count = node->count - keep;
    memcpy(r->item, node->item + keep, r->count * sizeof(fc_item));
    node->count = keep;
    if (at > keep) {
        put_item(r, at - keep, item);
    } else {
        put_item(node, at, item);
    }
    *item = (fc_item){r->item[0].key, right, fc_node_starts(r)};
    return right;
}

static void grow_root(fc_arena *a, fc_partition *p, const fc_item *right) {
    const fc_node *old = fc_node_at(a, p->root);
    int64_t key = old->level == 0 ? old->entry[0].base_offset : old->item[0].key;
    uint32_t n = fc_node_take(a, p->height);
    fc_node *root = fc_node_at(a, n);
    root->count = 2;
    root->item[0] = (fc_item){key, p->root, fc_node_starts(old)};
    root->item[1] = *right;
    p->root = n;
    p->height++;
}

/* The leaf of `path` was split; `item` names the new right leaf. Carries it up. */
static void insert_upward(fc_arena *a, fc_partition *p, fc_path *path, fc_item *item, uint32_t run_start) {
    uint32_t level = 1;
    for (; level < p->height; level++) {
        fc_node *node = fc_node_at(a, path->node[level]);
        fc_item *left = &node->item[path->at[level]];
        left->starts = fc_node_starts(fc_node_at(a, left->child));
        if (insert_item(a, path->node[level], path->at[level] + 1, item) == 0) {
            shift_counts(a, p, path, level + 1, run_start);
            return;
        }
    }
    grow_root(a, p, item);
}

static void lower_keys(fc_arena *a, const fc_partition *p, const fc_path *path, int64_t key) {
    for (uint32_t level = 1; level < p->height; level++) {
        fc_item *item = &fc_node_at(a, path->node[level])->item[path->at[level]];
        item->key = key < item->key ? key : item->key;
    }
}

/* Needs height + 1 nodes of room and a base offset that is not yet there. */
void fc_tree_insert(fc_arena *a, fc_partition *p, const fc_entry *entry) {
    if (p->root == 0) {
        p->root = fc_node_take(a, 0);
        p->height = 1;
    }
    fc_path path;
    fc_tree_descend(a, p, entry->base_offset, &path);
    lower_keys(a, p, &path, entry->base_offset);
    fc_node *leaf = fc_node_at(a, path.node[0]);
    uint32_t at = path.at[0];
    if (leaf->count < FC_LEAF_MAX) {
        put_entry(leaf, at, entry);
        shift_counts(a, p, &path, 1, entry->run_start);
        return;
    }
    uint32_t keep = at == leaf->count ? leaf->count : leaf->count / 2;
    uint32_t right = split_leaf(a, path.node[0], keep);
    fc_node *r = fc_node_at(a, right);
    if (at >= keep) {
        put_entry(r, at - keep, entry);
    } else {
        put_entry(leaf, at, entry);
    }
    fc_item item = {r->entry[0].base_offset, right, fc_node_starts(r)};
    insert_upward(a, p, &path, &item, entry->run_start);
}

static void unlink_leaf(fc_arena *a, const fc_node *leaf) {
    if (leaf->prev != 0) {
        fc_node_at(a, leaf->prev)->next = leaf->next;
    }
    if (leaf->next != 0) {
        fc_node_at(a, leaf->next)->prev = leaf->prev;
    }
}

static void free_empty(fc_arena *a, fc_partition *p, const fc_path *path) {
    unlink_leaf(a, fc_node_at(a, path->node[0]));
    fc_node_give(a, path->node[0]);
    for (uint32_t level = 1; level < p->height; level++) {
        fc_node *node = fc_node_at(a, path->node[level]);
        uint32_t at = path->at[level];
        node->count--;
        memmove(node->item + at, node->item + at + 1, (node->count - at) * sizeof(fc_item));
        if (node->count > 0) {
            return;
        }
        fc_node_give(a, path->node[level]);
    }
    p->root = 0;
    p->height = 0;
}

/* Removes an entry that is there. */
void fc_tree_remove(fc_arena *a, fc_partition *p, int64_t base_offset) {
    fc_path path;
    fc_tree_descend(a, p, base_offset, &path);
    fc_node *leaf = fc_node_at(a, path.node[0]);
    uint32_t at = path.at[0] - 1;
    shift_counts(a, p, &path, 1, 0u - leaf->entry[at].run_start);
    leaf->count--;
    memmove(leaf->entry + at, leaf->entry + at + 1, (leaf->count - at) * sizeof(fc_entry));
    if (leaf->count > 0) {
        return;
    }
    free_empty(a, p, &path);
    while (p->height > 1 && fc_node_at(a, p->root)->count == 1) {
        uint32_t child = fc_node_at(a, p->root)->item[0].child;
        fc_node_give(a, p->root);
        p->root = child;
        p->height--;
    }
}

/* Says of an entry that is there whether it starts a run. */
void fc_tree_mark(fc_arena *a, fc_partition *p, int64_t base_offset, uint32_t run_start) {
    fc_path path;
    fc_tree_descend(a, p, base_offset, &path);
    fc_entry *entry = &fc_node_at(a, path.node[0])->entry[path.at[0] - 1];
    shift_counts(a, p, &path, 1, run_start - entry->run_start);
    entry->run_start = run_start;
}
