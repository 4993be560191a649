"""Faults in the core, among ranks and in the commands."""

from __future__ import annotations

from ..fault import Fault

ARGUMENTS = "pyg_direct/core/arguments.py"
CONFIG = "pyg_direct/core/config.py"
LAZY = "pyg_direct/core/lazy_tensor.py"
TORCH = "pyg_direct/core/private_torch.py"
PYG = "pyg_direct/core/pyg.py"
QUANTIZED = "pyg_direct/core/quantized.py"
TYPES = "pyg_direct/core/types.py"
UNITS = "pyg_direct/core/units.py"
EXCHANGE = "pyg_direct/ranks/exchange.py"
MEMORY = "pyg_direct/ranks/memory.py"
SHARE = "pyg_direct/ranks/share.py"
SHARED = "pyg_direct/ranks/shared_graph.py"
SPLIT = "pyg_direct/ranks/split.py"
TOGETHER = "pyg_direct/ranks/together.py"
PLAN = "pyg_direct/tools/plan.py"
PLAN_BATCHES = "pyg_direct/tools/plan_batches.py"
INFO = "pyg_direct/tools/info.py"

BAD = "tests/loader/test_bad_arguments.py tests/loader/test_bad_input.py"
NARROW = "tests/unit/core/test_quantized.py"
OF_SHARE = "tests/unit/ranks/test_share.py"
OF_PLAN = "tests/unit/tools/test_plan.py"

