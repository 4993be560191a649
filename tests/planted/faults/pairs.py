"""Faults where two pieces meet: states and windows, reuse and weights, plans and types."""

from __future__ import annotations

from ..fault import Fault

CACHE = "pyg_direct/loading/cache.py"
KEYS = "pyg_direct/ops/host/keys.py"
PLAN = "pyg_direct/tools/plan.py"
PLAN_CACHE = "pyg_direct/tools/plan_cache.py"
PROGRESS = "pyg_direct/loading/progress.py"
REUSE = "pyg_direct/models/reuse.py"
REUSING = "pyg_direct/loading/reusing.py"

OF_PLAN_CACHE = "tests/unit/tools/test_plan_cache.py"
OF_REUSE = "tests/unit/models/test_reuse.py"
STATES = "tests/unit/loading/test_states.py tests/unit/loading/test_progress.py"

FAULTS = [
    Fault(
        "a resumed epoch of ranks that make batches together counts its steps from 0",
        PROGRESS,
        "enumerate(self.keys(first), first)",
        "enumerate(self.keys(first), 0)",
        "tests/integration/test_cooperative_batches.py::test_an_epoch_goes_on_from_a_state",
    ),
    Fault(
        "a resumed epoch of dependent batches begins a window anew",
        KEYS,
        "enumerate(keys(seed, epoch, first), first)",
        "enumerate(keys(seed, epoch, first), 0)",
        "tests/loader/test_labor.py",
    ),
    Fault(
        "one process refuses the state of ranks",
        PROGRESS,
        "if TAIL not in fingerprint:",
        "if TAIL in fingerprint:",
        f"{STATES} tests/loader/test_ranks.py",
    ),
    Fault(
        "a state of a shuffled epoch names the generator that a seed brings",
        PROGRESS,
        'differing.remove("generator")',
        "pass",
        STATES,
    ),
    Fault(
        "a cache is filled again by each loader over its sampler",
        CACHE,
        "    wanted.filled = True\n",
        "",
        "tests/loader/test_cache.py",
    ),
    Fault(
        "reuse: after a lost batch, numbers go on behind those that were made ahead",
        REUSING,
        "rows, self._batches = self._computed()",
        "rows, _ = self._computed()",
        OF_REUSE,
    ),
    Fault(
        "reuse: rows stay that are of weights which the user has set",
        REUSE,
        "if weights != self._weights and self.steps.count == self._steps_before:",
        "if weights != self._weights and self.steps.count < self._steps_before:",
        OF_REUSE,
    ),
    Fault(
        "reuse: ages of rows count once for each value of a step",
        REUSE,
        "self._sum_of_steps += 0 if self._aged else int(steps.sum())",
        "self._sum_of_steps += int(steps.sum())",
        OF_REUSE,
    ),
    Fault(
        "reuse: edges that were not drawn with replacement are those of lists",
        REUSING,
        "if sampler.plan.replace and fanout >= 0:",
        "if sampler.plan.replace and fanout < 0:",
        "tests/unit/loading/test_reusing.py",
    ),
    Fault(
        "reuse: a state that the accelerated model loads leaves the rows",
        REUSE,
        "        _tables_of[model] = self\n\n    def clear",
        "        pass\n\n    def clear",
        OF_REUSE,
    ),
    Fault(
        "reuse: rows of batches that were not trained on are used",
        REUSE,
        "late = table.batch[batch.slots] < batch.computed_by",
        "late = table.batch[batch.slots] < 0",
        OF_REUSE,
    ),
    Fault(
        "a graph that was saved with times is drawn by its weights without tables",
        "pyg_direct/graph/compressed.py",
        "weights = csc.weights if time_attr is not None else self._weights_of_whole_lists",
        "weights = csc.weights",
        "tests/unit/files/test_saved_parts.py",
    ),
    Fault(
        "plan: a cache of narrow rows has as few as one of wide ones",
        PLAN,
        "self.cache_bytes, asked.cache_share",
        "self.cache_bytes",
        OF_PLAN_CACHE,
    ),
    Fault(
        "plan: a cache of several types has the rows of the last",
        PLAN_CACHE,
        "row_bytes[kind], held + len(rows)",
        "row_bytes[kind], len(rows)",
        OF_PLAN_CACHE,
    ),
    Fault(
        "plan: presampling goes by the nodes of all types",
        PLAN,
        "max(1, counts[question.seed_type] // question.batch_size)",
        "max(1, sum(counts.values()) // question.batch_size)",
        OF_PLAN_CACHE,
    ),
]
