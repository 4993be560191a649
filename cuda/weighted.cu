// Draws in proportion to edge weights, by inversion of each list's cumulative weights: the twin of
// `numba_kernels/weighted.py`, pick for pick.
//
// Doubles are added, subtracted, multiplied and compared in the order of the twin. A compiler may
// merge a product with a sum into one fused operation, which rounds once and not twice; therefore
// every product is an __dmul_rn, which is never merged, and sums alone leave nothing to merge. Other
// options of the compiler do not matter: CuPy's -ftz=true flushes tiny floats to zero, never doubles.
#include "common.cuh"
#include "items.cuh"
#include "philox.cuh"

// Below this share of an item's weight, a difference of cumulative weights has lost its precision
// (2^-53 / 2^-20), and what is left is added up afresh.
constexpr f64 kTinyShare = 1.0 / 1048576.0;  // 2^-20

// The weights that an item draws from.
struct Weights {
  In<f64> weight, cumulative;  // [E]
  i64 start, end;              // the item's positions
  f64 low;                     // cumulative weight before `start`

  // The cumulative weight before position `p` of the item, start <= p <= end.
  __device__ f64 before(i64 p) const {
    return p > start ? static_cast<f64>(cumulative[p - 1]) : low;
  }
};

// The first position in [first, last) whose cumulative weight exceeds `target`, or `last`.
//
// Example: cumulative [1, 3, 3, 7] and target 3 give position 3; position 2 has no weight.
__device__ inline i64 first_above(In<f64> cumulative, i64 first, i64 last, f64 target) {
  while (first < last) {
    const i64 middle = first + (last - first) / 2;
    if (cumulative[middle] > target) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return first;
}

// The weight of an item that `picked` ascending picks at position[first] leave: the sum of the gaps
// between them, each a difference of cumulative weights.
//
// Example: weights 1, 5, 2 with the 5 picked leave 1 + 2.
template <class P>
__device__ inline f64 weight_left(const Weights &item, Out<P> position, i64 first, i64 picked) {
  f64 left = 0.0, before = item.low;
  for (i64 i = first; i < first + picked; ++i) {
    const i64 p = position[i];
    left += item.before(p) - before;
    before = item.cumulative[p];
  }
  return left + (item.before(item.end) - before);
}

// The position not picked yet at `target` of the weight left, or -1 if rounding went past the gap it
// falls into. Reads O(picked + log degree) weights.
//
// Example: weights 1, 5, 2 with the 5 picked leave gaps of 1 and 2; target 1.5 takes the 2.
template <class P>
__device__ inline i64 pick_from_gaps(const Weights &item, Out<P> position, i64 first, i64 picked,
                                     f64 target) {
  f64 before = item.low;
  i64 gap = item.start;
  for (i64 i = first; i <= first + picked; ++i) {
    const i64 stop = i < first + picked ? static_cast<i64>(position[i]) : item.end;
    const f64 mass = item.before(stop) - before;
    if (target < mass) {
      const i64 chosen = first_above(item.cumulative, gap, stop, before + target);
      return chosen < stop && item.weight[chosen] > 0.0 ? chosen : -1;
    }
    target -= mass;
    if (stop < item.end) {
      before = item.cumulative[stop];
      gap = stop + 1;
    }
  }
  return -1;
}

// A position not picked yet, by adding up the weights left one by one: exact whatever their ratio,
// in O(degree). The first pass finds the total, the second the position.
//
// Example: weights 1e30, 1, 2 with the 1e30 picked: of cumulative weights nothing is left but
// rounding, while the total here is 3, and the draw 0.5 takes the 2.
template <class P>
__device__ inline i64 pick_exactly(const Weights &item, Out<P> position, i64 first, i64 picked,
                                   f64 draw) {
  f64 total = 0.0;
  i64 candidate = -1;
  for (i32 pass = 0; pass < 2; ++pass) {
    const f64 target = __dmul_rn(draw, total);
    f64 running = 0.0;
    i64 i = first;
    for (i64 p = item.start; p < item.end; ++p) {
      if (i < first + picked && position[i] == p) {
        ++i;
      } else if (item.weight[p] > 0.0) {
        running += item.weight[p];
        candidate = p;
        if (pass == 1 && running > target) return p;
      }
    }
    total = running;
  }
  return candidate;
}

// Draws for the items of weighted relations with a fan-out k >= 0 with replacement: slot j takes a
// position with probability weight / sum of weights. Slots are independent, so a sub-warp shares an
// item as in `sample_replace`. An item that begins inside its list is short, its fan-out at most, and
// its share of the running sums may be lost in rounding, so its weights are added up afresh.
//
// Example: weights 1, 5, 2 and draws 0.5, 0 mean 4 and 0 of 8, so they take the 5 and the 1.
template <class P, class I>
__global__ void weighted_replace(
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
    In<i64> weighted,     // [R]: 0 or 1
    i32 hop,              // in [0, 255]
    u32 k0, u32 k1,       // key of the batch
    i32 disjoint,         // 0 or 1
    i32 lanes,            // 8, 16 or 32
    In<f64> cumulative,   // [E]: running sums of the weights within each list
    In<f64> item_low,     // [items]: weight of the list before the item
    In<f64> weight,       // [E], each >= 0 and finite
    Out<I> row, Out<i32> col, Out<P> position, Out<i32> group  // [edges] out
) {
  Edges<P, I> edges{indices, row, col, position, group};
  const i64 items = item_base[num_relations], groups = thread_count() / lanes;
  for (i64 number = thread_number() / lanes; number < items; number += groups) {
    const i64 r = range_of(item_base, 0, num_relations, number);
    if (!weighted[r] || fanout[r] < 0) continue;
    const Item item = item_at(number, r, num_relations, node_start, node_ptr, relations, item_base,
                              item_start, item_degree, item_ptr, seed_of, disjoint);
    if (item.size == 0) continue;  // no weight, and no `item_low` to go by
    const Stream stream = stream_of(item.local, hop, r, k0, k1);
    const i64 end = item.start + item.degree;
    const f64 low = item_low[number], whole = cumulative[end - 1] - low;
    const Weights weights{weight, cumulative, item.start, end, low};
    for (i64 slot = threadIdx.x % lanes; slot < item.size; slot += lanes) {
      const f64 draw = draw_unit(stream, static_cast<u32>(slot), 0);
      i64 pick;
      if (low > 0.0) {
        pick = pick_exactly(weights, position, item.first, 0, draw);
      } else {
        pick = first_above(cumulative, item.start, end, __dmul_rn(draw, whole));
        while (pick == end || (pick > item.start && cumulative[pick] <= cumulative[pick - 1])) {
          --pick;  // rounding went past the last weight
        }
      }
      edges.put(item.first + slot, pick, item.local, disjoint, item.subgraph);
    }
  }
}

// The place behind all of the ascending position[first, last) that are not above `chosen`.
//
// Example: 3, 7, 9 and chosen 7 give the place of the 9.
template <class P>
__device__ inline i64 place_of(i64 chosen, Out<P> position, i64 first, i64 last) {
  while (last > first && position[last - 1] > chosen) --last;
  return last;
}

// Writes k distinct positions of positive weight to position[first], ascending; the item has more
// than k positions, and at least k of positive weight. Each draw takes one of those left with
// probability weight / weight left: first it is made from the whole list; if it falls on an earlier
// pick, it is made anew from what is left. Of a weight w that gives the probability
// w / whole + (1 - left / whole) * w / left = w / left.
//
// Example: weights 1, 5, 2 and first draws 0.5, 0.5 mean 4 and 4 of 8. Both fall on the 5; so the
// second is made anew from the 1 and the 2.
template <class P>
__device__ inline void pick_distinct(const Weights &item, Out<P> position, i64 first, i64 k,
                                     const Stream &stream) {
  const f64 whole = item.before(item.end) - item.low, tiny = __dmul_rn(kTinyShare, whole);
  for (i64 j = 0; j < k; ++j) {
    i64 chosen = -1, at = first + j;
    if (item.low == 0.0) {
      const f64 draw = draw_unit(stream, static_cast<u32>(j), 0);
      chosen = first_above(item.cumulative, item.start, item.end, __dmul_rn(draw, whole));
      at = place_of(chosen, position, first, first + j);
      // At the end if rounding went past the last weight.
      if (chosen == item.end || (at > first && position[at - 1] == chosen)) chosen = -1;
    }
    if (chosen < 0) {
      const f64 left = weight_left(item, position, first, j);
      const f64 draw = draw_unit(stream, static_cast<u32>(j), 1);
      if (left > tiny) chosen = pick_from_gaps(item, position, first, j, __dmul_rn(draw, left));
      if (chosen < 0) chosen = pick_exactly(item, position, first, j, draw);
      at = place_of(chosen, position, first, first + j);
    }
    for (i64 i = first + j; i > at; --i) position[i] = static_cast<P>(position[i - 1]);
    position[at] = static_cast<P>(chosen);
  }
}

// Draws for the items of weighted relations with a fan-out k >= 0 without replacement, a lane an
// item: each draw depends on the picks before it, and the order in which the gaps' weights are added
// decides the last bits, so further lanes would have nothing to do. Items are independent.
//
// Example: fan-out 2 of the weights 1, 0, 5, 2 at position 10: first draws 0.5, 0.9 mean 4 and 7.2 of
// 8 and take the 5 and the 2; the edges are at positions 12 and 13. Fan-out 3 takes all that have
// weight.
template <class P, class I>
__global__ void weighted_distinct(
    In<I> indices, In<i64> node_start, In<i64> node_ptr, In<i32> seed_of, In<i64> relations,
    In<i64> fanout, In<i64> item_base, In<i64> item_start, In<i64> item_degree, In<i64> item_ptr,
    i64 num_relations, In<i64> weighted, i32 hop, u32 k0, u32 k1, i32 disjoint, In<f64> cumulative,
    In<f64> item_low, In<f64> weight,  // all as in `weighted_replace`
    Out<I> row, Out<i32> col, Out<P> position, Out<i32> group  // [edges] out
) {
  Edges<P, I> edges{indices, row, col, position, group};
  const i64 items = item_base[num_relations];
  for (i64 number = thread_number(); number < items; number += thread_count()) {
    const i64 r = range_of(item_base, 0, num_relations, number);
    if (!weighted[r] || fanout[r] < 0) continue;
    const Item item = item_at(number, r, num_relations, node_start, node_ptr, relations, item_base,
                              item_start, item_degree, item_ptr, seed_of, disjoint);
    if (item.size == 0) continue;
    const bool whole = item.size == item.degree;
    if (!whole) {
      const Weights weights{weight, cumulative, item.start, item.start + item.degree,
                            item_low[number]};
      const Stream stream = stream_of(item.local, hop, r, k0, k1);
      pick_distinct(weights, position, item.first, item.size, stream);
    }
    for (i64 j = 0; j < item.size; ++j) {
      const i64 pick = whole ? item.start + j : static_cast<i64>(position[item.first + j]);
      edges.put(item.first + j, pick, item.local, disjoint, item.subgraph);
    }
  }
}
