// Global node ids to local ids, by many blocks: a kernel for each step of relabel.cuh, where the
// examples are.
#include "relabel.cuh"

// Writes the seeds to their types' lists. Row y of the grid does type y.
// Example: see `step::list_seeds`.
KERNEL(4) list_seeds(Descriptor<Batch> batch) { step::list_seeds(*batch, blockIdx.y); }

// Enters the nodes that are known before a hop. Row y of the grid does type y.
// Example: see `step::enter_nodes`.
KERNEL(4) enter_nodes(Descriptor<Batch> batch, i32 hop) {
  step::enter_nodes(*batch, hop, blockIdx.y);
}

// Enters the sources of a hop.
// Example: see `step::enter_edges`.
KERNEL(4) enter_edges(Descriptor<Batch> batch, i32 hop) {
  step::enter_edges(*batch, hop_of(*batch, hop));
}

// Flags the first edge to each new node, and leaves the sum of each block's run for `scan_ranks`.
// Example: see `step::mark_first`.
KERNEL(4) mark_first(Descriptor<Batch> batch, i32 hop) {
  store_run_sum(step::mark_first(*batch, hop_of(*batch, hop)), batch->edges.run_sum);
}

// Ranks the new nodes.
// Example: flags 0, 1, 0, 1 of one relation give rank = [0, 0, 1, 1, 2] and rank_at = [0, 2].
KERNEL(4) scan_ranks(Descriptor<Batch> batch, i32 hop) {
  step::scan_ranks(*batch, hop_of(*batch, hop));
}

// Counts nodes and items after the hop, by one block.
// Example: see `step::count_new`.
KERNEL(4) count_new(Descriptor<Batch> batch, i32 hop) {
  step::count_new(*batch, hop_of(*batch, hop));
}

// Writes the local ids of the edges' sources, and the new nodes.
// Example: see `step::label_edges`.
KERNEL(4) label_edges(Descriptor<Batch> batch, i32 hop) {
  step::label_edges(*batch, hop_of(*batch, hop));
}
