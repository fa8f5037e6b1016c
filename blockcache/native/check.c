/* fc_check(): walks everything and compares it with what is counted. For tests, and before a dead process's arena is taken
 * over: of a damaged one it says so. It follows no number that it has not held against the sections, and its loops are
 * bounded by counts that it has checked, or by what must ascend; the sections themselves are the caller's to compare. */
#include <string.h>

#include "pyfastcache.h"

typedef struct {
    uint64_t blocks, limbo, units, limbo_units, reserved, lent_units, live, live_bytes;
} block_sums;

typedef struct {
    uint64_t nodes, entries, bytes, open;
    uint32_t leaf;             /* the one walked last */
} index_sums;

static int ends_before(uint64_t at, uint64_t count, uint64_t size, uint64_t next) {
    return at <= next && count <= (next - at) / size;
}

static int check_layout(fc_arena *a) {
    int ordered = a->partitions_at >= sizeof(*a) && a->ghosts_max > 0 && a->data_at % FC_UNIT == 0 &&
                  ends_before(a->partitions_at, a->partitions_max, sizeof(fc_partition), a->ghosts_at) &&
                  ends_before(a->ghosts_at, a->ghosts_max, sizeof(fc_ghost), a->taken_at) &&
                  ends_before(a->taken_at, (a->data_units + 63) / 64, 8, a->starts_at) &&
                  ends_before(a->starts_at, (a->data_units + 63) / 64, 8, a->nodes_at) &&
                  ends_before(a->nodes_at, a->nodes_max, sizeof(fc_node), a->data_at) &&
                  ends_before(a->data_at, a->data_units, FC_UNIT, a->size_bytes);
    int counted = a->partitions_touched <= a->partitions_max && a->nodes_touched <= a->nodes_max;
    return a->magic == FC_MAGIC && a->layout == FC_LAYOUT && ordered && counted ? 0 : FC_BROKEN_LAYOUT;
}

/* Whether a block starts at this offset. */
static int is_block(fc_arena *a, uint64_t at) {
    return at >= a->data_at && at < a->data_at + fc_data_bytes(a) && (at - a->data_at) % FC_UNIT == 0 &&
           fc_bit(a, a->starts_at, fc_unit_of(a, at));
}

/* The units of a block are taken and only its first one starts a block. */
static int check_units_of(fc_arena *a, uint64_t at, const fc_block *b) {
    uint64_t unit = fc_unit_of(a, at), end = unit + b->units;
    if (b->units == 0 || end > a->data_units || !fc_bit(a, a->starts_at, unit) ||
        fc_find_bit(a, a->taken_at, unit, end, 0) != end || fc_find_bit(a, a->starts_at, unit + 1, end, 1) != end) {
        return FC_BROKEN_UNITS;
    }
    return 0;
}

/* The block's batches are whole, and as many of them are in the index as it says. */
static int check_batches(fc_arena *a, uint64_t at, const fc_block *b) {
    uint64_t live = 0, bytes = 0, used = b->first_bytes, sum = b->first_bytes;
    uint32_t slot;
    fc_batch batch;
    int rc;
    while ((rc = fc_block_step(a, b, &used, &slot, &batch)) > 0) {
        sum += fc_owner_bytes(b) + batch.length;
        if (slot >= a->partitions_touched) {
            return FC_BROKEN_BLOCK;
        }
        const fc_entry *e = fc_tree_floor(a, fc_partition_at(a, slot), batch.base);
        if (e == NULL || e->position != at + used - fc_footprint(a, batch.length)) {
            continue;
        }
        if (e->length != batch.length || fc_last(e) != batch.last || e->leader_epoch != batch.epoch) {
            return FC_BROKEN_ENTRY;
        }
        live++;
        bytes += e->length;
    }
    return rc == 0 && sum == b->used_bytes && live == b->live && bytes == b->live_bytes ? 0 : FC_BROKEN_BLOCK;
}

