// What kernels know of a batch: one descriptor in device memory, so that a launch takes its address
// and the number of a hop. Whatever differs between batches is in device memory, too, so launches
// are the same for every batch of a size and could be recorded and replayed as a CUDA graph.
//
// `ops/cuda/source.py` reads the structs below: a line for each field, which takes 8 bytes; names
// of fields are unique. The host looks values up by them (see `ops/cuda/descriptor.py`).
#pragma once
#include "common.cuh"

using P = INSTANCE_P;  // positions in the CSC
using I = INSTANCE_I;  // node ids

// The graph, and how it is sampled: the same for all batches.
struct Graph {
  In<P> indptr;          // [sum_r (N_r + 1)]
  In<I> indices;         // [E]
  In<i64> relations;     // [3, R]: source type, destination type, indptr base
  In<i64> by_source;     // [R]: the relations, ordered by source type
  In<i64> source_ptr;    // [T + 1]: first place of each source type in `by_source`
  In<i64> edge_base;     // [R]: first position of each relation
  In<i64> fanouts;       // [hops, R]
  In<i64> time;          // of all nodes [sum_t N_t] or of all edges by position [E]; [0] without
  In<i64> time_base;     // [R]: first entry of the source type in `time`, kEdgeTime or kNoTime
  In<i64> weighted;      // [R]: 0 or 1
  In<f64> weight;        // [E], each >= 0 and finite; [0] without weights
  In<f64> cumulative;    // [E]: running sums of `weight` within each list; [0] without weights
  In<i64> alias;         // [E]: alias tables; [0] if no relation with weights is without times
  i64 num_relations;     // R
  i64 num_types;         // T
  i64 disjoint;          // 0 or 1
  i64 replace;           // 0 or 1
  i64 recent;            // 0 or 1: the latest neighbours and not any in the past
  i64 excluding;         // 0 or 1: batches may do without some edges
};

// The seeds, and the list of each node type, one behind the other.
struct Nodes {
  // [7]: of the batch's draws, low word first; then of LABOR's variates, two keys and a share
  In<i64> key;
  In<i64> seed;          // [n]: node ids, type by type
  In<i64> seed_start;    // [T + 1]: first seed of each type, which is also its first subgraph
  In<i64> seed_time;     // [n]; [0] without times
  In<i64> seed_since;    // [n]: no neighbour is earlier; [0] where they may be of any age
  i64 has_since;         // 0 or 1
  In<i64> excluded;      // [any]: positions that are left out, ascending for each subgraph
  // [groups, 2]: where those of each subgraph begin and end in `excluded`; [1, 2] unless disjoint
  In<i64> excluded_bounds;
  In<i64> node_start;    // [T]: first entry of each type's list
  Out<I> node;           // [capacity]
  Out<i32> seed_of;      // [capacity]: the subgraph of each node; [0] unless disjoint
  // [capacity]: local ids for the draws; [0] where nodes stand at the places of their local ids
  In<i32> local;
  i64 has_local;         // 0 or 1
  Out<i64> node_ptr;     // [hops + 2, T]: nodes of each type before each hop; 0 before the seeds
};

// From global to local ids: see table.cuh.
struct Table {
  In<i64> window;        // [3]: base, width, locals
  In<i64> slot_base;     // [T + 1]: first entry of each type
  Out<u32> table;        // [slots]
};

// The (relation, frontier node) pairs of a hop, relation by relation.
struct Items {
  Out<i64> item_base;    // [hops + 1, R + 1]: first item of each relation
  Out<i64> item_start;   // [items]: first position that may be taken
  Out<i64> item_degree;  // [items]: how many positions may be taken
  Out<i64> item_ptr;     // [items + 1]: first edge of each item; numbers of edges before the scan
  // [items, 2]: where the excluded edges of each item begin and end in `excluded`; [0] unless
  // `excluding`
  Out<i64> item_excluded;
  Out<f64> item_low;     // [items]: weight of the list before the item; [0] without weights
  Out<u32> picks;        // scratch of `sample_large`
};

// The edges that are drawn, and what relabelling notes about those of a hop.
struct Edges {
  Out<i64> edge_ptr;     // [hops, R + 1]: first edge of each relation in its hop
  In<i64> hop_start;     // [hops + 1]: first edge of each hop in `col`, `label` and `position`
  Out<i32> col;          // [edges]: local id of the destination
  Out<i32> label;        // [edges]: local id of the source
  Out<P> position;       // [edges]: position in the CSC
  Out<I> row;            // [edges of a hop]: global id of the source
  Out<i32> group;        // [edges of a hop]: the destination's subgraph; [0] unless disjoint
  Out<i64> slot;         // [edges of a hop]: the table entry of the source
  Out<i32> rank;         // [edges of a hop + 1]: new nodes before each edge; flags before the scan
  Out<i64> rank_at;      // [R + 1]: new nodes before each relation's first edge
  Out<i64> new_ptr;      // [R + 1]: the same, with the relations ordered by source type
  Out<i64> new_base;     // [R]: local id of each relation's first new node
  Out<i64> run_sum;      // [blocks]: see scan.cuh
};

struct Batch {
  Graph graph;
  Nodes nodes;
  Table table;
  Items items;
  Edges edges;
};

// What belongs to one hop of the arrays that have an entry for each.
struct Hop {
  i64 number;
  In<i64> fanout;                   // [R]
  Out<i64> expanded, known, after;  // [T]: nodes before the last hop, before this one, behind it
  Out<i64> item_base, next_base;    // [R + 1]: first item of each relation in this hop and the next
  Out<i64> edge_ptr;                // [R + 1]
  Out<i32> col, label;              // [edges]
  Out<P> position;                  // [edges]
};

__device__ inline Hop hop_of(const Batch &batch, i64 number) {
  const i64 types = batch.graph.num_types, relations = batch.graph.num_relations;
  const i64 first = batch.edges.hop_start[number];
  Hop hop;
  hop.number = number;
  hop.fanout = batch.graph.fanouts + number * relations;
  hop.expanded = batch.nodes.node_ptr + number * types;
  hop.known = hop.expanded + types;
  hop.after = hop.known + types;
  hop.item_base = batch.items.item_base + number * (relations + 1);
  hop.next_base = hop.item_base + (relations + 1);
  hop.edge_ptr = batch.edges.edge_ptr + number * (relations + 1);
  hop.col = batch.edges.col + first;
  hop.label = batch.edges.label + first;
  hop.position = batch.edges.position + first;
  return hop;
}
