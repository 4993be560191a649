// Small hops by one block: a launch for all of them, where sample.cu and relabel.cu take eight for
// each. What a batch of few nodes costs the host is launches.
#include "relabel.cuh"
#include "sample.cuh"

// Does the hops [first, last), after entering the seeds if `enter_seeds`. All fan-outs are in
// [0, lanes], or the draws are with replacement; no relation that is sampled has weights.
//
// Example: seeds 7, 4 with the neighbours 9 and 4, fan-out 1: the block lists and enters 7 and 4,
// draws the edges 9 -> 7 and 4 -> 4, and gives 9 the local id 2.
KERNEL(1) sample_small(
    Descriptor<Batch> batch,
    i32 enter_seeds,  // 0 or 1
    i32 first,
    i32 last,
    i32 lanes         // of a sub-warp: 8, 16 or 32
) {
  if (enter_seeds) {
    for (i64 type = 0; type < batch->graph.num_types; ++type) step::list_seeds(*batch, type);
    __syncthreads();
    for (i64 type = 0; type < batch->graph.num_types; ++type) step::enter_nodes(*batch, 0, type);
    __syncthreads();
  }
  for (i64 number = first; number < last; ++number) {
    const Hop hop = hop_of(*batch, number);
    step::plan_items(*batch, hop);
    __syncthreads();
    step::scan_items(*batch, hop);
    __syncthreads();
    if (batch->graph.replace) {
      step::sample_replace(*batch, hop, lanes);
    } else {
      step::sample_floyd(*batch, hop, lanes);
    }
    __syncthreads();
    step::enter_edges(*batch, hop);
    __syncthreads();
    step::mark_first(*batch, hop);
    __syncthreads();
    step::scan_ranks(*batch, hop);
    __syncthreads();
    step::count_new(*batch, hop);
    __syncthreads();
    step::label_edges(*batch, hop);
    __syncthreads();
  }
}
