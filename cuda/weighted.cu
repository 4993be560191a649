// Draws in proportion to edge weights: the twin of `kernels/weighted.py`, pick for pick.
//
// A draw reads one entry, 8 bytes, of the list's alias table, so it is one request to host memory.
// Where times hide a part of the list it inverts the cumulative weights instead, by bisection.
//
// Doubles are added, subtracted, multiplied and compared in the order of the twin. A compiler may
// merge a product with a sum into one fused operation, which rounds once and not twice; therefore
// every product is an __dmul_rn, which is never merged, and sums alone leave nothing to merge.
// Other options of the compiler do not matter: CuPy's -ftz=true flushes tiny floats to zero, never
// doubles.
#include "items.cuh"
#include "times.cuh"

// Below this share of an item's weight, a difference of cumulative weights has lost its precision
// (2^-53 / 2^-20), and what is left is added up afresh.
constexpr f64 kTinyShare = 1.0 / 1048576.0;  // 2^-20

constexpr i64 kSeenBits = 64;     // of a word that knows all picks of a list so short
constexpr i64 kDrawsPerPick = 3;  // draws from all of an item that it may use up for distinct picks

// The weights that an item draws from.
struct Weights {
  In<i64> alias;               // [E]; [0] if no list may be drawn from as a whole
  In<f64> weight, cumulative;  // [E]
  i64 start, end;              // the item's positions
  f64 low;                     // cumulative weight before `start`
  bool aliased;                // whether the item is a whole list with an alias table
  In<i64> positions;           // excluded edges of the batch
  Excluded excluded;           // those of the item

  // The cumulative weight before position `p` of the item, start <= p <= end.
  __device__ f64 before(i64 p) const {
    return p > start ? static_cast<f64>(cumulative[p - 1]) : low;
  }
};

__device__ inline Weights weights_of(const Batch &batch, const Item &item, i64 number) {
  const Graph &graph = batch.graph;
  return Weights{graph.alias,
                 graph.weight,
                 graph.cumulative,
                 item.start,
                 item.start + item.degree + item.excluded.size(),
                 batch.items.item_low[number],
                 graph.time_base[item.relation] == kNoTime,
                 batch.nodes.excluded,
                 item.excluded};
}

// The positions of an item that cannot be drawn, ascending: its picks, which are sorted, and its
// excluded edges. They cut the item into gaps.
struct Taken {
  Out<P> position;  // of the hop's edges
  i64 pick, end;    // the picks not yet named
  In<i64> positions;
  Excluded excluded;  // those not yet named

  // The next one, or `none` (above all positions) behind the last.
  //
  // Example: picks 12, 15 and excluded edges 11, 14 give 11, 12, 14, 15.
  __device__ i64 next(i64 none) {
    const i64 picked = pick < end ? static_cast<i64>(position[pick]) : none;
    const i64 out = excluded.size() > 0 ? static_cast<i64>(positions[excluded.first]) : none;
    pick += picked < out;
    excluded.first += out < picked;
    return picked < out ? picked : out;
  }
};

__device__ inline Taken taken_of(const Weights &item, Out<P> position, i64 first, i64 picked) {
  return Taken{position, first, first + picked, item.positions, item.excluded};
}

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

// The position that a draw from [0, 1) takes of an item; its end if rounding went past it.
//
// An entry of an alias table holds the share of its slot that goes to its own edge, as a float
// (minus what it lacks to 1 above 0.5), and above it the edge that gets the rest, counted from the
// begin of the list (Walker 1977, see `kernels/alias.py`).
//
// Example: weights 1, 5, 2 and the draw 0.25: slot 0.75 is slot 0, which keeps its edge up to
// 0.375, so it takes the 5; by cumulative weights 2 of 8 takes the 5, too.
__device__ inline i64 find(const Weights &item, f64 draw) {
  if (!item.aliased) {
    const f64 target = __dmul_rn(draw, item.cumulative[item.end - 1]);
    return first_above(item.cumulative, item.start, item.end, target);
  }
  const f64 scaled = __dmul_rn(draw, static_cast<f64>(item.end - item.start));
  const i64 slot = static_cast<i64>(scaled);
  const u64 entry = static_cast<u64>(item.alias[item.start + slot]);
  const f64 stored = static_cast<f64>(__uint_as_float(static_cast<u32>(entry)));
  const f64 kept = stored < 0.0 ? stored + 1.0 : stored;
  const bool own = scaled - static_cast<f64>(slot) < kept;
  return item.start + (own ? slot : static_cast<i64>(entry >> 32));
}

