"""Faults of the kernels and the backends with what is empty, not there, or left of earlier use."""

from __future__ import annotations

from ..fault import Fault

ROW_CACHE = "pyg_direct/ops/cuda/row_cache.py"

FAULTS = [
    Fault(
        "the largest value over no neighbour is that of another list",
        "pyg_direct/kernels/aggregate.py",
        "out[i, c] = x[np.uint64(index[begin]), c] if end > begin else 0",
        "out[i, c] = x[np.uint64(index[begin]), c]",
        "tests/unit/ops/test_products.py",
    ),
    Fault(
        "nodes of the last word of a set have no bits",
        "pyg_direct/ops/cpu/node_set.py",
        "np.zeros(-(-self._base[-1] // 64), np.uint64)",
        "np.zeros(self._base[-1] // 64, np.uint64)",
        "tests/unit/ops/cpu/test_node_set.py",
    ),
    Fault(
        "where no wheel of NVIDIA is installed the search for NVRTC is an error",
        "pyg_direct/ops/cuda/nvrtc.py",
        "[] if spec is None else list(spec.submodule_search_locations or ())",
        "list(spec.submodule_search_locations or ())",
        "tests/unit/ops/cuda/test_compiler.py",
    ),
    Fault(
        "a file of NVRTC that cannot be loaded ends the search for one that can",
        "pyg_direct/ops/cuda/nvrtc.py",
        "            continue\n        return path\n",
        "            return None\n        return path\n",
        "tests/unit/ops/cuda/test_compiler.py",
    ),
    Fault(
        "cached rows of a tensor that is gone are those of one in its place",
        ROW_CACHE,
        "return self._table() is table and self._lies == whereabouts(table)",
        "return self._lies == whereabouts(table)",
        "tests/kernels/test_cuda_cached.py",
    ),
    Fault(
        "cached rows stay those from before the memory was exchanged",
        ROW_CACHE,
        "return self._table() is table and self._lies == whereabouts(table)",
        "return self._table() is table",
        "tests/kernels/test_cuda_cached.py::test_a_cache_follows_its_table",
    ),
    Fault(
        "the link of one GPU is forgotten when that of another is measured",
        "pyg_direct/ops/cuda/link_file.py",
        "write_json(NAME, {**_read(), key: bytes_under_way})",
        "write_json(NAME, {key: bytes_under_way})",
        "tests/unit/ops/cuda/test_link_file.py",
    ),
    Fault(
        "with an empty XDG_CACHE_HOME files go to the current folder",
        "pyg_direct/ops/cuda/cache_file.py",
        'os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"',
        'os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")',
        "tests/unit/ops/cuda/test_cache_file.py",
    ),
    Fault(
        "the reads of a table without rows cannot be counted",
        "pyg_direct/ops/cuda/backend.py",
        "        if table.device == self.device or table.numel() == 0:\n            return\n",
        "        if table.device == self.device:\n            return\n",
        "tests/kernels/test_cuda_gather.py::test_nothing_to_gather",
    ),
    Fault(
        "what no batch visits takes room of a cache",
        "pyg_direct/ops/host/hottest.py",
        "    order = order[: int((saved > 0).sum())]\n",
        "",
        "tests/unit/ops/host/test_hottest.py",
    ),
    Fault(
        "lists that are shorter than the fan-out count more than they are visited",
        "pyg_direct/kernels/visits.py",
        "            if 0 <= fanout < degree:\n",
        "            if fanout >= 0:\n",
        "tests/unit/graph/test_visits.py",
    ),
]
