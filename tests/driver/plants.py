"""Waits, records and guards of the package that are left out in turn: each must be noticed.

A plant is a change of one module's text, made as it is imported. A text that is not there any more,
or that is there twice, is an error, so no plant can go stale.

No schedule can show that the waits behind the copies of `Placer` and `Copy.refresh` are missing:
torch's `copy_` from host memory waits for its transfer. They stay for kernels that it may launch
behind one, and `tests/unit/ops/cuda/test_placer_order.py` and `test_placed_tables.py` hold them.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple


class Plant(NamedTuple):
    """Something that is left out."""

    module: str
    old: str
    new: str
    found_by: str = "node"  # the job that must notice it


STREAMS = "pyg_direct.ops.cuda.streams"
SCHEDULE = "pyg_direct.loading.stages"
IDS = "pyg_direct.ops.ids"
BACKEND = "pyg_direct.ops.cuda.backend"
PINNING = "pyg_direct.ops.cuda.pinning"
PLACER = "pyg_direct.ops.cuda.placer"
MEMORY = "pyg_direct.ops.cuda.memory"
COMPILER = "pyg_direct.ops.cuda.compiler"

PLANTS: dict[str, Plant] = {
    "producers do not wait for what the consumer had queued": Plant(
        SCHEDULE, "        streams.synchronize(task.asked)\n", "", "queued_write"
    ),
    "the gather does not wait for its sample": Plant(
        SCHEDULE,
        "                self._receive(product, ready)\n",
        "                streams.record_stream(self._tensors_of(product))\n",
    ),
    "the consumer does not wait for its batch": Plant(
        SCHEDULE,
        "            self._receive(*handover)\n",
        "            self._streams.record_stream(self._tensors_of(handover.product))\n",
    ),
    "tensors are not recorded where they are received": Plant(
        SCHEDULE, "        self._streams.record_stream(self._tensors_of(product))\n", ""
    ),
    "streams do not wait for events": Plant(
        STREAMS, "        self._torch.current_stream(self._device).wait_event(event)\n", ""
    ),
    "the host does not wait for events": Plant(
        STREAMS, "        event.synchronize()\n", "        pass\n"
    ),
    "no tensor is recorded": Plant(
        STREAMS, "                tensor.record_stream(stream)\n", "                pass\n"
    ),
    "producers do not choose their device": Plant(
        STREAMS,
        "        self._torch.set_device(self._device)\n",
        "",
        "only_the_second_device",
    ),
    "events are not recorded": Plant(
        STREAMS, "        event.record(self._torch.current_stream(self._device))\n", ""
    ),
    "ids are not waited for": Plant(
        IDS,
        "            self._streams.synchronize(event)\n",
        "            pass\n",
    ),
    "downloads are not waited for": Plant(MEMORY, "    done.synchronize()\n", ""),
    "counts of a batch of given sizes are not waited for": Plant(
        "pyg_direct.ops.cuda.arrays",
        "            streams.synchronize(copied)\n",
        "",
        "late_counts",
    ),
    "the graph of a workspace is not recorded": Plant(
        BACKEND,
        "        self.streams.record_stream(array for _, array in csc.arrays())\n",
        "",
        "deleted_graph",
    ),
    "a workspace is taken whatever its stream": Plant(
        "pyg_direct.sampling.keyed",
        "0 if streams.in_order else streams.stream_id()",
        "0",
        "inline_streams",
    ),
    "a unified tensor does not wait for the word that ids out of range are noted in": Plant(
        "pyg_direct.ops.unified",
        '        backend.memory.place_tables([("the unified tensor", host)], "host")  # waits',
        '        backend.memory.place_tables([("the unified tensor", host)], "host")\n'
        "        self.wrong = torch.zeros(1, dtype=torch.int64, device=backend.device)  # waits",
        "unified_waits",
    ),
    "a gathered table is not recorded": Plant(
        BACKEND,
        "        self.streams.record_stream([*read, *reading.values()])\n",
        "",
        "deleted_loader",
    ),
    "a changed table is copied while it is read": Plant(
        PLACER,
        "registry.runtime.synchronize()  # earlier batches",
        "# earlier batches",
        "changed_table",
    ),
    "memory is unregistered while it is read": Plant(
        PINNING,
        "                    self.runtime.synchronize()  # before the storage can be freed\n",
        "                    pass\n",
        "deleted_while_read",
    ),
    "moved memory is unregistered while it is read": Plant(
        PINNING,
        "                self.runtime.synchronize()\n                self._entries.remove",
        "                self._entries.remove",
        "moved_while_read",
    ),
    "pinned memory is freed while it is read": Plant(
        PINNING,
        "    runtime.synchronize()\n    runtime.free(address)\n",
        "    runtime.free(address)\n",
        "deleted_while_read",
    ),
    "kernels are launched on the default stream": Plant(
        COMPILER,
        "raw, stream=stream)\n                    return",
        "raw)\n                    return",
    ),
    "modules are loaded on any device": Plant(
        COMPILER,
        "        with self._cupy.cuda.Device(self.device.index):\n            options",
        "        if True:\n            options",
        "modules_on_their_device",
    ),
    "kernels are launched on any device": Plant(
        COMPILER,
        "                with cuda.Device(index):\n                    function(",
        "                if True:\n                    function(",
        "two_devices",
    ),
}


class _Loader(importlib.machinery.SourceFileLoader):
    plant: Plant

    def get_code(self, fullname: str) -> CodeType:
        text = Path(self.path).read_text()
        if text.count(self.plant.old) != 1:
            raise RuntimeError(f"{fullname} must have this once:\n{self.plant.old}")
        return compile(text.replace(self.plant.old, self.plant.new), self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, plant: Plant) -> None:
        self._plant = plant

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if fullname != self._plant.module:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if not isinstance(spec, ModuleSpec) or spec.origin is None:
            raise ModuleNotFoundError(f"No module {fullname}, which a plant changes.")
        loader = _Loader(fullname, spec.origin)
        loader.plant = self._plant
        spec.loader = loader
        return spec


def leave_out(name: str) -> None:
    """Change the package as it is imported from now on."""
    sys.meta_path.insert(0, _Finder(PLANTS[name]))