// The weight of an item that its excluded edges and the `picked` ascending picks at position[first]
// leave: the sum of the gaps between them, each a difference of cumulative weights.
//
// Example: weights 1, 5, 2 with the 5 picked leave 1 + 2.
__device__ inline f64 weight_left(const Weights &item, Out<P> position, i64 first, i64 picked) {
  f64 left = 0.0, before = item.low;
  Taken taken = taken_of(item, position, first, picked);
  for (i64 p = taken.next(item.end); p < item.end; p = taken.next(item.end)) {
    left += item.before(p) - before;
    before = item.cumulative[p];
  }
  return left + (item.before(item.end) - before);
}

// The position not picked yet at `target` of the weight left, or -1 if rounding went past the gap
// it falls into. Reads O(picked + log degree) weights.
//
// Example: weights 1, 5, 2 with the 5 picked leave gaps of 1 and 2; target 1.5 takes the 2.
__device__ inline i64 pick_from_gaps(const Weights &item, Out<P> position, i64 first, i64 picked,
                                     f64 target) {
  f64 before = item.low;
  i64 gap = item.start;
  Taken taken = taken_of(item, position, first, picked);
  while (true) {
    const i64 stop = taken.next(item.end);
    const f64 mass = item.before(stop) - before;
    if (target < mass) {
      const i64 chosen = first_above(item.cumulative, gap, stop, before + target);
      return chosen < stop ? chosen : -1;
    }
    if (stop == item.end) return -1;
    target -= mass;
    before = item.cumulative[stop];
    gap = stop + 1;
  }
}

