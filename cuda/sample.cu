// One hop of neighbour sampling, by many blocks: the steps of sample.cuh, and those of which a
// small hop has no need.
#include "sample.cuh"

constexpr u32 kEmptySlot = 0xFFFFFFFFu;
constexpr i32 kMaxRegisterFanout = kWarp;  // larger fan-outs keep their picks in a hash table

// Counts the edges of every item, and leaves the sum of each block's run for `scan_items`.
// Example: see `step::plan_items`.
KERNEL(4) plan_items(Descriptor<Batch> batch, i32 hop) {
  store_run_sum(step::plan_items(*batch, hop_of(*batch, hop)), batch->edges.run_sum);
}

// Example: items of 2, 0 and 1 edges, the last of another relation, give item_ptr = [0, 2, 2, 3]
// and edge_ptr = [0, 2, 3].
KERNEL(4) scan_items(Descriptor<Batch> batch, i32 hop) {
  step::scan_items(*batch, hop_of(*batch, hop));
}

// Samples without replacement where the fan-out is at most `lanes`: 8, 16 or 32.
// Example: see `step::sample_floyd`.
KERNEL(4) sample_floyd(Descriptor<Batch> batch, i32 hop, i32 lanes) {
  step::sample_floyd(*batch, hop_of(*batch, hop), lanes);
}

// Samples with replacement, with `lanes` as above.
// Example: see `step::sample_replace`.
KERNEL(2) sample_replace(Descriptor<Batch> batch, i32 hop, i32 lanes) {
  step::sample_replace(*batch, hop_of(*batch, hop), lanes);
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
// picked is in the warp's hash table of `slots` slots. A draw that an earlier round drew, too, is
// always in it.
__device__ inline void floyd_rounds(const Batch &batch, const Hop &hop, const Item &item, i64 table,
                                    u32 slots) {
  const Out<u32> picks = batch.items.picks;
  const Stream stream = stream_of(batch, hop, item);
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
      put_edge(batch, hop, item, item.first + slot, place_of(batch, item, pick));
    }
    __syncwarp(kAllLanes);
  }
}

// Samples the items whose fan-out is above 32, without replacement, a warp an item. The picks and
// their slots are those of Floyd's algorithm run slot by slot. `picks` is the warps' hash tables.
//
// Example: fan-out 100 of a list of 150 takes four rounds, of 32, 32, 32 and 4 slots.
KERNEL(2) sample_large(
    Descriptor<Batch> batch, i32 hop,
    u32 slots  // of each warp's hash table: a power of two, at least twice the largest fan-out
) {
  const Hop at = hop_of(*batch, hop);
  const i64 relations = batch->graph.num_relations;
  const i64 items = at.item_base[relations], warp = thread_number() / kWarp;
  for (i64 number = warp; number < items; number += thread_count() / kWarp) {
    const i64 r = range_of(at.item_base, 0, relations, number);
    if (batch->graph.weighted[r] || at.fanout[r] <= kMaxRegisterFanout) continue;
    const Item item = item_at(*batch, at, number, r);
    if (item.size < item.degree) {
      floyd_rounds(*batch, at, item, warp * slots, slots);
    } else {
      for (i64 j = threadIdx.x % kWarp; j < item.size; j += kWarp) {
        put_edge(*batch, at, item, item.first + j, place_of(*batch, item, j));
      }
    }
  }
}

// Takes all neighbours where the fan-out is negative. A warp does kTile edges in a row, whichever
// items they belong to, so a hub is shared by as many warps as its list needs.
//
// Example: lists of 1, 500 and 2: warp 0 does the edges 0-127 (items 0 and 1), warps 1 and 2 edges
// of item 1 only, warp 3 the rest of item 1 and item 2.
KERNEL(4) sample_all(Descriptor<Batch> batch, i32 hop) {
  constexpr i64 kTile = 4 * kWarp;
  const Hop at = hop_of(*batch, hop);
  const Out<i64> item_ptr = batch->items.item_ptr;
  const i64 relations = batch->graph.num_relations, items = at.item_base[relations];
  const i64 count = item_ptr[items], tiles = ceil_div(count, kTile);
  for (i64 tile = thread_number() / kWarp; tile < tiles; tile += thread_count() / kWarp) {
    const i64 last = minimum(count, (tile + 1) * kTile);
    // The items of the tile's ends are the same for all lanes; inside a hub they are one item, and
    // nothing is left to search.
    const i64 low = range_of(item_ptr, 0, items, tile * kTile);
    const i64 high = range_of(item_ptr, low, items, last - 1);
    for (i64 edge = tile * kTile + threadIdx.x % kWarp; edge < last; edge += kWarp) {
      const i64 number = range_of(item_ptr, low, high + 1, edge);
      const i64 r = range_of(at.item_base, 0, relations, number);
      if (at.fanout[r] >= 0) continue;
      const Item item = item_at(*batch, at, number, r);
      put_edge(*batch, at, item, edge, place_of(*batch, item, edge - item.first));
    }
  }
}
