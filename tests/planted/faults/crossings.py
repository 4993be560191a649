"""Faults of the kernels and of the CUDA backend where two right pieces meet.

Exclusion and disjoint subgraphs, several node types, repeated seeds, parallel edges, lists that
grow in the middle of a hop, draws for others, rows in several pieces, large tables, and streams.
"""

from __future__ import annotations

from ..fault import Fault

ARRAYS = "pyg_direct/ops/cuda/arrays.py"
BACKEND = "pyg_direct/ops/cuda/backend.py"
DRAWING = "pyg_direct/ops/cuda/drawing.py"
FORECAST = "pyg_direct/ops/cuda/bounds.py"
ROW_CACHE = "pyg_direct/ops/cuda/row_cache.py"
WORKSPACE = "pyg_direct/ops/cuda/workspace.py"
EMIT_CU = "cuda/emit.cu"
LABOR_CU = "cuda/labor.cu"
ROWS = "cuda/rows.cuh"
EMIT = "pyg_direct/kernels/emit.py"
EXCLUDE = "pyg_direct/kernels/exclude.py"
LABOR = "pyg_direct/kernels/labor.py"
PARTS = "pyg_direct/kernels/parts.py"
TEMPORAL = "pyg_direct/kernels/temporal.py"
WEIGHTED = "pyg_direct/kernels/weighted.py"

KERNELS = "tests/kernels/test_cuda_kernels.py"
ATTRIBUTES = "tests/kernels/test_cuda_attributes.py"
EXCLUDED = "tests/kernels/test_cuda_excluded.py"
CACHED = "tests/kernels/test_cuda_cached.py"
GATHER = "tests/kernels/test_cuda_gather.py"
SEAM = "tests/kernels/test_seam.py"
LARGE = "tests/unit/ops/test_large_ids.py"
OF_LABOR = "tests/loader/test_labor.py"
OF_PARTS = "tests/unit/ops/host/test_parts.py"
SIDE = "tests/unit/ops/cuda/test_cuda_streams.py tests/unit/ops/cuda/test_streams.py"
NEXT_TO_NONE = ATTRIBUTES + "::test_a_part_of_a_list_with_next_to_no_weight"
TRAFFIC = "tests/unit/loading/test_stats.py"

