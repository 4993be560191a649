// One hop of neighbour sampling. The work is a list of items, one for each (relation, frontier node
// of the relation's destination type), relation by relation: `plan_items` counts the edges of each,
// and one `sample_*` kernel for each kind of fan-out fills them; where a relation has weights, those
// of weighted.cu do, unless all neighbours are taken. All counts stay on the device.
#include "common.cuh"
#include "items.cuh"
#include "philox.cuh"
#include "scan.cuh"
#include "times.cuh"

using P = INSTANCE_P;  // positions in the CSC
using I = INSTANCE_I;  // node ids

constexpr u32 kEmptySlot = 0xFFFFFFFFu;
constexpr i32 kMaxRegisterFanout = kWarp;  // larger fan-outs keep their picks in a hash table

// How many of the weights at [start, start + degree) are positive, counting no further than `enough`:
// on most lists this reads no more weights than there are edges to draw.
//
// Example: weights 0, 2, 0, 1, 7 and enough 2 give 2, and the 7 is not looked at.
__device__ inline i64 count_positive(In<f64> weight, i64 start, i64 degree, i64 enough) {
  i64 found = 0;
  for (i64 p = start; p < start + degree && found < enough; ++p) found += weight[p] > 0.0;
  return found;
}

// Counts the edges of every item of a hop and leaves the sum of each block's run for `scan_runs`.
//
// With times an item is what lies in the past of its node's seed, or with `recent` the last fan-out
// neighbours of that. With weights only neighbours of positive weight can be drawn.
//
// Example: fan-out 2 and frontier nodes of degree 3, 0 and 1 give item_ptr = [2, 0, 1, .]. If the
// first one's list begins at 10 with the times 3, 5, 9, and its seed has the time 6, its item has
// start 10 and degree 2.
KERNEL(1) plan_items(
    In<P> indptr,         // [sum_r (N_r + 1)]
    In<I> node,           // [capacity]: the node lists of all types
    In<i64> node_start,   // [T]: first entry of each type's list
    In<i64> node_ptr,     // [T]: nodes of each type that earlier hops have expanded
    In<i64> relations,    // [3, R]: source type, destination type, indptr base
    In<i64> fanout,       // [R]
    In<i64> item_base,    // [R + 1]: first item of each relation
    i64 num_relations,    // R
    i32 replace,          // 0 or 1
    In<I> indices,        // [E]; read only with times of nodes
    In<i64> time,         // of all nodes [sum_t N_t] or of all edges by position [E]; [0] without
    In<i64> time_base,    // [R]: first entry of the source type in `time`, kEdgeTime or kNoTime
    i32 recent,           // 0 or 1: the latest neighbours and not any in the past
    In<i32> seed_of,      // [capacity]; [0] unless disjoint, which times imply
    In<i64> seed_time,    // [seeds]; [0] without times
    In<i64> weighted,     // [R]: 0 or 1
    In<f64> weight,       // [E], each >= 0 and finite; [0] without weights
    In<f64> cumulative,   // [E]: running sums of `weight` within each list; [0] without weights
    Out<f64> item_low,    // [items] out: weight of the list before the item; [0] without weights
    Out<i64> item_start,  // [items] out: first position that may be taken
    Out<i64> item_degree, // [items] out: how many positions may be taken
    Out<i64> item_ptr,    // [items + 1] out: number of edges, before the scan
    Out<i64> run_sum      // [blocks] out
) {
  const Run run = run_of_block(item_base[num_relations]);
  i64 sum = 0;
  for (i64 item = run.first + threadIdx.x; item < run.last; item += blockDim.x) {
    const i64 r = range_of(item_base, 0, num_relations, item);
    const i64 dst = relations[num_relations + r], k = fanout[r];
    const i64 at = node_start[dst] + node_ptr[dst] + item - item_base[r];
    const i64 v = relations[2 * num_relations + r] + node[at];
    const i64 list = indptr[v];
    i64 start = list, degree = indptr[v + 1] - list;
    if (time_base[r] != kNoTime) {
      degree = count_until(start, degree, indices, time, time_base[r], seed_time[seed_of[at]]);
      if (recent && k >= 0 && k < degree) {
        start += degree - k;
        degree = k;
      }
    }
    i64 edges = degree;
    if (k >= 0) {
      if (weighted[r]) {
        item_low[item] = start > list ? cumulative[start - 1] : 0.0;
        edges = count_positive(weight, start, degree, k);
      }
      edges = replace && edges > 0 ? k : minimum(k, edges);
    }
    item_start[item] = start;
    item_degree[item] = degree;
    item_ptr[item] = edges;
    sum += edges;
  }
  store_run_sum(sum, run_sum);
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
// Example: degree 5, k 3, draws 1, 1, 4: slot 1 repeats a draw and takes 3; slot 2 drew 4. The picks
// are 1, 3, 4. With draws 1, 1, 3 slot 2 finds that slot 1 took 3, and takes 4.
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
// Example: lanes 8, fan-out 3: lanes 0-7 of a warp sample item 0, lanes 8-15 item 1, and so on; in
// each sub-warp the lanes 0-2 write one edge.
KERNEL(1) sample_floyd(
    In<I> indices,        // [E]
    In<i64> node_start,   // [T]
    In<i64> node_ptr,     // [T]: local id of the first frontier node
    In<i32> seed_of,      // [capacity]; [0] unless disjoint
    In<i64> relations,    // [3, R]
    In<i64> fanout,       // [R]
    In<i64> item_base,    // [R + 1]
    In<i64> item_start,   // [items]
    In<i64> item_degree,  // [items]
    In<i64> item_ptr,     // [items + 1]
    i64 num_relations,    // R
    In<i64> weighted,     // [R]: 1 if weighted.cu draws for the relation, else 0
    i32 hop,              // in [0, 255]
    In<i64> key,          // [2]: the batch's, low word first
    i32 disjoint,         // 0 or 1
    i32 lanes,            // 8, 16 or 32
    Out<I> row, Out<i32> col, Out<P> position, Out<i32> group  // [edges] out
) {
  Edges<P, I> edges{indices, row, col, position, group};
  const i64 items = item_base[num_relations], groups = thread_count() / lanes;
  const u32 lane = threadIdx.x % lanes, mask = subwarp_mask(lanes);
  for (i64 number = thread_number() / lanes; number < items; number += groups) {
    const i64 r = range_of(item_base, 0, num_relations, number);
    if (weighted[r] || fanout[r] < 0 || fanout[r] > lanes) continue;  // the whole sub-warp
    const Item item = item_at(number, r, num_relations, node_start, node_ptr, relations, item_base,
                              item_start, item_degree, item_ptr, seed_of, disjoint);
    u32 pick = lane;
    if (item.size < item.degree && item.size > 0) {
      const Stream stream = stream_of(item.local, hop, r, key);
      pick = floyd_pick(static_cast<u32>(item.degree), static_cast<u32>(item.size), lane, lanes, mask,
                        stream);
    }
    if (lane < item.size) {
      edges.put(item.first + lane, item.start + pick, item.local, disjoint, item.subgraph);
    }
  }
}

// Samples every item with a fan-out k >= 0 with replacement: slot j is an independent uniform draw.
// A sub-warp an item; fan-outs above `lanes` take several rounds.
//
// Example: a list of 3 and draws 2, 0, 2 give its last, first and last neighbour.
KERNEL(1) sample_replace(
    In<I> indices, In<i64> node_start, In<i64> node_ptr, In<i32> seed_of, In<i64> relations,
    In<i64> fanout, In<i64> item_base, In<i64> item_start, In<i64> item_degree, In<i64> item_ptr,
    i64 num_relations, In<i64> weighted, i32 hop, In<i64> key, i32 disjoint,
    i32 lanes,  // as in `sample_floyd`
    Out<I> row, Out<i32> col, Out<P> position, Out<i32> group  // [edges] out
) {
  Edges<P, I> edges{indices, row, col, position, group};
  const i64 items = item_base[num_relations], groups = thread_count() / lanes;
  for (i64 number = thread_number() / lanes; number < items; number += groups) {
    const i64 r = range_of(item_base, 0, num_relations, number);
    if (weighted[r] || fanout[r] < 0) continue;
    const Item item = item_at(number, r, num_relations, node_start, node_ptr, relations, item_base,
                              item_start, item_degree, item_ptr, seed_of, disjoint);
    const Stream stream = stream_of(item.local, hop, r, key);
    for (i64 slot = threadIdx.x % lanes; slot < item.size; slot += lanes) {
      const u32 pick = draw_below(stream, static_cast<u32>(slot), static_cast<u32>(item.degree));
      edges.put(item.first + slot, item.start + pick, item.local, disjoint, item.subgraph);
    }
  }
}

// Whether `pick` is in the open hash table `picks[first .. first + slots)`.
__device__ inline bool was_picked(u32 pick, Out<u32> picks, i64 first, u32 slots) {
  for (u32 at = pick * 0x9E3779B1u;; ++at) {
    const u32 seen = atomic_read(&picks[first + (at & (slots - 1))]);
    if (seen == pick) return true;
    if (seen == kEmptySlot) return false;
  }
}

__device__ inline void enter_pick(u32 pick, Out<u32> picks, i64 first, u32 slots) {
  for (u32 at = pick * 0x9E3779B1u;; ++at) {
    const u32 seen = atomicCAS(&picks[first + (at & (slots - 1))], kEmptySlot, pick);
    if (seen == kEmptySlot || seen == pick) return;
  }
}

// Floyd's algorithm for one item of any size by one warp, 32 slots a round: what the earlier rounds
// picked is in the warp's hash table. A draw that an earlier round drew, too, is always in it.
template <class P, class I>
__device__ inline void floyd_rounds(const Item &item, bool disjoint, const Stream &stream,
                                    Out<u32> picks, i64 table, u32 slots, Edges<P, I> edges) {
  const u32 lane = threadIdx.x % kWarp, before = (1u << lane) - 1;
  const u32 k = static_cast<u32>(item.size), rest = static_cast<u32>(item.degree) - k;
  for (u32 i = lane; i < slots; i += kWarp) picks[table + i] = kEmptySlot;
  __syncwarp(kAllLanes);
  for (u32 first = 0; first < k; first += kWarp) {
    const u32 slot = first + lane, top = rest + slot;
    const bool active = slot < k;
    const u32 drawn = active ? draw_below(stream, slot, top + 1) : kEmptySlot;
    bool taken = (__match_any_sync(kAllLanes, drawn) & before) != 0;
    taken = active && (taken || was_picked(drawn, picks, table, slots));
    // Does a slot of this round hold the draw, because it took its `top`?
    const bool may_chain = active && drawn >= rest + first && drawn < top;
    const u32 asked = may_chain ? drawn - rest - first : 0;
    for (u32 known = 0;;) {
      const u32 all_taken = __ballot_sync(kAllLanes, taken);
      if (all_taken == known) break;
      known = all_taken;
      taken = taken || (may_chain && (all_taken >> asked & 1));
    }
    const u32 pick = taken ? top : drawn;
    if (active) {
      enter_pick(pick, picks, table, slots);
      edges.put(item.first + slot, item.start + pick, item.local, disjoint, item.subgraph);
    }
    __syncwarp(kAllLanes);
  }
}

// Samples the items whose fan-out is above 32, without replacement, a warp an item. The picks and
// their slots are those of Floyd's algorithm run slot by slot.
//
// Example: fan-out 100 of a list of 150 takes four rounds, of 32, 32, 32 and 4 slots.
KERNEL(1) sample_large(
    In<I> indices, In<i64> node_start, In<i64> node_ptr, In<i32> seed_of, In<i64> relations,
    In<i64> fanout, In<i64> item_base, In<i64> item_start, In<i64> item_degree, In<i64> item_ptr,
    i64 num_relations, In<i64> weighted, i32 hop, In<i64> key,
    i32 disjoint,      // all as in `sample_floyd`
    u32 slots,         // of each warp's hash table: a power of two, at least twice the largest fan-out
    Out<u32> picks,    // [warps * slots]: scratch
    Out<I> row, Out<i32> col, Out<P> position, Out<i32> group  // [edges] out
) {
  Edges<P, I> edges{indices, row, col, position, group};
  const i64 items = item_base[num_relations], warp = thread_number() / kWarp;
  for (i64 number = warp; number < items; number += thread_count() / kWarp) {
    const i64 r = range_of(item_base, 0, num_relations, number);
    if (weighted[r] || fanout[r] <= kMaxRegisterFanout) continue;
    const Item item = item_at(number, r, num_relations, node_start, node_ptr, relations, item_base,
                              item_start, item_degree, item_ptr, seed_of, disjoint);
    if (item.size < item.degree) {
      const Stream stream = stream_of(item.local, hop, r, key);
      floyd_rounds(item, disjoint, stream, picks, warp * slots, slots, edges);
    } else {
      for (i64 j = threadIdx.x % kWarp; j < item.size; j += kWarp) {
        edges.put(item.first + j, item.start + j, item.local, disjoint, item.subgraph);
      }
    }
  }
}

// Takes all neighbours where the fan-out is negative. A warp does kTile edges in a row, whichever
// items they belong to, so a hub is shared by as many warps as its list needs.
//
// Example: lists of 1, 500 and 2: warp 0 does the edges 0-127 (items 0 and 1), warps 1 and 2 edges
// of item 1 only, warp 3 the rest of item 1 and item 2.
KERNEL(1) sample_all(
    In<I> indices, In<i64> node_start, In<i64> node_ptr, In<i32> seed_of, In<i64> relations,
    In<i64> fanout, In<i64> item_base, In<i64> item_start, In<i64> item_degree, In<i64> item_ptr,
    i64 num_relations, i32 disjoint,  // as in `sample_floyd`
    Out<I> row, Out<i32> col, Out<P> position, Out<i32> group  // [edges] out
) {
  constexpr i64 kTile = 4 * kWarp;
  Edges<P, I> edges{indices, row, col, position, group};
  const i64 items = item_base[num_relations];
  if (items == 0) return;
  const i64 count = item_ptr[items], tiles = ceil_div(count, kTile);
  for (i64 tile = thread_number() / kWarp; tile < tiles; tile += thread_count() / kWarp) {
    const i64 last = minimum(count, (tile + 1) * kTile);
    // The items of the tile's ends are the same for all lanes; inside a hub they are one item, and
    // nothing is left to search.
    const i64 low = range_of(item_ptr, 0, items, tile * kTile);
    const i64 high = range_of(item_ptr, low, items, last - 1);
    for (i64 edge = tile * kTile + threadIdx.x % kWarp; edge < last; edge += kWarp) {
      const i64 number = range_of(item_ptr, low, high + 1, edge);
      const i64 r = range_of(item_base, 0, num_relations, number);
      if (fanout[r] >= 0) continue;
      const Item item = item_at(number, r, num_relations, node_start, node_ptr, relations, item_base,
                                item_start, item_degree, item_ptr, seed_of, disjoint);
      edges.put(edge, item.start + edge - item.first, item.local, disjoint, item.subgraph);
    }
  }
}
