// From the workspace of a batch to the tensors that the user keeps.
#include "common.cuh"
#include "scan.cuh"
#include "table.cuh"

// Collects the edges of one relation, which lie in one piece in each hop. Row y of the grid does
// hop y.
//
// Example: relation 1, two hops with edge_ptr [[0, 2, 3], [0, 1, 4]]: its edges are edge 2 of hop 0
// and the edges 1-3 of hop 1, four in all, written in this order.
template <class P, class M, class O>
__global__ void emit_edges(
    i64 relation,
    In<i64> edge_ptr,      // [hops, R + 1]: first edge of each relation in its hop
    i64 num_relations,     // R
    In<i64> hop_start,     // [hops]: first edge of each hop in the arrays below
    In<i32> label,         // [edges]: local id of the source
    In<i32> col,           // [edges]: local id of the destination
    In<P> position,        // [edges]: position in the CSC
    In<M> perm,            // [E]: position -> edge id; [0] where has_perm is 0
    i32 has_perm,          // 0: the edge id is the position minus edge_base
    i64 edge_base,         // first position of the relation
    i64 size,              // edges of the relation
    Out<O> edge_index,     // [2, size] out
    Out<i64> edge          // [size] out
) {
  const i64 hop = blockIdx.y, stride = num_relations + 1;
  i64 before = 0;
  for (i64 h = 0; h < hop; ++h) {
    before += edge_ptr[h * stride + relation + 1] - edge_ptr[h * stride + relation];
  }
  const i64 first = edge_ptr[hop * stride + relation];
  const i64 count = edge_ptr[hop * stride + relation + 1] - first;
  for (i64 i = thread_number(); i < count; i += thread_count()) {
    const i64 from = hop_start[hop] + first + i, to = before + i;
    edge_index[to] = static_cast<O>(label[from]);
    edge_index[size + to] = static_cast<O>(col[from]);
    const i64 at = position[from];
    edge[to] = has_perm ? static_cast<i64>(perm[at]) : at - edge_base;
  }
}

// The edges of one relation between sampled nodes, a warp a destination. Launched twice: with
// fill = 0 it counts, with fill = 1 it writes behind the counts' prefix sums, so that the two
// cannot disagree. Edges come by destination, then in CSC order; the copies of a duplicated seed
// each get all of its edges.
//
// Example: nodes 7, 4 (local 0, 1) with the lists 7: [4, 9] and 4: [4] give the counts 1, 1 and the
// edges 1 -> 0, 1 -> 1; node 9 was not sampled.
template <class P, class I, class M, class O, bool kHashed>
__global__ void induced_edges(
    In<P> indptr, In<I> indices,        // of the CSC
    In<M> perm, i32 has_perm, i64 edge_base,  // as in `emit_edges`
    i64 indptr_base,                    // of the relation
    i64 src, i64 dst,                   // node types of the relation
    In<I> node, In<i32> seed_of,        // [capacity]
    In<i64> node_start,                 // [T]
    In<i64> node_end,                   // [T]: nodes of each type
    In<i64> slot_base,                  // [T + 1]
    In<u32> table,                      // [slots]
    u32 base, u32 width, u32 locals, i32 disjoint,
    i32 fill,
    i64 size,                           // edges of the relation, when filling
    Out<i64> item_ptr,                  // [nodes + 1]: out when counting, else the prefix sums
    Out<O> edge_index,                  // [2, size] out when filling
    Out<i64> edge                       // [size] out when filling
) {
  const Window window{base, width, locals};
  const i64 start = node_start[src], first = slot_base[src];
  const i64 slots = slot_base[src + 1] - first;
  const Keys<I> keys{node, seed_of, start, node, seed_of, disjoint != 0};
  const u32 lane = threadIdx.x % kWarp;
  for (i64 i = thread_number() / kWarp; i < node_end[dst]; i += thread_count() / kWarp) {
    const i64 v = indptr_base + node[node_start[dst] + i], end = indptr[v + 1];
    const i32 subgraph = disjoint ? seed_of[node_start[dst] + i] : 0;
    i64 count = fill ? static_cast<i64>(item_ptr[i]) : 0;
    for (i64 round = indptr[v]; round < end; round += kWarp) {
      const i64 p = round + lane;
      i64 local = -1;
      if (p < end && kHashed) {
        local = find_hashed(Key{indices[p], subgraph}, table, first, slots, window, keys);
      } else if (p < end) {
        const u32 entry = table[first + indices[p]];
        local = window.holds(entry) ? static_cast<i64>(entry - base) : -1;
      }
      const u32 found = __ballot_sync(kAllLanes, local >= 0);
      if (fill && local >= 0) {
        const i64 to = count + __popc(found & ((1u << lane) - 1));
        edge_index[to] = static_cast<O>(local);
        edge_index[size + to] = static_cast<O>(i);
        edge[to] = has_perm ? static_cast<i64>(perm[p]) : p - edge_base;
      }
      count += __popc(found);
    }
    if (!fill && lane == 0) item_ptr[i] = count;
  }
}

// The sums of the blocks' runs, for `scan_runs`.
//
// Example: value [2, 0, 1], two blocks with runs [0, 2) and [2, 3): run_sum = [2, 1].
__global__ void sum_runs(
    In<i64> n_on_device,  // [1]: n
    In<i64> value,        // [n + 1]
    Out<i64> run_sum      // [blocks] out
) {
  const Run run = run_of_block(n_on_device[0]);
  i64 sum = 0;
  for (i64 i = run.first + threadIdx.x; i < run.last; i += blockDim.x) sum += value[i];
  store_run_sum(sum, run_sum);
}
