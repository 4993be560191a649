// From the workspace of a batch to the tensors that the user keeps.
#include "exclude.cuh"
#include "scan.cuh"
#include "table.cuh"
#include "times.cuh"

using M = INSTANCE_M;  // edge ids
using O = INSTANCE_O;  // ids handed out

// The column of the user's `edge_index` that the edge at a position is.
__device__ inline i64 column_of(const Batch &batch, In<M> perm, i32 has_perm, i64 r, i64 at) {
  return has_perm ? static_cast<i64>(perm[at]) : at - batch.graph.edge_base[r];
}

// The padding of the edges of all relations, at sizes that were given; `real` gets how many are
// not padding. A thread counts the edges of a relation again for each place, hop by hop, as the
// hops are few.
//
// Example: a relation of 5 nodes, of which 3 are real, from a type to itself, has the 2 edges
// 1 -> 0 and 2 -> 0 and 5 places. Those that are left lead to the nodes 3, 3 and 4: 4 -> 3, 4 -> 3
// and 3 -> 4, with the row of the first edge and the id -1.
__device__ inline void pad_edges(
    const Batch &batch, i32 hops, In<M> perm, i32 has_perm, In<i64> node_room, In<i64> edge_room,
    Out<O> edge_index, Out<i64> edge, Out<i64> row, Out<i64> real
) {
  const Graph &graph = batch.graph;
  const i64 relations = graph.num_relations, places = edge_room[relations];
  const Out<i64> nodes = batch.nodes.node_ptr + (hops + 1) * graph.num_types;
  for (i64 i = thread_number(); i < places + relations; i += thread_count()) {
    const i64 r = i < places ? range_of(edge_room, 0, relations, i) : i - places;
    i64 count = 0, first = -1;
    for (i64 h = 0; h < hops; ++h) {
      const i64 at = h * (relations + 1) + r;
      const i64 begin = batch.edges.edge_ptr[at], found = batch.edges.edge_ptr[at + 1] - begin;
      if (first < 0 && found > 0) first = batch.edges.position[batch.edges.hop_start[h] + begin];
      count += found;
    }
    if (i >= places) {
      real[r] = count;
      continue;
    }
    const i64 start = edge_room[r], size = edge_room[r + 1] - start, to = i - start;
    if (to < count) continue;
    const i64 src = graph.relations[r], dst = graph.relations[relations + r];
    const i64 sources = node_room[src + 1] - node_room[src] - nodes[src];
    const i64 destinations = node_room[dst + 1] - node_room[dst] - nodes[dst];
    // A batch that does not fit is made again: nobody looks at these numbers.
    const i64 place = (to - count) * destinations / (size - count);
    const i64 source = (place + 1) % (sources > 0 ? sources : 1);
    edge_index[2 * start + to] = static_cast<O>(nodes[src] + source);
    edge_index[2 * start + size + to] = static_cast<O>(nodes[dst] + place);
    edge[i] = -1;
    row[i] = count > 0 ? column_of(batch, perm, has_perm, r, first) : 0;
  }
}

