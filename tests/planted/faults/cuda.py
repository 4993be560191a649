"""Faults in the CUDA kernels, which the emulator runs."""

from __future__ import annotations

from ..fault import Fault

BATCH = "cuda/batch.cuh"
COMMON = "cuda/common.cuh"
DECODE = "cuda/decode.cuh"
DECODE_CU = "cuda/decode.cu"
EMIT = "cuda/emit.cu"
EXCLUDE = "cuda/exclude.cuh"
ITEMS = "cuda/items.cuh"
LABOR = "cuda/labor.cu"
PHILOX = "cuda/philox.cuh"
PICKS = "cuda/picks.cu"
RELABEL = "cuda/relabel.cuh"
ROWS = "cuda/rows.cuh"
SAMPLE_CU = "cuda/sample.cu"
SAMPLE = "cuda/sample.cuh"
SCAN = "cuda/scan.cuh"
SMALL = "cuda/small.cu"
TABLE = "cuda/table.cuh"
TIMES = "cuda/times.cuh"
WEIGHTED = "cuda/weighted.cu"
BANDWIDTH = "cuda/bandwidth.cu"

KERNELS = "tests/kernels/test_cuda_kernels.py"
ATTRIBUTES = "tests/kernels/test_cuda_attributes.py"
EXCLUDED = "tests/kernels/test_cuda_excluded.py"
GATHER = "tests/kernels/test_cuda_gather.py"
DECODING = "tests/kernels/test_cuda_decode.py"
SCHEDULES = "tests/kernels/test_schedules.py"
SEAM = "tests/kernels/test_seam.py"

