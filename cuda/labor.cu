// LABOR: the twin of `kernels/labor.py`, pick for pick. Each list gives the edges whose sources have
// the smallest variates, so a whole list is read where a uniform draw reads its picks.
#include "items.cuh"

// The keys of a batch's variates; see `fill_variates` of the twin.
struct Variates {
  u32 stream;  // layer | source type << 8
  u32 k0, k1, next0, next1, share;

  // The variate of node t: two words under the first key; or two under the next one, if a third
  // word under that is below the share.
  //
  // Example: share 2^31 and the third words 2^30 and 3 * 2^30 of the nodes 7 and 9: 7 has the
  // variate of the next key already, 9 that of the first.
  __device__ u64 of(i64 t) const {
    const u32 low = static_cast<u32>(t), high = static_cast<u32>(static_cast<u64>(t) >> 32);
    if (share > 0) {
      const Words next = philox4x32(low, high, stream, kPurposeLabor, next0, next1);
      if (next.word[2] < share) return static_cast<u64>(next.word[0]) << 32 | next.word[1];
    }
    const Words words = philox4x32(low, high, stream, kPurposeLabor, k0, k1);
    return static_cast<u64>(words.word[0]) << 32 | words.word[1];
  }
};

__device__ inline Variates variates_of(const Batch &batch, i64 relation, i32 layer) {
  const In<i64> key = batch.nodes.key;
  const u32 type = static_cast<u32>(batch.graph.relations[relation]);
  return Variates{static_cast<u32>(layer) | type << 8, static_cast<u32>(key[2]),
                  static_cast<u32>(key[3]), static_cast<u32>(key[4]), static_cast<u32>(key[5]),
                  static_cast<u32>(key[6])};
}

// The picks of one item so far, the largest first: a heap in the memory of the item's edges. Of equal
// variates that of the later edge is the larger. One lane at a time changes it.
struct Heap {
  Out<i64> variate;  // `slot` of the hop's edges, which relabelling writes later
  Out<P> position;   // of the hop's edges
  i64 first, size;   // place of the largest, and how many there are

  __device__ u64 variate_at(i64 i) const { return static_cast<u64>(variate[first + i]); }

  __device__ void put(i64 i, u64 value, i64 at) const {
    variate[first + i] = static_cast<i64>(value);
    position[first + i] = static_cast<P>(at);
  }

  __device__ void move(i64 to, i64 from) const {
    variate[first + to] = variate[first + from];
    position[first + to] = position[first + from];
  }

  // Whether entry i is larger than (value, at).
  __device__ bool is_after(i64 i, u64 value, i64 at) const {
    const u64 own = variate_at(i);
    return own > value || (own == value && static_cast<i64>(position[first + i]) > at);
  }

  // Adds an edge, which comes after all of the same variate.
  //
  // Example: variates 9, 4 and the new 12 give 12, 4, 9.
  __device__ void push(u64 value, i64 at) {
    i64 place = size++;
    for (; place > 0 && variate_at((place - 1) / 2) <= value; place = (place - 1) / 2) {
      move(place, (place - 1) / 2);
    }
    put(place, value, at);
  }

  // Puts an edge in the place of the largest.
  //
  // Example: variates 12, 4, 9 and the new 7 give 9, 4, 7.
  __device__ void replace_first(u64 value, i64 at) const {
    i64 place = 0;
    for (i64 child = 1; child < size; child = 2 * place + 1) {
      if (child + 1 < size &&
          is_after(child + 1, variate_at(child), static_cast<i64>(position[first + child]))) {
        ++child;
      }
      if (!is_after(child, value, at)) break;
      move(place, child);
      place = child;
    }
    put(place, value, at);
  }

  // Puts the edges in ascending order.
  __device__ void sort() {
    while (size > 1) {
      --size;
      const u64 value = variate_at(size);
      const i64 at = static_cast<i64>(position[first + size]);
      move(size, 0);
      replace_first(value, at);
    }
  }
};

// Chooses the edges of an item that is cut, by one warp: its lanes compute 32 variates at a time,
// and those that may be among the smallest enter the heap one after another.
//
// Example: size 2, and variates 6, 2, 5, 9 at the positions 10 to 13: 6 and 2 fill the heap, 5 takes
// the place of 6, 9 is passed over; the edges are at the positions 11 and 12.
__device__ inline void pick_smallest(const Batch &batch, const Hop &hop, const Item &item,
                                     const Variates &variates) {
  Heap heap{batch.edges.slot, hop.position, item.first, 0};
  const i64 lane = threadIdx.x % kWarp;
  const i64 last = item.start + item.degree + item.excluded.size();
  for (i64 first = item.start; first < last; first += kWarp) {
    const i64 at = first + lane;
    u64 variate = 0;
    bool wanted = at < last && !is_excluded(batch, at, item.excluded);
    if (wanted) {
      variate = variates.of(batch.graph.indices[at]);
      wanted = heap.size < item.size || variate < heap.variate_at(0);
    }
    for (u32 left = __ballot_sync(kAllLanes, wanted); left != 0; left &= left - 1) {
      const bool room = heap.size < item.size;
      if ((left & (~left + 1)) == 1u << lane) {
        if (room) {
          heap.push(variate, at);
        } else if (variate < heap.variate_at(0)) {
          heap.replace_first(variate, at);
        }
      } else if (room) {
        ++heap.size;
      }
      __syncwarp(kAllLanes);
    }
  }
  if (lane == 0) heap.sort();
  __syncwarp(kAllLanes);
}

// Takes the edges of smallest variates of the items whose fan-out is not negative, a warp an item.
//
// Example: fan-out 2, the lists [7, 4, 9] and [4, 9], and variates 0.6, 0.2, 0.5 of the nodes 7, 4,
// 9: both items take 4 and 9.
KERNEL(2) sample_labor(
    Descriptor<Batch> batch, i32 hop,
    i32 layer  // the hop that the variates are of
) {
  const Hop at = hop_of(*batch, hop);
  const i64 relations = batch->graph.num_relations, items = at.item_base[relations];
  for (i64 number = thread_number() / kWarp; number < items; number += thread_count() / kWarp) {
    const i64 r = range_of(at.item_base, 0, relations, number);
    if (at.fanout[r] < 0) continue;
    const Item item = item_at(*batch, at, number, r);
    const bool cut = item.size < item.degree;
    if (cut && item.size > 0) pick_smallest(*batch, at, item, variates_of(*batch, r, layer));
    for (i64 j = threadIdx.x % kWarp; j < item.size; j += kWarp) {
      const i64 edge = item.first + j;
      const i64 pick = cut ? static_cast<i64>(at.position[edge]) : place_of(*batch, item, j);
      put_edge(*batch, at, item, edge, pick);
    }
  }
}