// Sorts the edges of a batch by relation: those of a relation lie in one piece in each hop, and are
// written one piece behind the other. Row y of the grid does hop y, whatever the number of
// relations; at sizes that were given, one more row does the padding, and edges that have no place
// are left out.
//
// Example: two relations, two hops with edge_ptr [[0, 2, 3], [0, 1, 4]]: relation 0 has the edges
// 0, 1 of hop 0 and edge 0 of hop 1, relation 1 has edge 2 of hop 0 and the edges 1-3 of hop 1. So
// in the output relation 0 has the places 0-2 and relation 1 the places 3-6, that of hop 0 first;
// edge_index holds 2 x 3 and then 2 x 4 ids. At the sizes 5 and 4, edge_room = [0, 5, 9], they have
// the places 0-2 and 5-8, and 3 and 4 are padding.
KERNEL(4) emit_edges(
    Descriptor<Batch> batch,
    i32 hops,            // that were sampled
    In<M> perm,          // [E]: position -> edge id; [0] where has_perm is 0
    i32 has_perm,        // 0: the edge id is the position minus edge_base
    i32 padded,          // 1: to sizes that were given; 0: there are as many places as edges
    In<i64> node_room,   // [T + 1]: first place of each type's nodes; [0] unless padded
    In<i64> edge_room,   // [R + 1]: first place of each relation; [0] unless padded
    Out<O> edge_index,   // out: [2, size] of each relation, one behind the other
    Out<i64> edge,       // out: [size] of each relation, likewise; -1 in padding
    Out<i64> row,        // out: the same with ids in padding, too; [0] unless padded
    Out<i64> real        // [R] out: how many are not padding; [0] unless padded
) {
  if (blockIdx.y == hops) {
    return pad_edges(*batch, hops, perm, has_perm, node_room, edge_room, edge_index, edge, row,
                     real);
  }
  const Hop hop = hop_of(*batch, blockIdx.y);
  const Out<i64> edge_ptr = batch->edges.edge_ptr;
  const i64 relations = batch->graph.num_relations, count = hop.edge_ptr[relations];
  for (i64 i = thread_number(); i < count; i += thread_count()) {
    const i64 r = range_of(hop.edge_ptr, 0, relations, i);
    // The first edges of relation r, summed over the hops, are all edges of the relations before
    // it.
    i64 first = 0, next = 0, earlier = 0;
    for (i64 h = 0; h < hops; ++h) {
      const i64 at = h * (relations + 1) + r, begin = edge_ptr[at], end = edge_ptr[at + 1];
      first += begin;
      next += end;
      earlier += h < hop.number ? end - begin : 0;
    }
    if (padded) {
      first = edge_room[r];
      next = edge_room[r + 1];
    }
    const i64 to = earlier + i - hop.edge_ptr[r], size = next - first;
    if (to >= size) continue;
    edge_index[2 * first + to] = static_cast<O>(hop.label[i]);
    edge_index[2 * first + size + to] = static_cast<O>(hop.col[i]);
    const i64 id = column_of(*batch, perm, has_perm, r, hop.position[i]);
    edge[first + to] = id;
    if (padded) row[first + to] = id;
  }
}

// Copies the nodes of all types out, one type behind the other. Row y of the grid does type y. At
// sizes that were given, padding comes behind the nodes of each type, and nodes that have no place
// are left out.
//
// Example: two types with the lists 7, 4 and 3 give 7, 4, 3. At the sizes 3 and 2, node_room =
// [0, 3, 5], they give the ids 7, 4, -1, 3, -1, the rows 7, 4, 7, 3, 3 and real = [2, 1].
KERNEL(4) emit_nodes(
    Descriptor<Batch> batch,
    i32 hops,            // that were sampled
    i32 padded, In<i64> node_room,  // as in `emit_edges`
    Out<i64> node_id,    // [nodes] out; -1 in padding
    Out<i64> row,        // [nodes] out: the same with the first id in padding; [0] unless padded
    Out<i64> subgraph,   // [nodes] out; [0] unless disjoint
    Out<i64> real        // [T] out: how many are not padding; [0] unless padded
) {
  const i64 types = batch->graph.num_types;
  const i64 type = blockIdx.y, start = batch->nodes.node_start[type];
  const Out<i64> count = batch->nodes.node_ptr + (hops + 1) * types;
  const i64 known = count[type];
  i64 first = 0, size = known;
  for (i64 t = 0; t < type; ++t) first += count[t];
  if (padded) {
    first = node_room[type];
    size = node_room[type + 1] - first;
    if (thread_number() == 0) real[type] = known;
  }
  const i64 seeds = batch->nodes.seed_start[types];  // the subgraph of padding
  for (i64 i = thread_number(); i < size; i += thread_count()) {
    const bool is_real = i < known;
    const i64 at = start + (is_real ? i : 0);
    const i64 id = known > 0 ? static_cast<i64>(batch->nodes.node[at]) : 0;
    node_id[first + i] = is_real ? id : -1;
    if (padded) row[first + i] = id;
    if (batch->graph.disjoint) {
      subgraph[first + i] = is_real ? static_cast<i64>(batch->nodes.seed_of[at]) : seeds;
    }
  }
}

