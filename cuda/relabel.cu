// Global node ids to local ids, in order of first occurrence: seeds first, then the sources of each
// hop, relation by relation, edge by edge. Each node type has its own list and its own numbers.
//
// A hop takes five launches: `enter_edges` puts every edge into the table, where the first edge of a
// new node wins; `mark_first` flags the winners; `scan_runs` ranks them; `count_new` turns ranks
// into first ids by relation; `label_edges` writes the lists and the ids.
#include "common.cuh"
#include "scan.cuh"
#include "table.cuh"

using I = INSTANCE_I;  // node ids
constexpr bool kHashed = INSTANCE_kHashed;  // see table.cuh

// Writes the seeds to the beginning of their types' lists. Row y of the grid does type y.
//
// Example: seeds 7, 4, 7 of a type whose list begins at 10, behind 5 seeds of other types, give
// node[10:13] = 7, 4, 7 and seed_of[10:13] = 5, 6, 7.
KERNEL(1) list_seeds(
    In<i64> seed,        // [n]: node ids, type by type
    In<i64> seed_start,  // [T + 1]: first seed of each type, which is also its first subgraph
    In<i64> node_start,  // [T]: first entry of each type's list
    i32 disjoint,        // 0 or 1
    Out<I> node,         // [capacity]
    Out<i32> seed_of     // [capacity]; [0] unless disjoint
) {
  const i64 type = blockIdx.y, first = seed_start[type], start = node_start[type];
  for (i64 i = thread_number(); i < seed_start[type + 1] - first; i += thread_count()) {
    node[start + i] = static_cast<I>(seed[first + i]);
    if (disjoint) seed_of[start + i] = static_cast<i32>(first + i);
  }
}

// Enters the nodes of all lists; of a duplicated seed the first place counts. Row y of the grid does
// type y. Serves the seeds, and the known nodes whenever the table or the window is a new one.
//
// Example: the list 7, 4, 7 gives the entries 7 -> base, 4 -> base + 1.
KERNEL(1) enter_nodes(
    In<I> node, In<i32> seed_of,  // [capacity]
    In<i64> node_start,           // [T]
    In<i64> node_end,             // [T]: nodes of each type
    In<i64> slot_base,            // [T + 1]: first table entry of each type
    In<i64> window,               // [3]: base, width, locals
    i32 disjoint,
    Out<u32> table                // [slots]
) {
  const Window entries = window_of(window);
  const i64 t = blockIdx.y, start = node_start[t], first = slot_base[t];
  const i64 slots = slot_base[t + 1] - first;
  // No edge is in the table yet, so the list stands in for the sources, which are never looked at.
  const Keys<I> keys{node, seed_of, start, node, seed_of, disjoint != 0};
  for (i64 i = thread_number(); i < node_end[t]; i += thread_count()) {
    const i64 v = node[start + i];
    if (kHashed) {
      const Key key{v, disjoint ? seed_of[start + i] : 0};
      enter_hashed(key, static_cast<u32>(i), table, first, slots, entries, keys);
    } else {
      atomicMin(&table[first + v], entries.base + static_cast<u32>(i));
    }
  }
}

// Enters the sources of a hop and remembers where each one is, so that it is looked up once.
//
// Example: known nodes 7, 4 (local 0, 1), sources 4, 9, 9, 2, locals = 8: the entries of 9 and 2
// become base + 8 + 1 and base + 8 + 3; that of 4 stays base + 1.
KERNEL(1) enter_edges(
    In<I> row,               // [edges]: global ids
    In<i32> group,           // [edges]; [0] unless disjoint
    In<i64> edge_ptr,        // [R + 1]: first edge of each relation
    In<i64> relations,       // [3, R]
    i64 num_relations,       // R
    In<I> node, In<i32> seed_of,  // [capacity]
    In<i64> node_start,      // [T]
    In<i64> slot_base,       // [T + 1]
    In<i64> window,          // [3]: base, width, locals
    i32 disjoint,
    Out<u32> table,          // [slots]
    Out<i64> slot            // [edges] out: the entry of each edge's source
) {
  const Window entries = window_of(window);
  const i64 edges = edge_ptr[num_relations];
  for (i64 e = thread_number(); e < edges; e += thread_count()) {
    const i64 src = relations[range_of(edge_ptr, 0, num_relations, e)];
    const i64 first = slot_base[src], v = row[e];
    const u32 x = entries.locals + static_cast<u32>(e);
    i64 found = first + v;
    if (kHashed) {
      const Keys<I> keys{node, seed_of, node_start[src], row, group, disjoint != 0};
      const Key key{v, disjoint ? group[e] : 0};
      found = enter_hashed(key, x, table, first, slot_base[src + 1] - first, entries, keys);
    } else {
      atomicMin(&table[found], entries.base + x);
    }
    slot[e] = found;
  }
}

