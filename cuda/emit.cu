// From the workspace of a batch to the tensors that the user keeps.
#include "common.cuh"
#include "scan.cuh"
#include "table.cuh"
#include "times.cuh"

using P = INSTANCE_P;  // positions in the CSC
using I = INSTANCE_I;  // node ids
using M = INSTANCE_M;  // edge ids
using O = INSTANCE_O;  // ids handed out
constexpr bool kHashed = INSTANCE_kHashed;  // see table.cuh

// Sorts the edges of a batch by relation: those of a relation lie in one piece in each hop, and are
// written one piece behind the other. Row y of the grid does hop y, whatever the number of relations.
//
// Example: two relations, two hops with edge_ptr [[0, 2, 3], [0, 1, 4]]: relation 0 has the edges 0, 1
// of hop 0 and edge 0 of hop 1, relation 1 has edge 2 of hop 0 and the edges 1-3 of hop 1. So in the
// output relation 0 has the places 0-2 and relation 1 the places 3-6, that of hop 0 first; edge_index
// holds 2 x 3 and then 2 x 4 ids.
KERNEL(1) emit_edges(
    In<i64> edge_ptr,      // [hops, R + 1]: first edge of each relation in its hop
    i64 num_relations,     // R
    In<i64> hop_start,     // [hops]: first edge of each hop in the arrays below
    In<i32> label,         // [edges]: local id of the source
    In<i32> col,           // [edges]: local id of the destination
    In<P> position,        // [edges]: position in the CSC
    In<M> perm,            // [E]: position -> edge id; [0] where has_perm is 0
    i32 has_perm,          // 0: the edge id is the position minus edge_base
    In<i64> edge_base,     // [R]: first position of each relation
    Out<O> edge_index,     // out: [2, size] of each relation, one behind the other
    Out<i64> edge          // out: [size] of each relation, likewise
) {
  const i64 hop = blockIdx.y, hops = gridDim.y, width = num_relations + 1, row = hop * width;
  const i64 count = edge_ptr[row + num_relations];
  for (i64 i = thread_number(); i < count; i += thread_count()) {
    const i64 r = range_of(edge_ptr, row, row + num_relations, i) - row;
    // The first edges of relation r, summed over the hops, are all edges of the relations before it.
    i64 first = 0, next = 0, earlier = 0;
    for (i64 h = 0; h < hops; ++h) {
      const i64 begin = edge_ptr[h * width + r], end = edge_ptr[h * width + r + 1];
      first += begin;
      next += end;
      earlier += h < hop ? end - begin : 0;
    }
    const i64 from = hop_start[hop] + i, to = earlier + i - edge_ptr[row + r], size = next - first;
    edge_index[2 * first + to] = static_cast<O>(label[from]);
    edge_index[2 * first + size + to] = static_cast<O>(col[from]);
    const i64 at = position[from];
    edge[first + to] = has_perm ? static_cast<i64>(perm[at]) : at - edge_base[r];
  }
}

// Copies the nodes of all types out, one type behind the other. Row y of the grid does type y.
//
// Example: two types with the lists 7, 4 and 3 give 7, 4, 3.
KERNEL(1) emit_nodes(
    In<I> node, In<i32> seed_of,  // [capacity]
    In<i64> node_start,           // [T]: first entry of each type's list
    In<i64> node_end,             // [T]: nodes of each type
    i32 disjoint,                 // 0 or 1
    Out<i64> node_id,             // [nodes] out
    Out<i64> group                // [nodes] out: their subgraphs; [0] unless disjoint
) {
  const i64 type = blockIdx.y, start = node_start[type];
  i64 first = 0;
  for (i64 t = 0; t < type; ++t) first += node_end[t];
  for (i64 i = thread_number(); i < node_end[type]; i += thread_count()) {
    node_id[first + i] = static_cast<i64>(node[start + i]);
    if (disjoint) group[first + i] = seed_of[start + i];
  }
}