// The edges between sampled nodes, a warp a destination; row y of the grid does relation y.
// Launched twice: with fill = 0 it counts, with fill = 1 it writes behind the counts' prefix sums,
// so that the two cannot disagree. Edges come by destination, then in CSC order; the copies of a
// duplicated seed each get all of its edges. With times, no edge is outside of what the seed of its
// subgraph may see, and none is excluded.
//
// Example: nodes 7, 4 (local 0, 1) with the lists 7: [4, 9] and 4: [4] give the counts 1, 1 and the
// edges 1 -> 0, 1 -> 1; node 9 was not sampled.
KERNEL(4) induced_edges(
    Descriptor<Batch> batch,
    In<M> perm, i32 has_perm,  // as in `emit_edges`
    i32 hops,                  // that were sampled
    i32 fill,
    In<i64> item_start,        // [R + 1]: each relation's places in item_ptr, one a node, of which
                               // there may be more than nodes
    In<i64> edge_start,        // [R + 1]: each relation's edges, when filling
    Out<i64> item_ptr,         // [places + 1]: out when counting, else the prefix sums
    Out<O> edge_index, Out<i64> edge  // out when filling, as in `emit_edges`
) {
  const Graph &graph = batch->graph;
  const Nodes &nodes = batch->nodes;
  const i64 relations = graph.num_relations;
  const i64 r = blockIdx.y, src = graph.relations[r], dst = graph.relations[relations + r];
  const Window seen = window_of(batch->table.window);
  const i64 slot = batch->table.slot_base[src];
  const u32 lane = threadIdx.x % kWarp;
  const i64 first = item_start[r], places = item_start[r + 1] - first;
  const i64 known = nodes.node_ptr[(hops + 1) * graph.num_types + dst];
  const i64 edges = fill ? static_cast<i64>(edge_start[r]) : 0;
  const i64 size = fill ? edge_start[r + 1] - edges : 0;
  for (i64 i = thread_number() / kWarp; i < places; i += thread_count() / kWarp) {
    i64 count = fill ? static_cast<i64>(item_ptr[first + i]) : 0;
    if (i < known) {
      const i64 v = graph.relations[2 * relations + r] + nodes.node[nodes.node_start[dst] + i];
      const i32 subgraph =
          graph.disjoint ? static_cast<i32>(nodes.seed_of[nodes.node_start[dst] + i]) : 0;
      const i64 list = graph.indptr[v];
      Span span{list, graph.indptr[v + 1] - list};
      if (graph.time_base[r] != kNoTime) {
        span = span_of(*batch, r, span.start, span.degree, subgraph);
      }
      Excluded excluded{0, 0};
      if (graph.excluding) excluded = excluded_of(*batch, subgraph, span.start, span.degree);
      const i64 end = span.start + span.degree;
      for (i64 round = span.start; round < end; round += kWarp) {
        const i64 p = round + lane;
        const bool may_be = p < end && !is_excluded(*batch, p, excluded);
        i64 local = -1;
        if (may_be && kHashed) {
          local = find_hashed(*batch, src, Key{graph.indices[p], subgraph}, seen);
        } else if (may_be) {
          const u32 entry = batch->table.table[slot + graph.indices[p]];
          local = seen.holds(entry) ? static_cast<i64>(entry - seen.base) : -1;
        }
        const u32 found = __ballot_sync(kAllLanes, local >= 0);
        if (fill && local >= 0) {
          const i64 to = count + __popc(found & ((1u << lane) - 1));
          edge_index[edges + to] = static_cast<O>(local);
          edge_index[edges + size + to] = static_cast<O>(i);
          edge[to] = column_of(*batch, perm, has_perm, r, p);
        }
        count += __popc(found);
      }
    }
    if (!fill && lane == 0) item_ptr[first + i] = count;
  }
}

// The sums of the blocks' runs, for `scan_places`.
//
// Example: value [2, 0, 1], two blocks with runs [0, 2) and [2, 3): run_sum = [2, 1].
KERNEL(4) sum_runs(
    In<i64> n_on_device,  // [1]: n
    In<i64> value,        // [n + 1]
    Out<i64> run_sum      // [blocks] out
) {
  const Run run = run_of_block(n_on_device[0]);
  i64 sum = 0;
  for (i64 i = run.first + threadIdx.x; i < run.last; i += blockDim.x) sum += value[i];
  store_run_sum(sum, run_sum);
}

// The first edge of each place, and of each relation.
//
// Example: value [2, 0, 1, .], relations from the places 0 and 2 on: value becomes [0, 2, 2, 3],
// and edge_start [0, 2, 3].
KERNEL(4) scan_places(
    Out<i64> run_sum,     // [blocks]: sum of each block's run
    In<i64> item_start,   // [places]: the first of each relation, and their number
    i64 places,
    Out<i64> value,       // [n + 1]
    Out<i64> edge_start   // [places] out
) {
  scan_runs(item_start[places - 1], value, run_sum, item_start, places, edge_start);
}