static int check_block(fc_arena *a, uint64_t at, const fc_block *b, block_sums *sums) {
    int rc = check_units_of(a, at, b);
    if (rc < 0) {
        return rc;
    }
    if (b->generation == 0 || b->generation > a->generation || b->used_bytes > (uint64_t)b->units * FC_UNIT ||
        b->filled_bytes > b->used_bytes || b->first_bytes < sizeof(*b) || b->first_bytes > b->filled_bytes ||
        (b->slot >= a->partitions_touched && b->slot != FC_SHARED)) {
        return FC_BROKEN_BLOCK;
    }
    if (b->lent > 1 || b->lent > b->pins) {
        return FC_BROKEN_LENT;
    }
    sums->units += b->units;
    sums->lent_units += b->lent ? b->units : 0;
    sums->live += b->live;
    sums->live_bytes += b->live_bytes;
    return 0;
}

static int check_fifo(fc_arena *a, block_sums *sums) {
    uint64_t before = 0, generation = 0;
    for (uint64_t at = a->fifo_oldest; at != 0; at = fc_block_at(a, at)->next) {
        if (!is_block(a, at)) {
            return FC_BROKEN_FIFO;
        }
        const fc_block *b = fc_block_at(a, at);
        int rc = check_block(a, at, b, sums);
        if (rc < 0) {
            return rc;
        }
        if (b->prev != before || b->state != FC_IN_FIFO || b->generation <= generation || b->live == 0 ||
            ++sums->blocks > a->blocks) {
            return FC_BROKEN_FIFO;
        }
        rc = check_batches(a, at, b);
        if (rc < 0) {
            return rc;
        }
        before = at;
        generation = b->generation;
    }
    return a->fifo_newest == before && sums->blocks == a->blocks ? 0 : FC_BROKEN_FIFO;
}

static int check_limbo(fc_arena *a, block_sums *sums) {
    uint64_t before = 0;
    for (uint64_t at = a->limbo_first; at != 0; at = fc_block_at(a, at)->next) {
        if (!is_block(a, at)) {
            return FC_BROKEN_LIMBO;
        }
        const fc_block *b = fc_block_at(a, at);
        int rc = check_block(a, at, b, sums);
        if (rc < 0) {
            return rc;
        }
        sums->limbo_units += b->units;
        if (b->prev != before || b->state != FC_IN_LIMBO || b->live != 0 ||
            ++sums->limbo > a->limbo_blocks) {
            return FC_BROKEN_LIMBO;
        }
        before = at;
    }
    int counted = sums->limbo == a->limbo_blocks && sums->limbo_units * FC_UNIT == a->limbo_bytes;
    return counted ? 0 : FC_BROKEN_LIMBO;
}

/* Blocks that no queue has: each is held by one who writes into it, and by nobody else. */
static int check_reserved(fc_arena *a, block_sums *sums) {
    uint64_t unit = fc_find_bit(a, a->starts_at, 0, a->data_units, 1);
    for (; unit < a->data_units; unit = fc_find_bit(a, a->starts_at, unit + 1, a->data_units, 1)) {
        uint64_t at = a->data_at + unit * FC_UNIT;
        const fc_block *b = fc_block_at(a, at);
        if (b->state != FC_RESERVED) {
            continue;
        }
        int rc = check_block(a, at, b, sums);
        if (rc < 0) {
            return rc;
        }
        if (!b->lent || b->pins != 1 || b->live != 0) {
            return FC_BROKEN_LENT;
        }
        sums->reserved++;
    }
    int counted = sums->reserved == a->reserved_blocks && sums->lent_units * FC_UNIT == a->lent_bytes;
    return counted && a->lent_bytes <= a->lent_limit_bytes ? 0 : FC_BROKEN_LENT;
}

