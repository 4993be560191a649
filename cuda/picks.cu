// A hop whose edges, or some of them, are decided elsewhere: nodes that draw nothing, and picks that
// another workspace or another law has drawn. The steps before and behind are those of sample.cu
// and relabel.cu.
#include "items.cuh"
#include "scan.cuh"

// Leaves nothing to draw from of some nodes of one type, and the sum of each block's run for
// `scan_items`. Comes behind `plan_items`, with the same grid; once for each type that has such
// nodes.
//
// Example: items of 2, 3 and 1 edges, of the nodes 7, 4 and 9: if 4 is skipped, item_ptr =
// [2, 0, 1, .].
KERNEL(4) skip_items(
    Descriptor<Batch> batch, i32 hop,
    i32 type,     // in [0, T)
    In<u8> skip   // [N_t]: 1 where a node draws nothing, else 0
) {
  const Hop at = hop_of(*batch, hop);
  const Nodes &nodes = batch->nodes;
  const Items &items = batch->items;
  const i64 relations = batch->graph.num_relations;
  const Run run = run_of_block(at.item_base[relations]);
  i64 sum = 0;
  for (i64 item = run.first + threadIdx.x; item < run.last; item += blockDim.x) {
    const i64 r = range_of(at.item_base, 0, relations, item);
    const i64 dst = batch->graph.relations[relations + r];
    const i64 place = nodes.node_start[dst] + at.expanded[dst] + item - at.item_base[r];
    if (dst == type && skip[nodes.node[place]]) {
      items.item_degree[item] = 0;
      items.item_ptr[item] = 0;
    }
    sum += items.item_ptr[item];
  }
  store_run_sum(sum, batch->edges.run_sum);
}

// Limits the items of a hop, of which `plan_items` has noted whole lists, to so many edges each; with
// `recent` they are the latest. Leaves the sum of each block's run for `scan_items`.
//
// Example: lists of the times 3, 5, 9 from position 10 on, and a count of 2: item_ptr = [2, .], and
// with `recent` the item has start 11 and degree 2.
KERNEL(4) limit_items(
    Descriptor<Batch> batch, i32 hop,
    In<i64> count  // [items], each in [0, the item's degree]
) {
  const Hop at = hop_of(*batch, hop);
  const Graph &graph = batch->graph;
  const Items &items = batch->items;
  const Run run = run_of_block(at.item_base[graph.num_relations]);
  i64 sum = 0;
  for (i64 item = run.first + threadIdx.x; item < run.last; item += blockDim.x) {
    const i64 r = range_of(at.item_base, 0, graph.num_relations, item), k = count[item];
    if (graph.recent && graph.time_base[r] != kNoTime) {
      Span span{items.item_start[item], items.item_degree[item]};
      Excluded excluded{0, 0};
      if (graph.excluding) {
        excluded = {items.item_excluded[2 * item], items.item_excluded[2 * item + 1]};
      }
      keep_latest(*batch, k, span, excluded);
      items.item_start[item] = span.start;
      items.item_degree[item] = k;
      if (graph.excluding) items.item_excluded[2 * item] = excluded.first;
    }
    items.item_ptr[item] = k;
    sum += k;
  }
  store_run_sum(sum, batch->edges.run_sum);
}

// Takes the number of edges of every item, and leaves the sum of each block's run for `scan_items`.
//
// Example: counts 2, 0 and 1 give item_ptr = [2, 0, 1, .].
KERNEL(4) enter_counts(
    Descriptor<Batch> batch, i32 hop,
    In<i32> count  // [items], each at least 0
) {
  const Run run = run_of_block(hop_of(*batch, hop).item_base[batch->graph.num_relations]);
  i64 sum = 0;
  for (i64 item = run.first + threadIdx.x; item < run.last; item += blockDim.x) {
    batch->items.item_ptr[item] = count[item];
    sum += count[item];
  }
  store_run_sum(sum, batch->edges.run_sum);
}

// Writes the edges of a hop, whose items `scan_items` has given their first edges. As many are
// written as `edges` says, whatever the counts.
//
// Example: counts 2, 0, 1 of the local ids 5, 6, 7 and sources 9, 4, 9 give row = [9, 4, 9] and
// col = [5, 5, 7].
KERNEL(4) enter_picks(
    Descriptor<Batch> batch, i32 hop,
    i64 edges,       // the sum of the counts
    In<I> source,    // [edges], ids within the relation's source type
    In<P> position   // [edges], in the CSC
) {
  const Hop at = hop_of(*batch, hop);
  const Nodes &nodes = batch->nodes;
  const i64 relations = batch->graph.num_relations, items = at.item_base[relations];
  for (i64 edge = thread_number(); edge < edges; edge += thread_count()) {
    const i64 item = range_of(batch->items.item_ptr, 0, items, edge);
    const i64 r = range_of(at.item_base, 0, relations, item);
    const i64 dst = batch->graph.relations[relations + r];
    const i64 local = at.expanded[dst] + item - at.item_base[r];
    batch->edges.row[edge] = source[edge];
    at.col[edge] = static_cast<i32>(local);
    at.position[edge] = position[edge];
    if (batch->graph.disjoint) {
      batch->edges.group[edge] = nodes.seed_of[nodes.node_start[dst] + local];
    }
  }
}