// A position not picked yet, by adding up the weights left one by one: exact whatever their ratio,
// in O(degree). The first pass finds the total, the second the position.
//
// Example: weights 1e30, 1, 2 with the 1e30 picked: of cumulative weights nothing is left but
// rounding, while the total here is 3, and the draw 0.5 takes the 2.
__device__ inline i64 pick_exactly(const Weights &item, Out<P> position, i64 first, i64 picked,
                                   f64 draw) {
  f64 total = 0.0;
  i64 candidate = -1;
  for (i32 pass = 0; pass < 2; ++pass) {
    const f64 target = __dmul_rn(draw, total);
    f64 running = 0.0;
    Taken taken = taken_of(item, position, first, picked);
    i64 next = taken.next(item.end);
    for (i64 p = item.start; p < item.end; ++p) {
      if (p == next) {
        next = taken.next(item.end);
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

// A position that is neither picked nor excluded, with probability weight / weight left.
//
// Example: weights 1, 5, 2 with the 5 excluded: a draw of 0.5 means 1.5 of 3 and takes the 2.
__device__ inline i64 pick_left(const Weights &item, Out<P> position, i64 first, i64 picked,
                                f64 draw) {
  const f64 tiny = __dmul_rn(kTinyShare, item.cumulative[item.end - 1] - item.low);
  const f64 left = weight_left(item, position, first, picked);
  i64 chosen = -1;
  if (left > tiny) chosen = pick_from_gaps(item, position, first, picked, __dmul_rn(draw, left));
  return chosen < 0 ? pick_exactly(item, position, first, picked, draw) : chosen;
}

// Draws for the items of weighted relations with a fan-out k >= 0 with replacement: slot j takes a
// position with probability weight / sum of weights. Slots are independent, so a sub-warp shares an
// item as in `sample_replace`. An item that begins inside its list is short, of positive weight its
// fan-out at most, and its share of the running sums may be lost in rounding, so its weights are
// added up afresh.
//
// Example: weights 1, 5, 2 and draws 0.5, 0 mean 4 and 0 of 8, so they take the 5 and the 1.
KERNEL(2) weighted_replace(
    Descriptor<Batch> batch, i32 hop,
    i32 lanes  // of a sub-warp: 8, 16 or 32
) {
  const Hop at = hop_of(*batch, hop);
  const i64 relations = batch->graph.num_relations;
  const i64 items = at.item_base[relations], groups = thread_count() / lanes;
  for (i64 number = thread_number() / lanes; number < items; number += groups) {
    const i64 r = range_of(at.item_base, 0, relations, number);
    if (!batch->graph.weighted[r] || at.fanout[r] < 0) continue;
    const Item item = item_at(*batch, at, number, r);
    const Stream stream = stream_of(*batch, at, item);
    const Weights weights = weights_of(*batch, item, number);
    const bool cut = item.excluded.size() > 0;
    for (i64 slot = threadIdx.x % lanes; slot < item.size; slot += lanes) {
      const f64 draw = draw_unit(stream, static_cast<u32>(slot), cut);
      i64 pick;
      if (weights.low > 0.0) {
        pick = pick_exactly(weights, at.position, item.first, 0, draw);
      } else if (cut) {
        pick = pick_left(weights, at.position, item.first, 0, draw);
      } else {
        pick = find(weights, draw);
        // Rounding went past the last weight.
        for (bool past = pick == weights.end; past; past = weights.weight[pick] <= 0.0) --pick;
      }
      put_edge(*batch, at, item, item.first + slot, pick);
    }
  }
}

// Adds to the `found` picks at position[first] what is missing to k, each drawn from what is left
// with probability weight / weight left, and sorts them.
__device__ inline void pick_the_rest(const Weights &item, Out<P> position, i64 first, i64 found,
                                     i64 k, const Stream &stream) {
  for (i64 j = 0; j < k; ++j) {
    i64 chosen;
    if (j < found) {
      chosen = position[first + j];
    } else {
      chosen = pick_left(item, position, first, j, draw_unit(stream, static_cast<u32>(j), 1));
    }
    i64 at = first + j;
    for (; at > first && position[at - 1] > chosen; --at) {
      position[at] = static_cast<P>(position[at - 1]);
    }
    position[at] = static_cast<P>(chosen);
  }
}

// Writes k distinct positions of positive weight to position[first]; the item has more than k
// positions, and at least k of positive weight. Each draw takes one of those left with probability
// weight / weight left: draws from the whole list that skip what was picked before do that. Where
// too few of them come upon something new, or edges are excluded, it is drawn from what is left.
//
// Example: weights 1, 5, 2 and draws that fall on the 5, the 5 and the 2 pick the 5 and the 2.
__device__ inline void pick_distinct(const Weights &item, Out<P> position, i64 first, i64 k,
                                     const Stream &stream) {
  const i64 degree = item.end - item.start;
  i64 found = 0;
  u64 seen = 0;  // a bit for each pick, modulo kSeenBits
  const bool from_all = item.low == 0.0 && item.excluded.size() == 0;
  for (i64 j = 0; j < (from_all ? kDrawsPerPick * k : 0) && found < k; ++j) {
    const i64 chosen = find(item, draw_unit(stream, static_cast<u32>(j), 0));
    const u64 bit = u64{1} << ((chosen - item.start) % kSeenBits);
    bool is_new = !(seen & bit);
    if (degree > kSeenBits && !is_new) {  // the bit may be that of another position
      is_new = true;
      for (i64 i = 0; i < found && is_new; ++i) is_new = position[first + i] != chosen;
    }
    seen |= bit;
    if (is_new && chosen < item.end) position[first + found++] = static_cast<P>(chosen);
  }
  if (found < k) pick_the_rest(item, position, first, found, k, stream);
}

// Draws for the items of weighted relations with a fan-out k >= 0 without replacement, a lane an
// item: each draw depends on the picks before it, and the order in which the gaps' weights are
// added decides the last bits, so further lanes would have nothing to do. Items are independent.
//
// Example: fan-out 2 of the weights 1, 0, 5, 2 at position 10, where times hide other edges of the
// list: draws 0.9, 0.5 mean 7.2 and 4 of 8 and take the 2 and the 5; the edges are at positions 13
// and 12. Fan-out 3 takes all that have weight.
KERNEL(2) weighted_distinct(Descriptor<Batch> batch, i32 hop) {
  const Hop at = hop_of(*batch, hop);
  const i64 relations = batch->graph.num_relations, items = at.item_base[relations];
  for (i64 number = thread_number(); number < items; number += thread_count()) {
    const i64 r = range_of(at.item_base, 0, relations, number);
    if (!batch->graph.weighted[r] || at.fanout[r] < 0) continue;
    const Item item = item_at(*batch, at, number, r);
    const bool whole = item.size == item.degree;
    if (!whole) {
      pick_distinct(weights_of(*batch, item, number), at.position, item.first, item.size,
                    stream_of(*batch, at, item));
    }
    for (i64 j = 0; j < item.size; ++j) {
      const i64 edge = item.first + j;
      const i64 pick = whole ? place_of(*batch, item, j) : static_cast<i64>(at.position[edge]);
      put_edge(*batch, at, item, edge, pick);
    }
  }
}