FAULTS = [
    Fault(
        "disjoint subgraphs draw excluded edges in later hops on the GPU",
        "cuda/sample.cuh",
        "if (graph.excluding && (graph.disjoint || hop.number == 0)) {",
        "if (graph.excluding && hop.number == 0) {",
        EXCLUDED,
    ),
    Fault(
        "induced edges of a later relation have ids of the whole graph where there is no `perm`",
        EMIT_CU,
        "static_cast<i64>(perm[p]) : p - graph.edge_base[r];",
        "static_cast<i64>(perm[p]) : p;",
        KERNELS,
    ),
    Fault(
        "induced edges of disjoint subgraphs are looked for in the first one",
        EMIT_CU,
        "Key{graph.indices[p], subgraph}",
        "Key{graph.indices[p], 0}",
        KERNELS,
    ),
    Fault(
        "cached rows in several pieces are counted several times",
        ROWS,
        "own += lane == 0 && at.number == 0 && slot[u] >= 0;",
        "own += lane == 0 && slot[u] >= 0;",
        CACHED,
    ),
    Fault(
        "rows behind the first 2 GiB of a table are others on the GPU",
        ROWS,
        "const i64 source = id[u] * shape.row_bytes;",
        "const i64 source = static_cast<i32>(id[u] * shape.row_bytes);",
        LARGE,
    ),
    Fault(
        "rows behind the first 2 GiB of what is cached are others",
        ROWS,
        "held, slot * row_bytes + column, table,",
        "held, slot * static_cast<i32>(row_bytes) + column, table,",
        LARGE,
    ),
    Fault(
        "of rows that begin amid a line at another phase the last bytes are not read",
        BACKEND,
        "reach = row_bytes + LINE_BYTES - step + address % step",
        "reach = row_bytes + LINE_BYTES - step",
        GATHER,
    ),
    Fault(
        "factors of columns are counted as read for each row",
        BACKEND,
        "                if scale is not None and scale.dim() == 2:\n",
        "                if scale is not None:\n",
        TRAFFIC,
    ),
    Fault(
        "factors of rows are written over while a stream reads them",
        BACKEND,
        "record_stream(part for part in (rows, scale) if part is not None)",
        "record_stream((rows,))",
        SIDE,
    ),
    Fault(
        "cached rows are written over while a stream reads them",
        BACKEND,
        "self.streams.record_stream((cache.slots, cache.held))",
        "self.streams.record_stream((cache.slots,))",
        CACHED + " " + SIDE,
    ),
    Fault(
        "another stream reads cached rows before they are there",
        ROW_CACHE,
        "            synchronize()  # other streams will read them\n",
        "",
        CACHED,
    ),
    Fault(
        "draws for the last of several subgraphs read excluded edges that are none",
        ARRAYS,
        "subgraphs = 1 + max((int(part.max())",
        "subgraphs = max((int(part.max())",
        SEAM,
    ),
    Fault(
        "ids of edges that were entered for one batch are those of the next",
        WORKSPACE,
        "        self._seeds_entered, self._edge_ids = False, {}\n",
        "        self._seeds_entered = False\n",
        SEAM,
    ),
    Fault(
        "small hops of larger fan-outs than the one before draw too few",
        WORKSPACE,
        "last=end, lanes=lanes_of(self._plan.fanouts[hop:end]),",
        "last=end, lanes=lanes_of(self._plan.fanouts[hop]),",
        KERNELS,
    ),
    Fault(
        "weights before an item are lost where its hop takes whole lists of another relation",
        DRAWING,
        'self._arrays.grow("item_low", weights, [(0, len(self._arrays["item_low"]))])',
        'self._arrays.grow("item_low", weights)',
        ATTRIBUTES,
    ),
    Fault(
        "excluded edges of an item are lost where its hop takes whole lists of another relation",
        DRAWING,
        'self._arrays.grow("item_excluded", excluded, [(0, len(self._arrays["item_excluded"]))])',
        'self._arrays.grow("item_excluded", excluded)',
        EXCLUDED,
    ),
    Fault(
        "repeated seeds of which all nodes are found have too little room",
        FORECAST,
        "self._most_nodes = seeds + self._csc.num_nodes",
        "self._most_nodes = np.maximum(seeds, self._csc.num_nodes)",
        KERNELS,
    ),
    Fault(
        "draws for equal nodes of several batches have too little room",
        FORECAST,
        "self._last, self._distinct = hop + 1, False",
        "self._last = hop + 1",
        SEAM,
    ),
    Fault(
        "excluded edges before the latest are cut out again where fan-outs adapt",
        "cuda/picks.cu",
        "      if (graph.excluding) items.item_excluded[2 * item] = excluded.first;\n",
        "",
        "tests/loader/test_adaptive.py",
    ),
    Fault(
        "LABOR on the GPU: nodes of two types with one id are taken together",
        LABOR_CU,
        "static_cast<u32>(layer) | type << 8, static_cast<u32>(key[2])",
        "static_cast<u32>(layer), static_cast<u32>(key[2])",
        OF_LABOR,
    ),
    Fault(
        "LABOR takes other parallel edges than on the GPU",
        LABOR,
        "((variate[j] == own) & (j < i))",
        "((variate[j] == own) & (j > i))",
        OF_LABOR,
    ),
    Fault(
        "edges between nodes of a later type are listed in other subgraphs",
        EMIT,
        "key = seed_of[dst_start + i] * total + src_base",
        "key = seed_of[i] * total + src_base",
        KERNELS,
    ),
    Fault(
        "nodes of a later type do without the excluded edges of other subgraphs",
        EXCLUDE,
        "group = seed_of[seed_first + i - first] if disjoint else 0",
        "group = seed_of[i - first] if disjoint else 0",
        "tests/unit/ops/cpu/test_excluded_edges.py",
    ),
    Fault(
        "windows without a begin are closed in later hops",
        TEMPORAL,
        "if seed_before[seed_of[seed_first + i]] == LARGEST_TIME:",
        "if seed_before[seed_of[i]] == LARGEST_TIME:",
        "tests/loader/test_time_window.py",
    ),
    Fault(
        "a node that several ranks find has the key of the last one",
        "pyg_direct/kernels/in_common.py",
        "own[1, at] = min(own[1, at], key[i])",
        "own[1, at] = key[i]",
        "tests/unit/ops/host/test_in_common.py",
    ),
    Fault(
        "the first row that each other part is asked for is asked for twice",
        PARTS,
        "            if table[v] < stamp:\n",
        "            if table[v] <= stamp:\n",
        OF_PARTS,
    ),
    Fault(
        "rows behind the end of a small part are read where another is larger",
        PARTS,
        "if row < 0 or row >= num_rows[p]:",
        "if row < 0 or row >= num_rows.max():",
        OF_PARTS,
    ),
    Fault(
        "gradients of attention with several heads whose columns are no multiple of 8 are wrong",
        "pyg_direct/kernels/heads.py",
        "for c in range(start + whole, start + columns):",
        "for c in range(start + whole, columns):",
        "tests/unit/ops/test_attention.py",
    ),
    Fault(
        "times that leave next to no weight: an edge of weight 0 is drawn with replacement",
        WEIGHTED,
        "                while weight[p] <= 0.0:\n                    p -= 1\n",
        "",
        NEXT_TO_NONE,
    ),
    Fault(
        "times that leave next to no weight: the edge behind the list is drawn",
        WEIGHTED,
        "        is_new &= chosen < end  # else rounding went past the last weight\n",
        "",
        NEXT_TO_NONE,
    ),
    Fault(
        "times that leave next to no weight: the GPU draws the edge behind the list",
        "cuda/weighted.cu",
        "if (is_new && chosen < item.end) position",
        "if (is_new) position",
        NEXT_TO_NONE,
    ),
    Fault(
        "many candidates of LABOR are written behind their memory",
        LABOR,
        "if chosen.shape[0] < count + BLOCK:",
        "if chosen.shape[0] < count:",
        OF_LABOR,
    ),
]