static int check_pool(fc_arena *a, const block_sums *sums) {
    uint64_t taken = fc_count_bits(a, a->taken_at);
    if (taken != sums->units || taken + a->free_units != a->data_units || a->cursor > a->data_units ||
        fc_count_bits(a, a->starts_at) != sums->blocks + sums->limbo + sums->reserved) {
        return FC_BROKEN_UNITS;
    }
    return sums->live == a->entries && sums->live_bytes == a->live_bytes ? 0 : FC_BROKEN_COUNTS;
}

/* Levels, keys and counts of run starts below one node. Recursion is bounded by FC_HEIGHT_MAX. */
static int check_node(fc_arena *a, uint32_t n, uint32_t level, int64_t low, int64_t high, index_sums *sums) {
    const fc_node *node = fc_node_at(a, n);
    if (n == 0 || n >= a->nodes_touched || node->level != level || node->count == 0 || level >= FC_HEIGHT_MAX ||
        node->count > (level == 0 ? FC_LEAF_MAX : FC_INNER_MAX)) {
        return FC_BROKEN_TREE;
    }
    if (++sums->nodes > a->nodes_live) {
        return FC_BROKEN_NODES;
    }
    if (level == 0) {
        if (node->prev != sums->leaf || (sums->leaf != 0 && fc_node_at(a, sums->leaf)->next != n)) {
            return FC_BROKEN_TREE;
        }
        sums->leaf = n;
    }
    for (uint32_t i = 0; i < node->count; i++) {
        int64_t key = level == 0 ? node->entry[i].base_offset : node->item[i].key;
        if (key < low || key >= high) {
            return FC_BROKEN_TREE;
        }
        low = key + 1;
        if (level > 0) {
            int64_t below = i + 1 < node->count ? node->item[i + 1].key : high;
            int rc = check_node(a, node->item[i].child, level - 1, key, below, sums);
            if (rc < 0) {
                return rc;
            }
            if (node->item[i].starts != fc_node_starts(fc_node_at(a, node->item[i].child))) {
                return FC_BROKEN_RUNS;
            }
        }
    }
    return 0;
}

/* Every tree, before anything looks for an entry in one. */
static int check_trees(fc_arena *a, uint64_t *nodes) {
    index_sums sums = {0, 0, 0, 0, 0};
    for (uint64_t i = 0; i < a->partitions_touched; i++) {
        const fc_partition *p = fc_partition_at(a, i);
        if (p->root == 0 || p->generation % 2 == 0) {
            if (p->root != 0 || p->height != 0) {
                return FC_BROKEN_TREE;
            }
            continue;
        }
        sums.leaf = 0;
        int rc = check_node(a, p->root, p->height - 1, INT64_MIN, INT64_MAX, &sums);
        if (rc < 0) {
            return rc;
        }
        if (fc_node_at(a, sums.leaf)->next != 0) {
            return FC_BROKEN_TREE;
        }
    }
    *nodes = sums.nodes;
    return 0;
}

static int check_entry(fc_arena *a, const fc_partition *p, const fc_entry *e, const fc_entry *before) {
    if (e->covers_from > e->base_offset || e->covers_from < 0 || e->admitted > a->admitted_bytes ||
        e->admitted < e->length) {
        return FC_BROKEN_ENTRY;
    }
    if (before != NULL && (fc_end(before) > e->covers_from || before->base_offset >= e->base_offset)) {
        return FC_BROKEN_ORDER;
    }
    if (e->run_start != (uint32_t)(before == NULL || fc_end(before) != e->covers_from)) {
        return FC_BROKEN_RUNS;
    }
    uint64_t data_end = a->data_at + fc_data_bytes(a), footprint = fc_footprint(a, e->length);
    if (e->position < a->data_at || e->position >= data_end || footprint > data_end - e->position ||
        fc_find_bit(a, a->starts_at, 0, fc_unit_of(a, e->position) + 1, 1) > fc_unit_of(a, e->position)) {
        return FC_BROKEN_ENTRY;
    }
    uint64_t at = fc_block_holding(a, e->position);
    const fc_block *b = fc_block_at(a, at);
    uint64_t end = e->position + footprint;
    int inside = e->position >= at + sizeof(*b) && end <= at + b->filled_bytes;
    uint32_t slot = b->slot;
    if (inside && slot == FC_SHARED) {
        memcpy(&slot, fc_at(a, e->position - FC_OWNER_BYTES), FC_OWNER_BYTES);
    }
    return inside && b->state == FC_IN_FIFO && fc_partition_at(a, slot) == p ? 0 : FC_BROKEN_ENTRY;
}

