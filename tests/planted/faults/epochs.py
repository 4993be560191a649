"""Faults in states, statistics, ranks and caches of loaders."""

from __future__ import annotations

from ..fault import Fault

BASE = "pyg_direct/loading/base.py"
CACHE = "pyg_direct/loading/cache.py"
COOPERATIVE = "pyg_direct/loading/cooperative.py"
EPOCH = "pyg_direct/loading/epoch.py"
ORDER = "pyg_direct/loading/order.py"
PROGRESS = "pyg_direct/loading/progress.py"
RECORDER = "pyg_direct/loading/recorder.py"
RESUMING = "pyg_direct/loading/resuming.py"
REUSING = "pyg_direct/loading/reusing.py"
SEEDS = "pyg_direct/loading/seeds.py"
SITE = "pyg_direct/loading/site.py"
STATES = "pyg_direct/loading/states.py"
STATS = "pyg_direct/loading/stats.py"
STEPS = "pyg_direct/loading/steps.py"

COUNTED = "tests/unit/loading/test_stats.py"
OF_STATES = "tests/unit/loading/test_states.py"
OF_REUSE = "tests/unit/models/test_reuse.py tests/unit/loading/test_reusing.py"
LINK = "tests/loader/test_link.py"

FAULTS = [
    Fault(
        "an iterator of before that ends says that the epoch has ended",
        EPOCH,
        "        if self._progress.ticket == self._ticket:\n            self._progress.finished = True\n",
        "        self._progress.finished = True\n",
        OF_STATES,
    ),
    Fault(
        "persistent producers keep the modes of the first epoch",
        EPOCH,
        "self._modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()",
        'self._modes = getattr(self, "_modes", None) or '
        "(torch.is_grad_enabled(), torch.is_inference_mode_enabled())",
        "tests/unit/batch/test_assemble.py::test_no_grad_holds_wherever_the_batch_is_made",
    ),
    Fault(
        "an epoch that was set is the number of all later ones",
        PROGRESS,
        "        self.ticket += 1\n        self.next_epoch = None\n",
        "        self.ticket += 1\n",
        "tests/unit/ranks/test_split.py",
    ),
    Fault(
        "a loop that was broken off is told of a forgotten set_epoch",
        PROGRESS,
        "if now is not None and now == self.sampler_epoch and self.finished and sampler.shuffle:",
        "if now is not None and now == self.sampler_epoch and sampler.shuffle:",
        OF_STATES,
    ),
    Fault(
        "seeds in order are told of a forgotten set_epoch",
        PROGRESS,
        "if now is not None and now == self.sampler_epoch and self.finished and sampler.shuffle:",
        "if now is not None and now == self.sampler_epoch and self.finished:",
        OF_STATES,
    ),
    Fault(
        "a state of another feature_dtype is taken",
        RESUMING,
        '            "feature_dtype": self._feature_dtype and str(self._feature_dtype),\n',
        "",
        "tests/loader/test_feature_dtype.py",
    ),
    Fault(
        "a state with True for a number is taken",
        STATES,
        "return lambda value: type(value) is int and low <= value < high",
        "return lambda value: isinstance(value, int) and low <= value < high",
        OF_STATES,
    ),
    Fault(
        "a batch that a rank repeats is drawn anew",
        STEPS,
        "positions_here, key = kept[batch], next(self._began.keys(batch))",
        "positions_here, key = kept[batch], next(self._began.keys(first))",
        "tests/loader/test_ranks.py tests/unit/loading/test_shares.py",
    ),
    Fault(
        "time after a loop that was broken off counts as training",
        RECORDER,
        "            self._finished.clear()\n            self._handed = None\n",
        "            self._finished.clear()\n",
        COUNTED,
    ),
    Fault(
        "seeds of batches of subgraphs are not counted",
        RECORDER,
        'fields.get("input_id", fields.get("root_n_id"))',
        'fields.get("input_id")',
        COUNTED + " tests/unit/loaders/test_all.py",
    ),
    Fault(
        "of the rate of seeds those made ahead count, too",
        STATS,
        "received = self.seeds * self.batches / max(1, self.made)",
        "received = self.seeds",
        COUNTED,
    ),
    Fault(
        "only destinations of links are expected in batches",
        CACHE,
        "seeds[kind] = torch.cat([seeds[kind], ids]) if kind in seeds else ids",
        "seeds[kind] = ids",
        "tests/unit/loading/test_cache.py",
    ),
    Fault(
        "numbers for nodes of types that there are not are ignored",
        CACHE,
        "    if unknown:\n",
        "    if len(unknown) > 1:\n",
        "tests/loader/test_cache.py tests/unit/loading/test_cache.py",
    ),
    Fault(
        "what is left of the parts comes in their order",
        ORDER,
        "        rest = rest[torch.randperm(len(rest), generator=own)]\n",
        "",
        "tests/unit/partitions/test_partition.py",
    ),
    Fault(
        "order= beside shuffle=False is refused",
        ORDER,
        "if not (options.get(name) is None or options[name] is False):",
        "if name in options:",
        "tests/loader/test_order.py",
    ),
    Fault(
        "the first of several edge types between two ends is taken",
        SEEDS,
        "between[0] if len(between) == 1 else",
        "between[0] if between else",
        LINK,
    ),
    Fault(
        "windows of links are compared with the times of their sources",
        SEEDS,
        "    for kind, nodes in ends:\n        seed_time",
        "    for kind, nodes in ends[:1]:\n        seed_time",
        "tests/loader/test_windows_of_seeds.py",
    ),
    Fault(
        "a cached row is used one batch too long",
        REUSING,
        "could &= batch - by <= rule.staleness",
        "could &= batch - by <= rule.staleness + 1",
        OF_REUSE,
    ),
    Fault(
        "rows of nodes that no batch visits take room in the table",
        REUSING,
        "return nodes[visits[nodes] > 0].sort().values, num_nodes",
        "return nodes.sort().values, num_nodes",
        "tests/unit/loading/test_reusing.py",
    ),
    Fault(
        "two iterations of a loader whose model reuses rows go on beside each other",
        REUSING,
        "            if iteration != self._iterations:\n",
        "            if iteration > self._iterations:\n",
        OF_REUSE,
    ),
    Fault(
        "ranks that make batches together draw disjoint subgraphs",
        COOPERATIVE,
        '"time_attr=": given.disjoint and',
        '"time_attr=": given.settings.disjoint and',
        "tests/integration/test_cooperative_batches.py tests/loader/test_ranks.py",
    ),
    Fault(
        "loaders that draw on the CPU gather there, too",
        SITE,
        "if self._apart or not isinstance(sampler, NeighborSampler):\n            device",
        "if not isinstance(sampler, NeighborSampler):\n            device",
        "tests/unit/loaders/test_uploads.py tests/loader/test_places_of_ids.py",
    ),
    Fault(
        "a window of 0 beside a sampler is ignored",
        SITE,
        '        "time_window": None,\n',
        "",
        "tests/unit/ops/cuda/test_placer.py::test_beside_a_ready_sampler",
    ),
    Fault(
        "an interrupted epoch in the order of parts cannot go on",
        STEPS,
        "DistributedSampler, ClusterOrder, PartOrder,",
        "DistributedSampler, ClusterOrder,",
        "tests/unit/loading/test_progress.py",
    ),
    Fault(
        "times of seeds follow what the user writes to them later",
        SEEDS,
        "    return None if time is None else time.clone()\n",
        "    return time\n",
        "tests/unit/loading/test_base.py",
    ),
    Fault(
        "a loader that moves to the GPU forgets device_bytes",
        SITE,
        "sampler = moved(sampler, device, (topology, device_bytes))",
        "sampler = moved(sampler, device, (topology, None))",
        "tests/loader/test_places.py::test_what_a_loader_moves_with",
    ),
    Fault(
        "gather_blocks is ignored",
        SITE,
        "        backend.gather_blocks = self._placing.gather_blocks\n",
        "",
        "tests/loader/test_places.py::test_what_a_loader_moves_with",
    ),
    Fault(
        "a process of PyG's loader moves to the GPU",
        SITE,
        "if not self._open or torch.utils.data.get_worker_info() is not None:",
        "if not self._open:",
        "tests/loader/test_places.py::test_what_a_loader_moves_with",
    ),
    Fault(
        "filter_fn waits for ever in a forked child",
        "pyg_direct/loading/forked.py",
        '"__init__", "__call__", "__iter__", "collate_fn", "filter_fn"',
        '"__init__", "__call__", "__iter__", "collate_fn"',
        "tests/unit/loading/test_forks.py",
    ),
    Fault(
        "a call behind an epoch draws what its last batch drew",
        "pyg_direct/loading/batch_keys.py",
        "        finally:\n            self.key = None\n",
        "        finally:\n            pass\n",
        "tests/loader/test_collate.py tests/loader/test_random_state.py",
    ),
    Fault(
        "a state of epochs that counted other batches is loaded without a length",
        RESUMING,
        "            num_batches = None\n",
        "            num_batches = 0\n",
        "tests/unit/loading/test_states.py",
    ),
    Fault(
        "an empty list of seeds is refused as floats",
        SEEDS,
        "        nodes = nodes.to(torch.int64)  # an empty list has no dtype\n",
        "        pass\n",
        "tests/loader/test_input_nodes.py tests/loader/test_bad_input.py",
    ),
    Fault(
        "batches of an overridden collate_fn are not pinned",
        BASE,
        "return self._pinned(batch) if self.filter_per_worker and self.pin_memory else batch",
        "return batch",
        "tests/loader/test_collate.py tests/unit/loading/test_stats.py",
    ),
    Fault(
        "with seed= a generator of the user's does not shuffle",
        BASE,
        'if seed is not None and kwargs.get("generator") is None and kwargs.get("shuffle"):',
        'if seed is not None and kwargs.get("shuffle"):',
        "tests/loader/test_batch_order.py tests/loader/test_random_state.py",
    ),
    Fault(
        "with seed= a generator of the user's does not order clusters",
        BASE,
        'if self._progress.seed is not None and options.get("generator") is None:',
        "if self._progress.seed is not None:",
        "tests/loader/test_order.py",
    ),
    Fault(
        "a state from before strict_negatives is taken for one with them",
        STATES,
        '    "strict_negatives": False,\n',
        "",
        "tests/unit/loading/test_states.py",
    ),
    Fault(
        "a mask is taken for clusters",
        ORDER,
        "if order.dim() != 1 or order.is_floating_point() or order.dtype == torch.bool:",
        "if order.dim() != 1 or order.is_floating_point():",
        "tests/loader/test_order.py",
    ),
    Fault(
        "a loader that another process gets names the sampler of this one",
        BASE,
        "        return state | {name: site.sampler for name in self._sampler_names()}\n",
        "        return state\n",
        "tests/loader/test_places.py",
    ),
    Fault(
        "a loader that another process gets has one thread for a batch",
        SITE,
        "        backend.threads = self._threads\n",
        "",
        "tests/loader/test_places.py",
    ),
]
