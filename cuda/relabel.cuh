// Global node ids to local ids, in order of first occurrence: seeds first, then the sources of each
// hop, relation by relation, edge by edge. Each node type has its own list and its own numbers.
//
// A hop takes five steps: `enter_edges` puts every edge into the table, where the first edge of a
// new node wins; `mark_first` flags the winners; `scan_ranks` ranks them; `count_new` turns ranks
// into first ids by relation; `label_edges` writes the lists and the ids. Each may begin when the
// one before it is done everywhere: kernels of their own, or barriers of a block (see sample.cuh).
#pragma once
#include "scan.cuh"
#include "table.cuh"

namespace step {

// Writes the seeds of a type to the beginning of its list.
//
// Example: seeds 7, 4, 7 of a type whose list begins at 10, behind 5 seeds of other types, give
// node[10:13] = 7, 4, 7 and seed_of[10:13] = 5, 6, 7.
__device__ inline void list_seeds(const Batch &batch, i64 type) {
  const Nodes &nodes = batch.nodes;
  const i64 first = nodes.seed_start[type], start = nodes.node_start[type];
  for (i64 i = thread_number(); i < nodes.seed_start[type + 1] - first; i += thread_count()) {
    nodes.node[start + i] = static_cast<I>(nodes.seed[first + i]);
    if (batch.graph.disjoint) nodes.seed_of[start + i] = static_cast<i32>(first + i);
  }
}

// Enters the nodes of a type's list as they are before a hop; of a duplicated seed the first place
// counts. Serves the seeds, and the known nodes whenever the table or the window is a new one.
//
// Example: the list 7, 4, 7 gives the entries 7 -> base, 4 -> base + 1.
__device__ inline void enter_nodes(const Batch &batch, i64 hop, i64 type) {
  const Window window = window_of(batch.table.window);
  const Nodes &nodes = batch.nodes;
  const i64 start = nodes.node_start[type], first = batch.table.slot_base[type];
  const i64 known = nodes.node_ptr[(hop + 1) * batch.graph.num_types + type];
  for (i64 i = thread_number(); i < known; i += thread_count()) {
    const i64 v = nodes.node[start + i];
    if (kHashed) {
      const Key key{v, batch.graph.disjoint ? static_cast<i32>(nodes.seed_of[start + i]) : 0};
      enter_hashed(batch, type, key, static_cast<u32>(i), window);
    } else {
      atomicMin(&batch.table.table[first + v], window.base + static_cast<u32>(i));
    }
  }
}

// Enters the sources of a hop and remembers where each one is, so that it is looked up once.
//
// Example: known nodes 7, 4 (local 0, 1), sources 4, 9, 9, 2, locals = 8: the entries of 9 and 2
// become base + 8 + 1 and base + 8 + 3; that of 4 stays base + 1.
__device__ inline void enter_edges(const Batch &batch, const Hop &hop) {
  const Window window = window_of(batch.table.window);
  const Edges &edges = batch.edges;
  const i64 relations = batch.graph.num_relations, count = hop.edge_ptr[relations];
  for (i64 e = thread_number(); e < count; e += thread_count()) {
    const i64 type = batch.graph.relations[range_of(hop.edge_ptr, 0, relations, e)];
    const i64 v = edges.row[e];
    const u32 x = window.locals + static_cast<u32>(e);
    i64 slot = batch.table.slot_base[type] + v;
    if (kHashed) {
      const Key key{v, batch.graph.disjoint ? static_cast<i32>(edges.group[e]) : 0};
      slot = enter_hashed(batch, type, key, x, window);
    } else {
      atomicMin(&batch.table.table[slot], window.base + x);
    }
    edges.slot[e] = slot;
  }
}

// Flags the edges that are the first to a new node: those whose own number is in the table. Returns
// how many of the thread's are.
//
// Example: as above, flags 0, 1, 0, 1.
__device__ inline i64 mark_first(const Batch &batch, const Hop &hop) {
  const Window window = window_of(batch.table.window);
  const Edges &edges = batch.edges;
  const Run run = run_of_block(hop.edge_ptr[batch.graph.num_relations]);
  i64 sum = 0;
  for (i64 e = run.first + threadIdx.x; e < run.last; e += blockDim.x) {
    const u32 own = window.base + window.locals + static_cast<u32>(e);
    const i32 is_first = batch.table.table[edges.slot[e]] == own;
    edges.rank[e] = is_first;
    sum += is_first;
  }
  return sum;
}

// Turns the flags into numbers of new nodes before each edge and each relation.
__device__ inline void scan_ranks(const Batch &batch, const Hop &hop) {
  const i64 relations = batch.graph.num_relations;
  scan_runs(hop.edge_ptr[relations], batch.edges.rank, batch.edges.run_sum, hop.edge_ptr,
            relations + 1, batch.edges.rank_at);
}

// Counts the nodes after the hop, and finds each relation's first new id and the next hop's items:
// prefix sums over the relations by one block, a thread a relation or a type.
//
// Example: two relations from type 0 with 2 and 1 new nodes after 5 known ones: new_base = [5, 7],
// and type 0 has 8 nodes. The next hop's items are the 3 new nodes, once for each relation into
// type 0.
__device__ inline void count_new(const Batch &batch, const Hop &hop) {
  const Graph &graph = batch.graph;
  const Edges &edges = batch.edges;
  const i64 relations = graph.num_relations;
  i64 carry = 0;
  for (i64 first = 0; first < relations; first += blockDim.x) {
    const i64 i = first + threadIdx.x;
    const i64 r = i < relations ? static_cast<i64>(graph.by_source[i]) : 0;
    const Prefix found = block_prefix(i < relations ? edges.rank_at[r + 1] - edges.rank_at[r] : 0);
    if (i < relations) edges.new_ptr[i] = carry + found.before;
    carry += found.all;
  }
  if (threadIdx.x == 0) edges.new_ptr[relations] = carry;
  __syncthreads();  // `new_ptr` is complete
  for (i64 t = threadIdx.x; t < graph.num_types; t += blockDim.x) {
    const i64 found = edges.new_ptr[graph.source_ptr[t + 1]] - edges.new_ptr[graph.source_ptr[t]];
    hop.after[t] = hop.known[t] + found;
  }
  for (i64 i = threadIdx.x; i < relations; i += blockDim.x) {
    const i64 r = graph.by_source[i], src = graph.relations[r];
    edges.new_base[r] = hop.known[src] + edges.new_ptr[i] - edges.new_ptr[graph.source_ptr[src]];
  }
  __syncthreads();  // `after` is complete
  carry = 0;
  for (i64 first = 0; first < relations; first += blockDim.x) {
    const i64 r = first + threadIdx.x;
    const i64 dst = r < relations ? static_cast<i64>(graph.relations[relations + r]) : 0;
    const Prefix items = block_prefix(r < relations ? hop.after[dst] - hop.known[dst] : 0);
    if (r < relations) hop.next_base[r] = carry + items.before;
    carry += items.all;
  }
  if (threadIdx.x == 0) hop.next_base[relations] = carry;
}

// Gives every edge the local id of its source, appends the new nodes to their lists, and makes
// their table entries local ids. An entry that another thread is about to change says the same
// before and after: the first edge to the node has its rank, which gives its local id.
//
// Example: as above, label = 1, 2, 2, 3, the list grows to 7, 4, 9, 2 and the entries of 9 and 2
// become base + 2 and base + 3.
__device__ inline void label_edges(const Batch &batch, const Hop &hop) {
  const Window window = window_of(batch.table.window);
  const Nodes &nodes = batch.nodes;
  const Edges &edges = batch.edges;
  const Out<u32> table = batch.table.table;
  const i64 relations = batch.graph.num_relations, count = hop.edge_ptr[relations];
  for (i64 e = thread_number(); e < count; e += thread_count()) {
    const i64 slot = edges.slot[e];
    i64 local = atomic_read(&table[slot]) - window.base;
    if (local >= window.locals) {
      const i64 first = local - window.locals;  // the edge that found the node
      const i64 r = range_of(hop.edge_ptr, 0, relations, first);
      local = edges.new_base[r] + edges.rank[first] - edges.rank_at[r];
      if (first == e) {
        const i64 at = nodes.node_start[batch.graph.relations[r]] + local;
        nodes.node[at] = edges.row[e];
        if (batch.graph.disjoint) nodes.seed_of[at] = edges.group[e];
        atomic_write(&table[slot], window.base + static_cast<u32>(local));
      }
    }
    hop.label[e] = static_cast<i32>(local);
  }
}

}  // namespace step