/* The leaves, left to right by their links. */
static int check_leaves(fc_arena *a, const fc_partition *p, index_sums *sums) {
    fc_path path;
    fc_tree_descend(a, p, INT64_MIN, &path);
    const fc_entry *before = NULL;
    uint64_t entries = 0, bytes = 0;
    uint32_t left = 0;
    for (uint32_t n = path.node[0]; n != 0;) {
        const fc_node *leaf = fc_node_at(a, n);
        if (leaf->prev != left || leaf->level != 0) {
            return FC_BROKEN_TREE;
        }
        for (uint32_t i = 0; i < leaf->count; i++) {
            int rc = check_entry(a, p, &leaf->entry[i], before);
            if (rc < 0) {
                return rc;
            }
            before = &leaf->entry[i];
            bytes += before->length;
            entries++;
        }
        left = n;
        n = leaf->next;
    }
    sums->entries += entries;
    sums->bytes += bytes;
    return entries == p->entries && bytes == p->live_bytes ? 0 : FC_BROKEN_COUNTS;
}

/* Whether a block in the FIFO starts at this offset, of this slot. */
static int is_open_block(fc_arena *a, uint64_t at, uint32_t slot) {
    return is_block(a, at) && fc_block_at(a, at)->slot == slot && fc_block_at(a, at)->state == FC_IN_FIFO;
}

static int check_partition(fc_arena *a, uint64_t index, index_sums *sums) {
    const fc_partition *p = fc_partition_at(a, index);
    if (p->open_block != 0 && !is_open_block(a, p->open_block, (uint32_t)index)) {
        return FC_BROKEN_BLOCK;
    }
    if (p->block_bytes > a->block_max_bytes || p->ghost > a->ghosts_written) {
        return FC_BROKEN_COUNTS;
    }
    if (p->root == 0) {
        return p->entries == 0 && p->live_bytes == 0 ? 0 : FC_BROKEN_COUNTS;
    }
    return check_leaves(a, p, sums);
}

static int check_free_nodes(fc_arena *a, uint64_t nodes) {
    uint64_t free_nodes = 0;
    for (uint64_t n = a->nodes_free; n != 0 && free_nodes <= a->nodes_max; free_nodes++) {
        if (n >= a->nodes_touched || fc_node_at(a, (uint32_t)n)->level != FC_NONE) {
            return FC_BROKEN_NODES;
        }
        n = fc_node_at(a, (uint32_t)n)->next;
    }
    return nodes == a->nodes_live && nodes + free_nodes + 1 == a->nodes_touched ? 0 : FC_BROKEN_NODES;
}

static int check_partitions(fc_arena *a, uint64_t nodes) {
    index_sums sums = {0, 0, 0, 0, 0};
    for (uint64_t i = 0; i < a->partitions_touched; i++) {
        if (fc_partition_at(a, i)->generation % 2 == 0) {
            continue;
        }
        int rc = check_partition(a, i, &sums);
        if (rc < 0) {
            return rc;
        }
        sums.open++;
    }
    uint64_t free_slots = 0;
    for (uint64_t i = a->partitions_free; i != 0 && free_slots <= a->partitions_max; free_slots++) {
        if (i > a->partitions_touched || fc_partition_at(a, i - 1)->generation % 2 != 0) {
            return FC_BROKEN_COUNTS;
        }
        i = fc_partition_at(a, i - 1)->next_free;
    }
    if (sums.open != a->partitions_open || sums.open + free_slots != a->partitions_touched ||
        sums.entries != a->entries || sums.bytes != a->live_bytes) {
        return FC_BROKEN_COUNTS;
    }
    return check_free_nodes(a, nodes);
}