// The edges between sampled nodes, a warp a destination; row y of the grid does relation y. Launched
// twice: with fill = 0 it counts, with fill = 1 it writes behind the counts' prefix sums, so that the
// two cannot disagree. Edges come by destination, then in CSC order; the copies of a duplicated seed
// each get all of its edges. With times, no edge is later than the seed of its subgraph.
//
// Example: nodes 7, 4 (local 0, 1) with the lists 7: [4, 9] and 4: [4] give the counts 1, 1 and the
// edges 1 -> 0, 1 -> 1; node 9 was not sampled.
KERNEL(1) induced_edges(
    In<P> indptr, In<I> indices,        // of the CSC
    In<M> perm, i32 has_perm, In<i64> edge_base,  // as in `emit_edges`
    In<i64> relations,                  // [3, R]: source type, destination type, indptr base
    i64 num_relations,                  // R
    In<I> node, In<i32> seed_of,        // [capacity]
    In<i64> node_start,                 // [T]
    In<i64> node_end,                   // [T]: nodes of each type
    In<i64> slot_base,                  // [T + 1]
    In<u32> table,                      // [slots]
    In<i64> window,                     // [3]: base, width, locals
    i32 disjoint,
    In<i64> time, In<i64> time_base, In<i64> seed_time,  // as in `plan_items`
    i32 fill,
    In<i64> item_start,                 // [R + 1]: each relation's places in item_ptr, one a node,
                                        // of which there may be more than nodes
    In<i64> edge_start,                 // [R + 1]: each relation's edges, when filling
    Out<i64> item_ptr,                  // [places + 1]: out when counting, else the prefix sums
    Out<O> edge_index, Out<i64> edge    // out when filling, as in `emit_edges`
) {
  const i64 r = blockIdx.y, src = relations[r], dst = relations[num_relations + r];
  const Window seen = window_of(window);
  const i64 start = node_start[src], slot = slot_base[src], slots = slot_base[src + 1] - slot;
  const Keys<I> keys{node, seed_of, start, node, seed_of, disjoint != 0};
  const u32 lane = threadIdx.x % kWarp;
  const i64 first = item_start[r], places = item_start[r + 1] - first, known = node_end[dst];
  const i64 edges = fill ? static_cast<i64>(edge_start[r]) : 0;
  const i64 size = fill ? edge_start[r + 1] - edges : 0;
  for (i64 i = thread_number() / kWarp; i < places; i += thread_count() / kWarp) {
    i64 count = fill ? static_cast<i64>(item_ptr[first + i]) : 0;
    if (i < known) {
      const i64 v = relations[2 * num_relations + r] + node[node_start[dst] + i];
      const i32 subgraph = disjoint ? seed_of[node_start[dst] + i] : 0;
      const i64 list = indptr[v];
      i64 end = indptr[v + 1];
      if (time_base[r] != kNoTime) {
        end = list + count_until(list, end - list, indices, time, time_base[r], seed_time[subgraph]);
      }
      for (i64 round = list; round < end; round += kWarp) {
        const i64 p = round + lane;
        i64 local = -1;
        if (p < end && kHashed) {
          local = find_hashed(Key{indices[p], subgraph}, table, slot, slots, seen, keys);
        } else if (p < end) {
          const u32 entry = table[slot + indices[p]];
          local = seen.holds(entry) ? static_cast<i64>(entry - seen.base) : -1;
        }
        const u32 found = __ballot_sync(kAllLanes, local >= 0);
        if (fill && local >= 0) {
          const i64 to = count + __popc(found & ((1u << lane) - 1));
          edge_index[edges + to] = static_cast<O>(local);
          edge_index[edges + size + to] = static_cast<O>(i);
          edge[to] = has_perm ? static_cast<i64>(perm[p]) : p - edge_base[r];
        }
        count += __popc(found);
      }
    }
    if (!fill && lane == 0) item_ptr[first + i] = count;
  }
}

// The sums of the blocks' runs, for `scan_runs`.
//
// Example: value [2, 0, 1], two blocks with runs [0, 2) and [2, 3): run_sum = [2, 1].
KERNEL(1) sum_runs(
    In<i64> n_on_device,  // [1]: n
    In<i64> value,        // [n + 1]
    Out<i64> run_sum      // [blocks] out
) {
  const Run run = run_of_block(n_on_device[0]);
  i64 sum = 0;
  for (i64 i = run.first + threadIdx.x; i < run.last; i += blockDim.x) sum += value[i];
  store_run_sum(sum, run_sum);
}
