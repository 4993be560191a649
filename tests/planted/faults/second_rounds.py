"""Faults of the kernels and the backends that show the second time, or where something is full.

Loops of few blocks, tables at their ends, ids above 32 bits, second launches, draws and windows,
copies in other processes, and budgets of 0.
"""

from __future__ import annotations

from ..fault import Fault

EMIT_CU = "cuda/emit.cu"
LABOR_CU = "cuda/labor.cu"
PICKS = "cuda/picks.cu"
RELABEL_CU = "cuda/relabel.cuh"
SAMPLE_CU = "cuda/sample.cu"
SCAN = "cuda/scan.cuh"
TABLE_CU = "cuda/table.cuh"
WEIGHTED_CU = "cuda/weighted.cu"
BOUNDS = "pyg_direct/kernels/bounds.py"
GROUPS = "pyg_direct/kernels/groups.py"
LABOR = "pyg_direct/kernels/labor.py"
PUSH = "pyg_direct/kernels/push.py"
SAMPLE = "pyg_direct/kernels/sample.py"
CPU_BACKEND = "pyg_direct/ops/cpu/backend.py"
CPU_DRAWING = "pyg_direct/ops/cpu/drawing.py"
CPU_WORKSPACE = "pyg_direct/ops/cpu/workspace.py"
SCRATCH = "pyg_direct/ops/cpu/scratch.py"
ARRAYS = "pyg_direct/ops/cuda/arrays.py"
BACKEND = "pyg_direct/ops/cuda/backend.py"
CERTIFICATE = "pyg_direct/ops/cuda/certificate.py"
DRAWING = "pyg_direct/ops/cuda/drawing.py"
LAUNCH = "pyg_direct/ops/cuda/launch.py"
PINNING = "pyg_direct/ops/cuda/pinning.py"
PLACER = "pyg_direct/ops/cuda/placer.py"
ROW_CACHE = "pyg_direct/ops/cuda/row_cache.py"
TABLE = "pyg_direct/ops/cuda/table.py"
WORKSPACE = "pyg_direct/ops/cuda/workspace.py"
BUDGET = "pyg_direct/ops/host/budget.py"
KEYS = "pyg_direct/ops/host/keys.py"
IN_COMMON = "pyg_direct/ops/host/in_common.py"
PAGERANK = "pyg_direct/ops/host/pagerank.py"
PARTS = "pyg_direct/ops/host/parts.py"

KERNELS = "tests/kernels/test_cuda_kernels.py"
ATTRIBUTES = "tests/kernels/test_cuda_attributes.py"
EXCLUDED = "tests/kernels/test_cuda_excluded.py"
CACHED = "tests/kernels/test_cuda_cached.py"
SEAM = "tests/kernels/test_seam.py"
OF_LABOR = "tests/loader/test_labor.py"
CPU = "tests/unit/ops/cpu/test_backend.py"
PLACES = "tests/unit/ops/cuda/test_placer.py"

