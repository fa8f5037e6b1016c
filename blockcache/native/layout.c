/* The layout that the header draws, asserted: what a file written by one build means to another of the same FC_LAYOUT.
 * A change of any of these is a new FC_LAYOUT. The same numbers stand in layout.py and tests/blockcache/test_native.py. */
#include "pyfastcache.h"

#define AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field)

_Static_assert(sizeof(fc_arena) == FC_HEADER_BYTES, "the arena's header is 1368 bytes");
_Static_assert(sizeof(fc_partition) == 128, "a partition is 128 bytes");
_Static_assert(sizeof(fc_entry) == 48, "an entry is 48 bytes");
_Static_assert(sizeof(fc_item) == 16, "an item is 16 bytes");
_Static_assert(sizeof(fc_node) == 256, "a node is 256 bytes");
_Static_assert(sizeof(fc_block) == 160, "a block's header is 160 bytes");
_Static_assert(sizeof(fc_ghost) == 48, "a ghost is 48 bytes");
_Static_assert(sizeof(fc_segment) == 32, "a segment is 32 bytes");
_Static_assert(sizeof(((fc_node *)0)->entry) == FC_LEAF_MAX * sizeof(fc_entry), "FC_LEAF_MAX");
_Static_assert(sizeof(((fc_node *)0)->item) == FC_INNER_MAX * sizeof(fc_item), "FC_INNER_MAX");
_Static_assert(sizeof(fc_hit) == FC_HIT_HEAD * 8 + FC_SEGMENTS_MAX * sizeof(fc_segment), "FC_SEGMENTS_MAX");
_Static_assert(sizeof(((fc_arena *)0)->identity) == FC_IDENTITY_BYTES, "FC_IDENTITY_BYTES");
_Static_assert(FC_UNIT % 64 == 0 && sizeof(fc_block) < FC_UNIT, "a block's header stands in its first unit");

AT(fc_arena, magic, 0);
AT(fc_arena, layout, 8);
AT(fc_arena, partitions_at, 24);
AT(fc_arena, partitions_touched, 40);
AT(fc_arena, ghosts_at, 64);
AT(fc_arena, taken_at, 88);
AT(fc_arena, starts_at, 96);
AT(fc_arena, nodes_at, 104);
AT(fc_arena, data_at, 144);
AT(fc_arena, fifo_oldest, 216);
AT(fc_arena, entries, 296);
AT(fc_arena, shared_block, 448);
AT(fc_arena, observe, 464);
AT(fc_arena, changes, 472);
AT(fc_arena, reserved_blocks, 480);
AT(fc_arena, lent_bytes, 488);
AT(fc_arena, admitted_before, 512);
AT(fc_arena, alive_at, 520);
AT(fc_arena, identity, 528);
AT(fc_arena, lock, 1024);
AT(fc_arena, shared, 1088);
AT(fc_arena, torn, 1096);
AT(fc_arena, lock_stuck, 1128);
AT(fc_arena, pins_of, 1232);
_Static_assert(sizeof(((fc_arena *)0)->pins_of) == FC_HOLDERS * 4, "FC_HOLDERS");
_Static_assert(sizeof(((fc_block *)0)->pins_of) == FC_HOLDERS * 2, "FC_HOLDERS");
AT(fc_partition, index, 16);
AT(fc_partition, generation, 20);
AT(fc_partition, root, 24);
AT(fc_partition, height, 28);
AT(fc_partition, expect, 32);
AT(fc_partition, evicted_end, 48);
AT(fc_partition, block_bytes, 64);
AT(fc_partition, entries, 72);
AT(fc_partition, changes, 120);
AT(fc_entry, base_offset, 8);
AT(fc_entry, position, 16);
AT(fc_entry, admitted, 24);
AT(fc_entry, last_delta, 32);
AT(fc_entry, length, 36);
AT(fc_entry, run_start, 44);
AT(fc_item, child, 8);
AT(fc_item, starts, 12);
AT(fc_node, prev, 8);
AT(fc_node, entry, 16);
AT(fc_node, item, 16);
AT(fc_block, units, 4);
AT(fc_block, generation, 8);
AT(fc_block, pins, 32);
AT(fc_block, slot, 40);
AT(fc_block, live, 44);
AT(fc_block, used_bytes, 48);
AT(fc_block, live_bytes, 56);
AT(fc_block, filled_bytes, 80);
AT(fc_block, first_bytes, 88);
AT(fc_block, lent, 92);
AT(fc_block, pins_of, 96);