FAULTS = [
    Fault(
        "plan: the batch that warms up is counted",
        PLAN_BATCHES,
        "    found = found[1:]\n",
        "    found = found[:-1]\n",
        OF_PLAN,
    ),
    Fault(
        "plan: the last batch is left out",
        PLAN_BATCHES,
        "    found = found[1:]\n",
        "    found = found[1:-1]\n",
        OF_PLAN,
    ),
    Fault(
        "plan: the topology is forgotten where all is in GPU memory",
        PLAN,
        '("all in GPU memory", plan.topology_bytes + plan.feature_bytes <= room, 0.0),',
        '("all in GPU memory", plan.feature_bytes <= room, 0.0),',
        OF_PLAN,
    ),
    Fault(
        "plan: the topology is forgotten where rows are cached",
        PLAN,
        "return max(0, self.room_bytes - self.topology_bytes)",
        "return max(0, self.room_bytes)",
        "tests/unit/tools/test_plan.py::test_what_fits_where",
    ),
    Fault(
        "plan: the topology lacks its pointers",
        PLAN,
        "(num_nodes + 1 + num_edges) * (4 if max(num_nodes, num_edges) < 2**31 else 8),",
        "num_edges * (4 if max(num_nodes, num_edges) < 2**31 else 8),",
        "tests/unit/tools/test_plan.py::test_what_fits_where",
    ),
    Fault(
        "plan: nodes of one type only are gathered",
        PLAN,
        "        sum(means[kind] * row_bytes[kind] for kind in counts),\n",
        "        max(means[kind] * row_bytes[kind] for kind in counts),\n",
        OF_PLAN,
    ),
    Fault(
        "out-degrees of a second relation of a type are lost",
        "pyg_direct/graph/visits.py",
        "found[source] += np.bincount(",
        "found[source] = np.bincount(",
        "tests/unit/graph/test_visits.py",
    ),
    Fault(
        "plan: a cache is judged by the batches that it was made of",
        PLAN,
        "batches, question.seed_type, seed=1",
        "batches, question.seed_type, seed=0",
        "tests/unit/tools/test_plan_cache.py",
    ),
    Fault(
        "plan: bytes of a cache are counted as rows",
        "pyg_direct/tools/plan_cache.py",
        "torch.tensor([1, width, blocks_of_row(width, LINE_BYTES)]",
        "torch.tensor([1, 1, blocks_of_row(width, LINE_BYTES)]",
        "tests/unit/tools/test_plan_cache.py",
    ),
    Fault(
        "plan: the last batch of an epoch that is not full is left out",
        PLAN,
        "        math.ceil(num_seeds / question.batch_size),\n",
        "        max(1, num_seeds // question.batch_size),\n",
        OF_PLAN,
    ),
    Fault(
        "ids just behind the nodes are taken",
        ARGUMENTS,
        "        if low < 0 or high >= end:\n",
        "        if low < 0 or high > end:\n",
        BAD,
    ),
    Fault(
        "an infinite amount of negatives is asked for",
        ARGUMENTS,
        "if config is not None and not math.isfinite(config.amount):",
        "if False:",
        "tests/loader/test_bad_arguments.py::test_the_link_loader_refuses",
    ),
    Fault(
        "a seed of True is taken for 1",
        ARGUMENTS,
        "if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):",
        "if not isinstance(seed, (int, np.integer)):",
        BAD,
    ),
    Fault(
        "excluding seed edges of a bidirectional subgraph brings them back",
        ARGUMENTS,
        "        if mirrored:\n            raise ValueError(",
        "        if False:\n            raise ValueError(",
        "tests/loader/test_exclude_seed_edges.py",
    ),
    Fault(
        "an empty PYG_DIRECT_DEVICE is an error",
        CONFIG,
        "        if not device:\n            return None\n",
        "        if device is None:\n            return None\n",
        "tests/unit/core/test_config.py",
    ),
    Fault(
        "columns of a quantized table are decoded by their rows' factors",
        QUANTIZED,
        "    if scale is not None and scale.dim() == 2:\n        scale = scale[index]\n",
        "    if scale is not None:\n        scale = scale[index]\n",
        NARROW,
    ),
    Fault(
        "elements too large for float16 become infinite",
        QUANTIZED,
        "limit = torch.finfo(dtype).max if dtype.is_floating_point "
        "else torch.finfo(torch.float32).max",
        "limit = torch.finfo(torch.float32).max",
        NARROW,
    ),
    Fault(
        "columns beyond the first steps are not looked at for their factor",
        QUANTIZED,
        "            largest = torch.maximum(largest, sizes.amax(dim=0))\n",
        "            largest = sizes.amax(dim=0)\n",
        "tests/unit/core/test_quantized.py::test_steps_make_no_difference",
    ),
    Fault(
        "a slice of a quantized table ignores its step",
        "pyg_direct/core/lazy_tensor.py",
        "return self.rows_at(slice(*(list(args[1:]) + [None] * 3)[:3]))",
        "return self.rows_at(slice(*(list(args[1:3]) + [None] * 3)[:3]))",
        NARROW,
    ),
    Fault(
        "all columns of an opened graph's edges cannot be selected",
        LAZY,
        "return _again(args[0])",
        "return args[0]",
        NARROW,
    ),
    Fault(
        "a shallow copy shares what a batch sets with the graph",
        PYG,
        "_mapping=fields_of(data._store).copy(), _parent=ref(batch))",
        "_mapping=fields_of(data._store), _parent=ref(batch))",
        "tests/unit/batch/test_gather.py tests/unit/batch/test_assemble.py",
    ),
    Fault(
        "what PyG had cached of a graph's attributes holds for its batches",
        PYG,
        '    fields.pop("_cached_attr", None)\n',
        "",
        "tests/unit/batch/test_gather.py::test_a_shallow_copy_is_pygs",
    ),
    Fault(
        "a graph that lacks an alias table is drawn from",
        TYPES,
        "if whole.any() and self.weights is not None and self.weights.alias is None:",
        "if False:",
        "tests/unit/files/test_saved_parts.py",
    ),
    Fault(
        "other arrays of a graph lose its weights",
        TYPES,
        'named = {name: found[name] for name in ("weight", "cumulative", "alias")}',
        'named = {name: found[name] for name in ("cumulative", "alias")}',
        "tests/unit/ops/cuda/test_placer.py tests/unit/ranks/test_share.py",
    ),
    Fault(
        "rows of a table at an odd address touch too few lines",
        UNITS,
        "return 1 + (row_bytes - (0 if address % step else step)) / block_bytes",
        "return 1 + (row_bytes - step) / block_bytes",
        "tests/unit/core/test_units.py::test_blocks_of_a_row_are_counted",
    ),
    Fault(
        "memory of a process that has ended is taken for another's",
        MEMORY,
        "        if (state.st_dev, state.st_ino) != self.file:\n",
        "        if False:\n",
        "tests/unit/ranks/test_share.py::test_memory_of_a_process_that_has_ended_is_not_taken_for_another",
    ),
    Fault(
        "a graph that memory has no room for ends the process",
        MEMORY,
        "    if source.nbytes > (room := usable_bytes()):\n",
        "    if source.nbytes > (room := usable_bytes()) * 10**6:\n",
        OF_SHARE,
    ),
    Fault(
        "a shared graph with other times is taken as it is",
        SHARE,
        "    if compressed_graph(data, *names) is None:\n",
        "    if False:\n",
        OF_SHARE,
    ),
    Fault(
        "narrow tables are shared without their factors",
        SHARED,
        "scale = None if value.scale is None else value.scale.tensor()",
        "scale = None if value.scale is None else torch.ones_like(value.scale.tensor())",
        "tests/unit/ranks/test_share.py::test_all_tensors_are_shared_and_other_values_kept",
    ),
    Fault(
        "times that were written to since they were shared are not seen",
        SHARED,
        "versions={key: writes_to(value) for key, value in attributes.items()},",
        "versions={},",
        OF_SHARE,
    ),
    Fault(
        "a sampler that splits the seeds is split again",
        SPLIT,
        "        if isinstance(sampler, DistributedSampler):\n",
        "        if sampler is batches and isinstance(sampler, DistributedSampler):\n",
        "tests/unit/ranks/test_split.py",
    ),
    Fault(
        "a rank that is not below the world size is taken",
        SPLIT,
        'if check_count("rank", rank) >= world_size:',
        'if check_count("rank", rank) > world_size:',
        "tests/unit/ranks/test_split.py::test_refused",
    ),
]
