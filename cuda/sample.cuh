// The steps of one hop of neighbour sampling. The work is a list of items, one for each (relation,
// frontier node of the relation's destination type), relation by relation: `plan_items` counts the
// edges of each, and one of the `sample_*` for each kind of fan-out fills them; where a relation
// has weights, those of weighted.cu do, unless all neighbours are taken. All counts stay on the
// device.
//
// A step is done by all blocks of a launch. Kernels of their own run them on many blocks; one block
// runs a small hop's steps one behind the other in `sample_small` (small.cu).
#pragma once
#include "items.cuh"
#include "scan.cuh"

namespace step {

// How many of a list's weights from position `start` on are positive, counting no further than
// `enough`: on most lists this reads no more weights than there are edges to draw. The list has
// `degree` edges and the excluded ones, whose weights do not count.
//
// Example: weights 0, 2, 0, 1, 7 and enough 2 give 2, and the 7 is not looked at.
__device__ inline i64 count_positive(const Batch &batch, i64 start, i64 degree, i64 enough,
                                     const Excluded &excluded) {
  i64 found = 0, skip = excluded.first;
  for (i64 p = start; p < start + degree + excluded.size() && found < enough; ++p) {
    if (skip < excluded.last && batch.nodes.excluded[skip] == p) {
      ++skip;
    } else {
      found += batch.graph.weight[p] > 0.0;
    }
  }
  return found;
}

// Counts the edges of every item of a hop, and returns the sum over the items of the thread.
//
// With times, an item holds the edges that are no later than the seed of its node, or with `recent`
// those from the last fan-out ones on that can be drawn. Excluded edges are no part of it. With
// weights, only edges of positive weight can be drawn.
//
// Example: fan-out 2 and frontier nodes of degree 3, 0 and 1 give item_ptr = [2, 0, 1, .]. If the
// first one's list begins at 10 with the times 3, 5, 9, and its seed has the time 6, its item has
// start 10 and degree 2.
__device__ inline i64 plan_items(const Batch &batch, const Hop &hop) {
  const Graph &graph = batch.graph;
  const Items &items = batch.items;
  const i64 relations = graph.num_relations;
  const Run run = run_of_block(hop.item_base[relations]);
  i64 sum = 0;
  for (i64 item = run.first + threadIdx.x; item < run.last; item += blockDim.x) {
    const i64 r = range_of(hop.item_base, 0, relations, item);
    const i64 dst = graph.relations[relations + r], k = hop.fanout[r];
    const i64 at = batch.nodes.node_start[dst] + hop.expanded[dst] + item - hop.item_base[r];
    const i64 v = graph.relations[2 * relations + r] + batch.nodes.node[at];
    const i64 list = graph.indptr[v];
    Span span{list, graph.indptr[v + 1] - list};
    const bool timed = graph.time_base[r] != kNoTime;
    if (timed) {
      span = span_of(batch, r, span.start, span.degree, batch.nodes.seed_of[at]);
    }
    Excluded excluded{0, 0};
    // Where subgraphs share their nodes, only seeds have excluded edges, and hop 0 expands them.
    if (graph.excluding && (graph.disjoint || hop.number == 0)) {
      const i32 subgraph = graph.disjoint ? static_cast<i32>(batch.nodes.seed_of[at]) : 0;
      excluded = excluded_of(batch, subgraph, span.start, span.degree);
      span.degree -= excluded.size();
    }
    if (timed && graph.recent && k >= 0 && k < span.degree) {
      if (graph.weighted[r]) {
        keep_latest_drawable(batch, k, span, excluded);
      } else {
        keep_latest(batch, k, span, excluded);
      }
    }
    i64 edges = span.degree;
    if (k >= 0) {
      if (graph.weighted[r]) {
        items.item_low[item] =
            span.start > list ? static_cast<f64>(graph.cumulative[span.start - 1]) : 0.0;
        edges = count_positive(batch, span.start, span.degree, k, excluded);
      }
      edges = graph.replace && edges > 0 ? k : minimum(k, edges);
    }
    if (graph.excluding) {
      items.item_excluded[2 * item] = excluded.first;
      items.item_excluded[2 * item + 1] = excluded.last;
    }
    items.item_start[item] = span.start;
    items.item_degree[item] = span.degree;
    items.item_ptr[item] = edges;
    sum += edges;
  }
  return sum;
}

// Turns the items' numbers of edges into first edges, of items and of relations.
__device__ inline void scan_items(const Batch &batch, const Hop &hop) {
  const i64 relations = batch.graph.num_relations;
  scan_runs(hop.item_base[relations], batch.items.item_ptr, batch.edges.run_sum, hop.item_base,
            relations + 1, hop.edge_ptr);
}

// Lane j's pick out of [0, degree) for slot j < k, every k-subset equally likely, k <= lanes.
//
// Method: Floyd's algorithm (Bentley and Floyd, "A Sample of Brilliance", CACM 30(9), 1987): slot j
// draws t_j from [0, degree - k + j]; if t_j was picked before, it takes top_j = degree - k + j.
// In step order, t_j was picked before if and only if an earlier slot drew it too (then that slot
// or a still earlier one holds it), or t_j is top_i of an earlier slot i that had to take it. The
// first is one match over the lanes; the second asks one other lane, and is repeated until no lane
// changes, which takes as many rounds as the longest such chain: mostly one.
//
// Example: degree 5, k 3, draws 1, 1, 4: slot 1 repeats a draw and takes 3; slot 2 drew 4. The
// picks are 1, 3, 4. With draws 1, 1, 3 slot 2 finds that slot 1 took 3, and takes 4.
__device__ inline u32 floyd_pick(u32 degree, u32 k, u32 lane, u32 lanes, u32 group_mask,
                                 const Stream &stream) {
  const bool active = lane < k;
  const u32 top = degree - k + lane;
  const u32 drawn = active ? draw_below(stream, lane, top + 1) : 0;
  const u32 shift = (threadIdx.x % kWarp) & ~(lanes - 1);  // lane 0 of the sub-warp
  const u32 before = (1u << lane) - 1;                      // lanes of lower slots
  // Lanes without a slot draw the same 0 as one another, but stand above every slot.
  const u32 same = __match_any_sync(group_mask, drawn) >> shift;
  bool taken = active && (same & before) != 0;
  const bool may_chain = active && drawn >= degree - k && drawn < top;
  const u32 asked = may_chain ? drawn - (degree - k) : 0;
  for (u32 known = 0;;) {
    const u32 all_taken = __ballot_sync(group_mask, taken) >> shift;
    if (all_taken == known) break;
    known = all_taken;
    taken = taken || (may_chain && (all_taken >> asked & 1));
  }
  return taken ? top : drawn;
}

// Samples the items whose fan-out is in [0, lanes], without replacement, a sub-warp an item.
// Reads the picked positions of a list and no others, so a hub costs as much as any node.
//
// lanes: 8, 16 or 32.
//
// Example: lanes 8, fan-out 3: lanes 0-7 of a warp sample item 0, lanes 8-15 item 1, and so on; in
// each sub-warp the lanes 0-2 write one edge.
__device__ inline void sample_floyd(const Batch &batch, const Hop &hop, i32 lanes) {
  const i64 relations = batch.graph.num_relations;
  const i64 items = hop.item_base[relations], groups = thread_count() / lanes;
  const u32 lane = threadIdx.x % lanes, mask = subwarp_mask(lanes);
  for (i64 number = thread_number() / lanes; number < items; number += groups) {
    const i64 r = range_of(hop.item_base, 0, relations, number), k = hop.fanout[r];
    if (batch.graph.weighted[r] || k < 0 || k > lanes) continue;  // the whole sub-warp
    const Item item = item_at(batch, hop, number, r);
    u32 pick = lane;
    if (item.size < item.degree && item.size > 0) {
      pick = floyd_pick(static_cast<u32>(item.degree), static_cast<u32>(item.size), lane, lanes,
                        mask, stream_of(batch, hop, item));
    }
    if (lane < item.size) {
      put_edge(batch, hop, item, item.first + lane, place_of(batch, item, pick));
    }
  }
}

// Samples every item with a fan-out k >= 0 with replacement: slot j is an independent uniform draw.
// A sub-warp of `lanes` lanes an item; fan-outs above that take several rounds.
//
// Example: a list of 3 and draws 2, 0, 2 give its last, first and last neighbour.
__device__ inline void sample_replace(const Batch &batch, const Hop &hop, i32 lanes) {
  const i64 relations = batch.graph.num_relations;
  const i64 items = hop.item_base[relations], groups = thread_count() / lanes;
  for (i64 number = thread_number() / lanes; number < items; number += groups) {
    const i64 r = range_of(hop.item_base, 0, relations, number);
    if (batch.graph.weighted[r] || hop.fanout[r] < 0) continue;
    const Item item = item_at(batch, hop, number, r);
    const Stream stream = stream_of(batch, hop, item);
    for (i64 slot = threadIdx.x % lanes; slot < item.size; slot += lanes) {
      const u32 pick = draw_below(stream, static_cast<u32>(slot), static_cast<u32>(item.degree));
      put_edge(batch, hop, item, item.first + slot, place_of(batch, item, pick));
    }
  }
}

}  // namespace step