FAULTS = [
    Fault(
        "fan-outs above 32 are drawn for as many nodes as there are warps",
        SAMPLE_CU,
        "for (i64 number = warp; number < items; number += thread_count() / kWarp) {",
        "for (i64 number = warp; number < items; number += items) {",
        SEAM + "::test_one_block_that_goes_round",
    ),
    Fault(
        "of all neighbours as many tiles are taken as there are warps",
        SAMPLE_CU,
        "tile < tiles; tile += thread_count() / kWarp) {",
        "tile < tiles; tile += tiles) {",
        SEAM + "::test_one_block_that_goes_round",
    ),
    Fault(
        "weighted draws are made for as many nodes as there are threads",
        WEIGHTED_CU,
        "for (i64 number = thread_number(); number < items; number += thread_count()) {",
        "for (i64 number = thread_number(); number < items; number += items) {",
        SEAM + "::test_one_block_that_goes_round",
    ),
    Fault(
        "LABOR draws for as many nodes as there are warps",
        LABOR_CU,
        "number < items; number += thread_count() / kWarp) {",
        "number < items; number += items) {",
        SEAM + "::test_one_block_that_goes_round",
    ),
    Fault(
        "as many edges are handed out as there are threads",
        EMIT_CU,
        "  for (i64 i = thread_number(); i < count; i += thread_count()) {",
        "  for (i64 i = thread_number(); i < count; i += count) {",
        SEAM + "::test_one_block_that_goes_round",
    ),
    Fault(
        "edges between the nodes are listed for as many as there are warps",
        EMIT_CU,
        "i < places; i += thread_count() / kWarp) {",
        "i < places; i += places) {",
        SEAM + "::test_one_block_that_goes_round",
    ),
    Fault(
        "of what another rank drew as many edges are taken as there are threads",
        PICKS,
        "edge < edges; edge += thread_count()) {",
        "edge < edges; edge += edges) {",
        SEAM + "::test_one_block_that_goes_round",
    ),
    Fault(
        "relations behind the first block of threads have no edges on the GPU",
        SCAN,
        "  for (i64 i = threadIdx.x; i < places; i += blockDim.x) {",
        "  for (i64 i = threadIdx.x; i < places; i += places) {",
        KERNELS + "::test_more_relations_than_threads",
    ),
    Fault(
        "more relations than threads: items of the next hop are numbered anew",
        RELABEL_CU,
        "    carry += items.all;\n",
        "    carry = 0;\n",
        KERNELS + "::test_more_relations_than_threads",
    ),
    Fault(
        "the hash table of a node type goes on in that of the next type",
        TABLE_CU,
        "at = (at + 1) & static_cast<u64>(slots - 1)) {\n"
        "    const i64 slot = first + static_cast<i64>(at);",
        "++at) {\n    const i64 slot = first + static_cast<i64>(at);",
        KERNELS + "::test_a_hash_table_goes_on_at_its_begin",
    ),
    Fault(
        "a source that is the seed of another subgraph is taken for that one",
        TABLE_CU,
        "    return nodes.node[start + x] == key.node &&\n"
        "           (!disjoint || nodes.seed_of[start + x] == key.subgraph);\n",
        "    return nodes.node[start + x] == key.node;\n",
        KERNELS + "::test_a_node_counts_once_in_each_of_many_subgraphs",
    ),
    Fault(
        "ids above 32 bits are cut in the hash table",
        TABLE_CU,
        "struct Key {\n  i64 node;",
        "struct Key {\n  i32 node;",
        KERNELS + "::test_ids_above_32_bits",
    ),
    Fault(
        "LABOR on the GPU: nodes of which the lower 32 bits are equal are taken together",
        LABOR_CU,
        "high = static_cast<u32>(static_cast<u64>(t) >> 32);",
        "high = 0;",
        KERNELS + "::test_ids_above_32_bits",
        slow=True,
    ),
    Fault(
        "LABOR: nodes of which the lower 32 bits are equal are taken together",
        LABOR,
        "        words = philox4x32_inlined(t & MASK, t >> SHIFT, stream, PURPOSE_LABOR, k0, k1)\n",
        "        words = philox4x32_inlined(t & MASK, NONE_CHANGED, stream, PURPOSE_LABOR, k0, k1)\n",
        KERNELS + "::test_ids_above_32_bits",
        slow=True,
    ),
    Fault(
        "launches go on with the state where it lay before it grew",
        WORKSPACE,
        "        if self._state.begin(given, key, rules):\n            self._launches.clear()\n",
        "        self._state.begin(given, key, rules)\n",
        EXCLUDED + "::test_excluded_edges_that_outgrow_the_state_of_a_batch",
    ),
    Fault(
        "picks on the GPU that a rank drew for one batch change with the next draw",
        DRAWING,
        "return Picks(count, *map(device_memory.copied, sources))",
        "return Picks(count, *sources)",
        SEAM + "::test_what_is_drawn_for_others_changes_nothing",
    ),
    Fault(
        "a hop has more edges than its window has numbers",
        TABLE,
        "return locals <= self.locals and edges <= self.width - self.locals",
        "return locals <= self.locals",
        KERNELS,
    ),
    Fault(
        "kernels of one combination of id widths run for another",
        LAUNCH,
        "key = (file, *sorted(types.items()))",
        "key = (file, *sorted(types.values()))",
        "tests/unit/ops/cuda/test_launch_arguments.py",
    ),
    Fault(
        "a lack of device memory counts as a device that fails its check",
        CERTIFICATE,
        "    except (torch.cuda.OutOfMemoryError, MemoryError):\n        raise\n",
        "",
        "tests/unit/ops/cuda/test_certificate.py",
    ),
    Fault(
        "device_bytes=0 is taken for no limit",
        PLACER,
        "        if device_bytes is None:\n",
        "        if not device_bytes:\n",
        PLACES,
    ),
    Fault(
        "a cache takes memory when the budget is used up",
        PLACER,
        "        if self._left is None:\n            self.open_budget(None)\n"
        "        assert self._left is not None\n        return min(",
        "        if not self._left:\n            self.open_budget(None)\n"
        "        assert self._left is not None\n        return min(",
        PLACES,
    ),
    Fault(
        "a loader in another process reads with as many blocks as fill the link",
        BACKEND,
        "return CudaBackend, (self.device, None, self.gather_blocks)",
        "return CudaBackend, (self.device, None)",
        "tests/kernels/test_cuda_gather.py",
    ),
    Fault(
        "parts of a cache that did not fit stay in device memory",
        ROW_CACHE,
        "                self._caches.clear()\n",
        "",
        CACHED,
    ),
    Fault(
        "memory is registered that a lease which has ended is about to unregister",
        PINNING,
        "        self._work_off()  # a range that is about to be left may overlap this one\n",
        "",
        "tests/unit/ops/cuda/test_pinning.py",
    ),
    Fault(
        "a file with an infinite weight is taken",
        BOUNDS,
        "if not (0.0 <= weight[p] < np.inf) or cumulative[p] != total:",
        "if not 0.0 <= weight[p] or cumulative[p] != total:",
        "tests/kernels/test_bounds.py",
    ),
    Fault(
        "seeds that outnumber the nodes leave no room for what they find",
        SAMPLE,
        "        new = node_bound[t] if node_bound[t] < num_nodes[t] else num_nodes[t]\n"
        "        node_bound[t] = node_ptr[hop + 1, t] + new\n",
        "        bound = node_ptr[hop + 1, t] + node_bound[t]\n"
        "        node_bound[t] = bound if bound < num_nodes[t] else num_nodes[t]\n",
        SEAM + "::test_copies_of_a_seed_that_find_most_nodes",
    ),
    Fault(
        "seeds that outnumber the nodes leave no room for what other ranks find",
        CPU_DRAWING,
        "self._node_bound[:] = found + np.minimum(new, self._node_limit)",
        "self._node_bound[:] = np.minimum(found + new, self._node_limit)",
        SEAM + "::test_copies_of_a_seed_that_find_most_nodes",
    ),
    Fault(
        "picks that a rank drew for one batch change with the next draw",
        CPU_DRAWING,
        "            torch.from_numpy(self._row[:edges].copy()),\n",
        "            torch.from_numpy(self._row[:edges]),\n",
        SEAM + "::test_what_is_drawn_for_others_changes_nothing",
    ),
    Fault(
        "a frontier changes while its batch goes on",
        CPU_WORKSPACE,
        "parts = [[torch.from_numpy(a[s + b : s + e].copy()) for s, b, e in ends] for a in lists]",
        "parts = [[torch.from_numpy(a[s + b : s + e]) for s, b, e in ends] for a in lists]",
        SEAM + "::test_what_is_drawn_for_others_changes_nothing",
    ),
    Fault(
        "pages of a large table are not asked for where a small one comes behind it",
        CPU_BACKEND,
        "large = large or num_rows * row_bytes >= file_pages.MIN_TABLE_BYTES",
        "large = num_rows * row_bytes >= file_pages.MIN_TABLE_BYTES",
        "tests/unit/ops/cpu/test_file_pages.py",
    ),
    Fault(
        "nodes of a group at the end of its hash table are not found",
        GROUPS,
        "        while (keys[slot] != indices[p]) & (keys[slot] != FREE):\n"
        "            slot = (slot + ONE) & mask\n",
        "        while (keys[slot] != indices[p]) & (keys[slot] != FREE):\n"
        "            slot = slot + ONE\n",
        "tests/unit/ops/host/test_groups.py",
    ),
    Fault(
        "PageRank: nodes at the end of the hash table are known to the next seed",
        PUSH,
        "            keys[slot] = FREE\n            slot = (slot + np.uint64(1)) & mask\n",
        "            keys[slot] = FREE\n            slot = slot + np.uint64(1)\n",
        "tests/unit/loaders/test_pagerank.py",
    ),
    Fault(
        "nodes of the batch before are entered where the hash table grows",
        SCRATCH,
        "        self._ends.fill(0)\n",
        "",
        CPU + "::test_growth",
    ),
    Fault(
        "draws for a later hop begin behind the nodes of the hop before",
        ARRAYS,
        'tables["node_ptr"][:], tables["item_base"][:] = 0, 0',
        'tables["item_base"][:] = 0',
        SEAM,
    ),
    Fault(
        "an odd number of weighted negatives has one too few",
        KEYS,
        "counter = np.arange((size + 1) // 2, dtype=np.uint64)",
        "counter = np.arange(size // 2, dtype=np.uint64)",
        "tests/kernels/test_philox.py::test_uniforms_of_any_number",
    ),
    Fault(
        "PageRank: the neighbours of a hub are more than there is room for",
        PAGERANK,
        "min(num_nodes, largest + int(1 / (alpha * tolerance)) + 2)",
        "min(num_nodes, int(1 / (alpha * tolerance)) + 2)",
        "tests/unit/loaders/test_pagerank.py::test_there_is_room_for_all_that_a_seed_may_reach",
    ),
    Fault(
        "rows of another part that the window before wanted are not asked for again",
        PARTS,
        "        self._stamp += int(count.max(initial=0))\n",
        "        self._stamp += int(count[0])\n",
        "tests/unit/ops/host/test_parts.py",
    ),
    Fault(
        "nodes are known to a window of batches once stamps begin anew",
        PARTS,
        "            self._table[:], self._stamp = 0, 1\n",
        "            self._stamp = 1\n",
        "tests/unit/ops/host/test_parts.py",
    ),
    Fault(
        "HGT: nodes are known to a batch once stamps begin anew",
        BUDGET,
        "            self._table[:] = 0\n",
        "",
        "tests/unit/loaders/test_hgt.py",
    ),
    Fault(
        "nodes of other ranks that a later hop finds have the numbers of the first hop's",
        IN_COMMON,
        "numbers = np.arange(self._counts[1], self._counts[1] + count)",
        "numbers = np.arange(count)",
        "tests/unit/ops/host/test_in_common.py",
    ),
    Fault(
        "nodes that a hop found are lost where other ranks find many",
        IN_COMMON,
        "            longer[:, :count] = self._found[:, :count]\n",
        "",
        "tests/unit/ops/host/test_in_common.py",
    ),
    Fault(
        "edges of nodes that are placed anew count twice in their part",
        "pyg_direct/kernels/parts.py",
        "                edges[part[v]] -= degree\n",
        "",
        "tests/unit/partitions/test_partition.py",
    ),
    Fault(
        "ShaDow: edges that were found are lost where the lists grow",
        "pyg_direct/ops/host/lists.py",
        "            new.numpy()[:count] = old.numpy()[:count]\n",
        "            pass\n",
        "tests/unit/ops/host/test_groups.py",
    ),
    Fault(
        "nodes of the last hop are not entered where the table is a new one",
        RELABEL_CU,
        "nodes.node_ptr[(hop + 1) * batch.graph.num_types + type];",
        "nodes.node_ptr[(hop > 0 ? hop : 1) * batch.graph.num_types + type];",
        KERNELS,
    ),
    Fault(
        "what torch's cache holds unused is not counted as free",
        "pyg_direct/ops/cuda/compiler.py",
        "return torch.cuda.mem_get_info(self.device)[0] + cached",
        "return torch.cuda.mem_get_info(self.device)[0]",
        "tests/kernels/test_real_cupy.py tests/unit/ops/cuda/test_compiler.py",
    ),
    Fault(
        "a NaN becomes infinity in bfloat16 on the GPU",
        "cuda/decode.cuh",
        "  if ((bits & 0x7FFFFFFF) > 0x7F800000) return bits >> 16 | 0x40;\n",
        "",
        "tests/kernels/test_cuda_decode.py",
    ),
    Fault(
        "an infinite float16 is a number on the GPU",
        "cuda/decode.cuh",
        "(size < 0x7C00 ? 0x38000000u : 0x70000000u)",
        "(size <= 0x7C00 ? 0x38000000u : 0x70000000u)",
        "tests/kernels/test_cuda_decode.py",
    ),
]