static int check_ghosts(fc_arena *a) {
    uint64_t first = a->ghosts_written > a->ghosts_max ? a->ghosts_written - a->ghosts_max : 0;
    for (uint64_t number = first; number < a->ghosts_written; number++) {
        const fc_ghost *g = fc_ghost_at(a, number);
        if (g->first_offset >= g->next_offset || g->first_admitted > g->last_admitted ||
            g->last_admitted > a->admitted_bytes || g->slot >= a->partitions_touched || g->before > number) {
            return FC_BROKEN_GHOSTS;
        }
    }
    return 0;
}

/* What slow partitions append to is a shared block in the FIFO; no call is at work. */
static int check_shared(fc_arena *a) {
    uint64_t at = a->shared_block;
    return (at == 0 || is_open_block(a, at, FC_SHARED)) && a->changes % 2 == 0 ? 0 : FC_BROKEN_BLOCK;
}

static int check_block_pins(const fc_block *b, uint64_t *pins_of) {
    uint64_t others = 0;
    for (uint32_t i = 0; i < FC_HOLDERS; i++) {
        others += b->pins_of[i];
        pins_of[i] += b->pins_of[i];
    }
    return b->pins_of[0] == 0 && others <= b->pins ? 0 : FC_BROKEN_PINS;
}

/* Each pin is counted in its block, and the sums are those of the blocks, which are as fc_check_content() found them. */
int fc_check_pins(fc_arena *a) {
    FC_HOLD(a, FC_TORN);
    uint64_t pins = 0, pinned_units = 0, idle = 0, pins_of[FC_HOLDERS] = {0};
    uint64_t unit = fc_find_bit(a, a->starts_at, 0, a->data_units, 1);
    for (; unit < a->data_units; unit = fc_find_bit(a, a->starts_at, unit + 1, a->data_units, 1)) {
        const fc_block *b = fc_block_at(a, a->data_at + unit * FC_UNIT);
        if (check_block_pins(b, pins_of) < 0) {
            return FC_BROKEN_PINS;
        }
        pins += b->pins;
        pinned_units += b->pins > 0 ? b->units : 0;
        idle += b->state == FC_IN_LIMBO && b->pins == 0;
    }
    for (uint32_t i = 0; i < FC_HOLDERS; i++) {
        if (pins_of[i] != a->pins_of[i]) {
            return FC_BROKEN_PINS;
        }
    }
    int counted = pins == a->pins && pinned_units * FC_UNIT == a->pinned_bytes && idle == a->limbo_idle && a->undo_block == 0;
    return counted ? 0 : FC_BROKEN_PINS;
}

/* All but the pins: what only holder 0 changes, which is the caller. */
int fc_check_content(fc_arena *a) {
    block_sums sums = {0};
    uint64_t nodes = 0;
    int rc = check_layout(a);
    rc = rc < 0 ? rc : check_trees(a, &nodes);
    rc = rc < 0 ? rc : check_fifo(a, &sums);
    rc = rc < 0 ? rc : check_limbo(a, &sums);
    rc = rc < 0 ? rc : check_reserved(a, &sums);
    rc = rc < 0 ? rc : check_pool(a, &sums);
    rc = rc < 0 ? rc : check_shared(a);
    rc = rc < 0 ? rc : check_partitions(a, nodes);
    return rc < 0 ? rc : check_ghosts(a);
}

/* 0, or the first FC_BROKEN_* found. */
int fc_check(fc_arena *a) {
    FC_HOLD(a, FC_TORN);
    int rc = fc_check_content(a);
    return rc < 0 ? rc : fc_check_pins(a);
}