// Flags the edges that are the first to a new node: those whose own number is in the table.
//
// Example: as above, flags 0, 1, 0, 1.
KERNEL(1) mark_first(
    In<u32> table,        // [slots]
    In<i64> slot,         // [edges]
    In<i64> edge_ptr,     // [R + 1]
    i64 num_relations,    // R
    In<i64> window,       // [3]: base, width, locals
    Out<i32> rank,        // [edges + 1] out: 0 or 1, before the scan
    Out<i64> run_sum      // [blocks] out
) {
  const Window entries = window_of(window);
  const Run run = run_of_block(edge_ptr[num_relations]);
  i64 sum = 0;
  for (i64 e = run.first + threadIdx.x; e < run.last; e += blockDim.x) {
    const i32 is_first = table[slot[e]] == entries.base + entries.locals + static_cast<u32>(e);
    rank[e] = is_first;
    sum += is_first;
  }
  store_run_sum(sum, run_sum);
}

// Counts the nodes after the hop and finds each relation's first new id, by one block: a thread a
// relation or a type looks at all relations before it.
//
// Example: two relations from type 0 with 2 and 1 new nodes after 5 known ones: new_base = [5, 7],
// and type 0 has 8 nodes. The next hop's items are the 3 new nodes, once for each relation into
// type 0.
KERNEL(1) count_new(
    In<i64> relations,      // [3, R]
    i64 num_relations,      // R
    i64 num_types,          // T
    In<i64> rank_at,        // [R + 1]: new nodes before each relation's first edge
    In<i64> known,          // [T]: nodes before the hop
    Out<i64> new_base,      // [R] out
    Out<i64> after,         // [T] out: nodes after the hop
    Out<i64> next_base      // [R + 1] out: first item of each relation in the next hop
) {
  for (i64 i = threadIdx.x; i < num_types + num_relations; i += blockDim.x) {
    const bool is_type = i < num_types;
    const i64 type = is_type ? i : static_cast<i64>(relations[i - num_types]);
    const i64 last = is_type ? num_relations : i - num_types;
    i64 count = known[type];
    for (i64 r = 0; r < last; ++r) {
      if (relations[r] == type) count += rank_at[r + 1] - rank_at[r];
    }
    if (is_type) {
      after[type] = count;
    } else {
      new_base[last] = count;
    }
  }
  __syncthreads();  // `after` is complete
  i64 carry = 0;
  for (i64 first = 0; first < num_relations; first += blockDim.x) {
    const i64 r = first + threadIdx.x;
    const i64 dst = r < num_relations ? static_cast<i64>(relations[num_relations + r]) : 0;
    const i64 items = r < num_relations ? after[dst] - known[dst] : 0;
    const Prefix prefix = block_prefix(items);
    if (r < num_relations) next_base[r] = carry + prefix.before;
    carry += prefix.all;
  }
  if (threadIdx.x == 0) next_base[num_relations] = carry;
}

// Gives every edge the local id of its source, appends the new nodes to their lists, and makes their
// table entries local ids. An entry that another thread is about to change says the same before and
// after: the first edge to the node has its rank, which gives its local id.
//
// Example: as above, label = 1, 2, 2, 3, the list grows to 7, 4, 9, 2 and the entries of 9 and 2
// become base + 2 and base + 3.
KERNEL(1) label_edges(
    In<I> row, In<i32> group,  // [edges]
    In<i64> slot,              // [edges]
    In<i32> rank,              // [edges + 1]: new nodes before each edge
    In<i64> rank_at,           // [R + 1]: the same before each relation
    In<i64> new_base,          // [R]
    In<i64> edge_ptr,          // [R + 1]
    In<i64> relations,         // [3, R]
    i64 num_relations,         // R
    In<i64> node_start,        // [T]
    In<i64> window,            // [3]: base, width, locals
    i32 disjoint,
    Out<I> node, Out<i32> seed_of,  // [capacity]
    Out<u32> table,            // [slots]
    Out<i32> label             // [edges] out
) {
  const Window entries = window_of(window);
  const i64 edges = edge_ptr[num_relations];
  for (i64 e = thread_number(); e < edges; e += thread_count()) {
    i64 local = atomic_read(&table[slot[e]]) - entries.base;
    if (local >= entries.locals) {
      const i64 first = local - entries.locals;  // the edge that found the node
      const i64 r = range_of(edge_ptr, 0, num_relations, first);
      local = new_base[r] + rank[first] - rank_at[r];
      if (first == e) {
        const i64 at = node_start[relations[r]] + local;
        node[at] = row[e];
        if (disjoint) seed_of[at] = group[e];
        atomic_write(&table[slot[e]], entries.base + static_cast<u32>(local));
      }
    }
    label[e] = static_cast<i32>(local);
  }
}