FAULTS = [
    Fault(
        "race: draws of a small hop before the lists are complete",
        SMALL,
        "    step::scan_items(*batch, hop);\n    __syncthreads();\n",
        "    step::scan_items(*batch, hop);\n",
        KERNELS + " " + SCHEDULES,
        equivalent="the scan has a barrier of its own behind all that draws read",
    ),
    Fault(
        "race: sources of a small hop are numbered before all are drawn",
        SMALL,
        "      step::sample_floyd(*batch, hop, lanes);\n    }\n    __syncthreads();\n",
        "      step::sample_floyd(*batch, hop, lanes);\n    }\n",
        KERNELS + "::test_any_graph",
    ),
    Fault(
        "race: a small hop begins before the nodes of the one before are there",
        SMALL,
        "    step::label_edges(*batch, hop);\n    __syncthreads();\n",
        "    step::label_edges(*batch, hop);\n",
        KERNELS + "::test_every_fanout",
    ),
    Fault(
        "race: seeds are entered before they are listed",
        SMALL,
        "step::list_seeds(*batch, type);\n    __syncthreads();\n",
        "step::list_seeds(*batch, type);\n",
        KERNELS + "::test_many_blocks",
    ),
    Fault(
        "race: first edges are flagged while others are entered",
        SMALL,
        "    step::enter_edges(*batch, hop);\n    __syncthreads();\n",
        "    step::enter_edges(*batch, hop);\n",
        KERNELS + "::test_any_graph",
    ),
    Fault(
        "fan-outs above 32 pick an edge twice: a round does not see the one before",
        SAMPLE_CU,
        "taken = active && (taken || was_picked(drawn, picks, table, slots));",
        "taken = active && taken;",
        KERNELS + "::test_every_fanout",
    ),
    Fault(
        "fan-outs above 32 pick an edge twice: what a slot took for a collision",
        SAMPLE_CU,
        "const bool may_chain = active && drawn >= rest + first && drawn < top;",
        "const bool may_chain = false;",
        KERNELS + "::test_large_fanouts_of_large_lists",
    ),
    Fault(
        "race: a round of a large fan-out begins before the picks of the last are entered",
        SAMPLE_CU,
        """      put_edge(batch, hop, item, item.first + slot, place_of(batch, item, pick));
    }
    __syncwarp(kAllLanes);
""",
        """      put_edge(batch, hop, item, item.first + slot, place_of(batch, item, pick));
    }
""",
        KERNELS + " " + SCHEDULES,
        equivalent="the lanes meet in the match that follows; the order of memory, which only a GPU "
        "could show, is all that is lost",
    ),
    Fault(
        "race: a table of picks is used while it is emptied",
        SAMPLE_CU,
        "picks[table + i] = kEmptySlot;\n  __syncwarp(kAllLanes);\n",
        "picks[table + i] = kEmptySlot;\n",
        KERNELS + " " + SCHEDULES,
        equivalent="the lanes meet in the match that follows; the order of memory, which only a GPU "
        "could show, is all that is lost",
    ),
    Fault(
        "a hub loses the edges of the tiles behind the first",
        SAMPLE_CU,
        "const i64 last = minimum(count, (tile + 1) * kTile);",
        "const i64 last = minimum(count, tile * kTile + kWarp);",
        KERNELS + "::test_every_fanout",
    ),
    Fault(
        "small fan-outs: a lane does not see what another took for a collision",
        SAMPLE,
        "const bool may_chain = active && drawn >= degree - k && drawn < top;",
        "const bool may_chain = false;",
        KERNELS + "::test_every_fanout",
    ),
    Fault(
        "sub-warps behind the first see the draws of another item",
        SAMPLE,
        "const u32 shift = (threadIdx.x % kWarp) & ~(lanes - 1);",
        "const u32 shift = 0;",
        KERNELS + "::test_every_fanout",
    ),
    Fault(
        "edges of weight 0 count on the GPU",
        SAMPLE,
        "found += batch.graph.weight[p] > 0.0;",
        "found += 1;",
        ATTRIBUTES + "::test_any_graph",
    ),
    Fault(
        "the latest on the GPU are counted over excluded edges",
        ITEMS,
        "span = {position_of(batch, rank, excluded), k};",
        "span = {rank, k};",
        EXCLUDED + "::test_every_fanout",
    ),
    Fault(
        "excluded edges before the latest are cut out again",
        ITEMS,
        "  excluded.first += span.start - rank;\n",
        "",
        EXCLUDED + "::test_every_fanout",
    ),
    Fault(
        "with replacement nodes without edges draw some on the GPU",
        SAMPLE,
        "edges = graph.replace && edges > 0 ? k : minimum(k, edges);",
        "edges = graph.replace && span.degree > 0 ? k : minimum(k, edges);",
        ATTRIBUTES + "::test_any_graph",
    ),
    Fault(
        "fan-outs with replacement above a sub-warp are cut",
        SAMPLE,
        "slot < item.size; slot += lanes) {\n      const u32 pick",
        "slot < item.size; slot += item.size) {\n      const u32 pick",
        KERNELS + "::test_every_fanout",
    ),
    Fault(
        "race: a block's sums are read before all are written",
        SCAN,
        "  if (lane == kWarp - 1) warp_sum[warp] = sum;\n  __syncthreads();\n",
        "  if (lane == kWarp - 1) warp_sum[warp] = sum;\n",
        KERNELS + "::test_any_graph",
    ),
    Fault(
        "race: a block's sums are written again while they are read",
        SCAN,
        "  __syncthreads();  // the next call writes `warp_sum` again\n",
        "",
        KERNELS + "::test_any_graph",
    ),
    Fault(
        "blocks behind the second begin at the wrong sum",
        SCAN,
        "for (i64 block = threadIdx.x; block < blockIdx.x; block += blockDim.x) mine += run_sum[block];",
        "for (i64 block = threadIdx.x; block < minimum(1, blockIdx.x); block += blockDim.x) mine += run_sum[block];",
        KERNELS + "::test_every_fanout",
    ),
    Fault(
        "race: places are looked up before their run is written",
        SCAN,
        "  __syncthreads();  // the places of the run may have been written by any thread of the block\n",
        "",
        KERNELS + "::test_any_graph",
    ),
    Fault(
        "of a repeated seed any place counts",
        RELABEL,
        "      atomicMin(&batch.table.table[first + v], window.base + static_cast<u32>(i));",
        "      atomic_write(&batch.table.table[first + v], window.base + static_cast<u32>(i));",
        KERNELS + "::test_any_graph",
    ),
    Fault(
        "new nodes of a type found by two relations get the same ids",
        RELABEL,
        "edges.new_base[r] = hop.known[src] + edges.new_ptr[i] - edges.new_ptr[graph.source_ptr[src]];",
        "edges.new_base[r] = hop.known[src];",
        KERNELS + "::test_heterogeneous",
    ),
    Fault(
        "race: items are counted before the nodes behind the hop",
        RELABEL,
        "  __syncthreads();  // `after` is complete\n",
        "",
        KERNELS + "::test_any_graph",
    ),
    Fault(
        "more relations than threads: the sums begin anew",
        RELABEL,
        "    carry += found.all;\n",
        "    carry = 0;\n",
        KERNELS + "::test_any_graph",
    ),
    Fault(
        "seeds of a type behind others belong to the wrong subgraphs",
        RELABEL,
        "nodes.seed_of[start + i] = static_cast<i32>(first + i);",
        "nodes.seed_of[start + i] = static_cast<i32>(i);",
        KERNELS + "::test_heterogeneous",
    ),
    Fault(
        "the hash table takes nodes of two subgraphs for one",
        TABLE,
        "return edges.row[edge] == key.node && (!disjoint || edges.group[edge] == key.subgraph);",
        "return edges.row[edge] == key.node;",
        KERNELS + "::test_a_node_counts_once_in_each_of_many_subgraphs",
    ),
    Fault(
        "the hash table ends at its last slot",
        TABLE,
        "    const u32 seen = batch.table.table[first + static_cast<i64>(at)];\n",
        "    if (at + 1 == static_cast<u64>(slots)) return -1;\n"
        "    const u32 seen = batch.table.table[first + static_cast<i64>(at)];\n",
        KERNELS + "::test_a_hash_table_goes_on_at_its_begin",
    ),
    Fault(
        "entries of an earlier batch are taken for this one's",
        TABLE,
        "return entry - base < width;",
        "return entry >= base;",
        KERNELS + "::test_any_graph",
    ),
    Fault(
        "the last piece of a row of several is left out",
        ROWS,
        "    if (number >= pieces) {",
        "    if (number >= pieces - (pieces > 2)) {",
        GATHER + "::test_every_dtype",
    ),
    Fault(
        "halves are rounded down on the GPU",
        DECODE,
        "sign | (((size + 0xFFF + (size >> 13 & 1)) >> 13) - 0x1C000)",
        "sign | ((size >> 13) - 0x1C000)",
        DECODING + "::test_any_row_at_any_address",
    ),
    Fault(
        "edges of a later hop are written over those of an earlier one on the GPU",
        EMIT,
        "      earlier += h < hop.number ? end - begin : 0;",
        "      earlier += h + 1 < hop.number ? end - begin : 0;",
        KERNELS + "::test_every_fanout",
    ),
    Fault(
        "induced edges that a seed may not see are listed",
        EMIT,
        "if (graph.time_base[r] != kNoTime) {",
        "if (graph.time_base[r] > 0) {",
        ATTRIBUTES + "::test_any_graph",
    ),
    Fault(
        "induced edges that are excluded are listed",
        EMIT,
        "const bool may_be = p < end && !is_excluded(*batch, p, excluded);",
        "const bool may_be = p < end;",
        EXCLUDED + "::test_any_graph",
    ),
    Fault(
        "induced edges of a list beyond 32 are written over",
        EMIT,
        "        count += __popc(found);\n",
        "        if (round == span.start) count += __popc(found);\n",
        KERNELS + "::test_any_graph",
    ),
    Fault(
        "the last excluded edge of a list is drawn",
        EXCLUDE,
        "if (batch.nodes.excluded[middle] - (middle - excluded.first) > rank) {",
        "if (batch.nodes.excluded[middle] - (middle - excluded.first) >= rank) {",
        EXCLUDED + "::test_any_graph",
    ),
    Fault(
        "draws for others depend on where their nodes lie",
        ITEMS,
        "  if (batch.nodes.has_local) item.local = batch.nodes.local[place];\n",
        "",
        SEAM + "::test_everything_at_once",
    ),
    Fault(
        "words are not refused on the GPU",
        PHILOX,
        "const u32 threshold = (0u - bound) % bound;",
        "const u32 threshold = 0;",
        KERNELS + "::test_words_that_are_refused",
    ),
    Fault(
        "picks of later relations belong to other nodes",
        PICKS,
        "const i64 local = at.expanded[dst] + item - at.item_base[r];",
        "const i64 local = at.expanded[dst] + item;",
        SEAM + "::test_everything_at_once",
    ),
    Fault(
        "nodes of another type draw nothing",
        PICKS,
        "if (dst == type && skip[nodes.node[place]]) {",
        "if (skip[nodes.node[place]]) {",
        SEAM + "::test_nodes_that_draw_nothing",
    ),
    Fault(
        "a neighbour of the seed's time is too late on the GPU",
        TIMES,
        "if (graph.time[at] <= latest) {",
        "if (graph.time[at] < latest) {",
        ATTRIBUTES + "::test_any_graph",
    ),
    Fault(
        "weighted lists of more than 64 on the GPU: the same edge twice",
        WEIGHTED,
        "is_new = position[first + i] != chosen;",
        "is_new = true;",
        ATTRIBUTES + "::test_every_fanout_by_weight",
    ),
    Fault(
        "weighted draws past excluded edges take the gap before",
        WEIGHTED,
        "    before = item.cumulative[stop];\n    gap = stop + 1;\n",
        "    gap = stop + 1;\n",
        EXCLUDED + "::test_every_fanout",
    ),
    Fault(
        "a weighted draw is rounded past the last weight",
        WEIGHTED,
        "for (bool past = pick == weights.end; past; past = weights.weight[pick] <= 0.0) --pick;",
        "if (pick == weights.end) --pick;",
        ATTRIBUTES + "::test_a_part_of_a_list_with_next_to_no_weight",
    ),
    Fault(
        "race: LABOR sorts its picks while another lane enters one",
        LABOR,
        "      __syncwarp(kAllLanes);\n    }\n  }\n  if (lane == 0) heap.sort();",
        "    }\n  }\n  if (lane == 0) heap.sort();",
        "tests/loader/test_labor.py::test_edges_are_those_of_smallest_variates",
    ),
    Fault(
        "LABOR on the GPU keeps a larger variate",
        LABOR,
        "wanted = heap.size < item.size || variate < heap.variate_at(0);",
        "wanted = heap.size < item.size;",
        "tests/loader/test_labor.py::test_edges_are_those_of_smallest_variates",
    ),
    Fault(
        "a read behind the end of the link's table",
        BANDWIDTH,
        "load_if<uint4>(word < words, source,",
        "load_if<uint4>(word <= words, source,",
        "tests/unit/tools/doctor/test_bandwidth.py::test_every_line_is_asked_for_once",
    ),
]
