"""A check at the first use of a GPU: does it make the batches that the CPU makes?

Both backends give the same bits, so a small fixed graph tells: it is sampled and gathered from in
all ways that have a kernel of their own, and digests of the results are compared with those of the
CPU backend, which ship with the package. What passed is kept on disk, by GPU, driver and versions.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...core.types import (
    NO_TIME,
    BatchKey,
    Csc,
    Rules,
    SampledGraph,
    SamplingPlan,
    Table,
    TimeTable,
    WeightTable,
)
from ...kernels import alias
from ..backend import Backend, WrongBatchesError
from .backend import CudaBackend
from .cache_file import cache_file, read_json, write_json

logger = logging.getLogger("pyg_direct")

SWITCH = "PYG_DIRECT_SELF_CHECK"  # 0 turns the check off
PASSED = "certificates.json"  # in the folder for caches
DIGESTS = Path(__file__).with_name("certificate.json")
NODES, EDGES, BATCHES = 300, 4000, 2
TABLES = ((torch.float32, 100), (torch.float32, 32), (torch.int16, 3))  # dtype, columns


class Case(NamedTuple):
    """One way to sample the fixed graph."""

    name: str
    csc: Csc
    plan: SamplingPlan
    induced: bool = False
    seed_time: Tensor | None = None


def check(backend: CudaBackend, identity: str) -> str:
    """Check a device, unless it passed before or `PYG_DIRECT_SELF_CHECK=0`, and say what was done.

    Args:
        backend: of the device.
        identity: of GPU, driver, compiler and package.

    Raises:
        WrongBatchesError: the device gives other batches than the CPU.
        torch.cuda.OutOfMemoryError, MemoryError: there is too little memory at present.
        RuntimeError: any other error of the check.
    """
    if os.environ.get(SWITCH) == "0":
        return f"turned off ({SWITCH}=0)"
    if identity in _passed():
        return f"passed before ({cache_file(PASSED)})"
    logger.warning(
        "Compiling GPU kernels and comparing batches of %s with the CPU's, which takes some "
        "seconds once; both are kept on disk.", backend.device,
    )  # fmt: skip
    try:
        wrong = [name for name, passed in results(backend) if not passed]
    except (torch.cuda.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # of whatever kind: the device cannot be used
        raise RuntimeError(
            f"{backend.device} failed a check that runs before its first batch: "
            f"{type(error).__name__}: {error}. {SWITCH}=0 skips the check."
        ) from error
    if wrong:
        raise WrongBatchesError(
            f"{backend.device} does not give the batches that the CPU gives: {', '.join(wrong)}. "
            f"Please report this with the output of python -m pyg_direct.info. {SWITCH}=0 skips "
            f"the check."
        )
    if not write_json(PASSED, [*_passed(), identity]):
        logger.warning(
            "%s cannot be written to pyg_direct's folder for caches, so each process checks %s "
            "again at its first use, which takes some seconds. Set XDG_CACHE_HOME to a writable "
            "folder.", PASSED, backend.device,
        )  # fmt: skip
    return "passed"


def results(backend: CudaBackend) -> Iterator[tuple[str, bool]]:
    """Check a device now, and yield the name of each check and whether it passed.

    Graph and features lie in the GPU's memory, where one block does small hops, and then in host
    memory, where many blocks do all.
    """
    expected = json.loads(DIGESTS.read_text(encoding="utf-8"))
    for place, memory in (("device", "GPU"), ("host", "host")):
        # Each place has a backend of its own: tools that keep frames, as debuggers do, keep the
        # tables of the first place alive, and a backend keeps its tables in one place.
        made = CudaBackend(backend.device, backend.library)
        made.one_block = place == "device"
        for name, digest in digests(made, place):
            yield f"{name} (graph and features on the {memory})", digest == expected[name]


def digests(backend: Backend, place: str = "auto") -> Iterator[tuple[str, str]]:
    """Yield the names of all checks, and digests of what a backend gives for each.

    Args:
        backend: of any device.
        place: where graph and tables shall lie: "device", "host" or "auto".
    """
    for case in cases():
        yield case.name, _digest(sampled(backend, case, place))
    index = torch.arange(0, 7 * NODES, 7) % NODES
    tables = [_table(dtype, columns) for dtype, columns in TABLES]
    backend.memory.place_tables([("table", table) for table in tables], place)
    for table in tables:
        readable, name = _readable(backend, table), f"gather {table.dtype} {table.shape[1]}"
        rows = backend.gather([Table(readable)], index.to(backend.device), NODES)
        yield name.replace("torch.", ""), _digest(rows)
    # From 0 to 1, by their bits: some products are multiples of the least number alone.
    bits = torch.arange(NODES, dtype=torch.int32) * (0x3F800000 // NODES)
    factors = bits.view(torch.float32).view(-1, 1)
    halves = (torch.arange(NODES * 32) * 31 % 0x7C00).to(torch.int16).view(NODES, 32)
    for stored, scale in ((_table(torch.int8, 32), factors), (halves.view(torch.float16), None)):
        parts = [stored] if scale is None else [stored, scale]
        backend.memory.place_tables([("table", part) for part in parts], place)
        table, *more = (_readable(backend, part) for part in parts)
        for dtype in (torch.float32, torch.bfloat16):
            wanted = Table(table, dtype, *more)
            (decoded,) = backend.gather([wanted], index.to(backend.device), NODES)
            name = f"decode {stored.dtype} to {dtype}".replace("torch.", "")
            yield name, _digest([decoded.float()])


def _readable(backend: Backend, table: Tensor) -> Tensor:
    """Return what a backend reads for a table."""
    readable = backend.memory.readable(table)
    if readable is None:
        raise RuntimeError("the GPU cannot read host memory")
    return readable


def cases() -> Iterator[Case]:
    """Yield everything that is sampled."""
    csc, fanouts = _graph(), np.array([[10], [4]])
    plan = SamplingPlan(fanouts, replace=False, disjoint=False, recent=False, id_dtype=torch.int64)
    times = torch.arange(20) * 7
    yield Case("uniform", csc, plan)
    yield Case("with replacement", csc, plan._replace(replace=True))
    yield Case("large fan-outs", csc, plan._replace(fanouts=np.array([[-1], [4], [40]])))
    yield Case("induced", csc, plan, induced=True)
    yield Case("disjoint", csc, plan._replace(disjoint=True))
    timed = plan._replace(disjoint=True, recent=True)
    yield Case("by time", _with_times(csc), timed, seed_time=times)
    weighted = _with_weights(csc)
    yield Case("by weight", weighted, plan)
    yield Case("by weight with replacement", weighted, plan._replace(replace=True))


def sampled(backend: Backend, case: Case, place: str) -> Iterator[Tensor]:
    """Yield the tensors of some batches of a case."""
    work = backend.workspace(backend.memory.place_graph(case.csc, place), case.plan)
    seeds = torch.arange(20) * 13 % NODES
    for batch in range(BATCHES):
        key = BatchKey(batch + 1, 2)
        graph = work.sample([seeds], key, Rules(case.seed_time), case.induced)
        assert graph is not None, "the seeds are nodes"
        yield from _tensors(graph)


def _tensors(graph: SampledGraph) -> Iterator[Tensor]:
    yield from (*graph.node, *graph.edge_index, *graph.edge, *(graph.seed_of or ()))


def _digest(tensors: Any) -> str:
    """Return a digest of shapes and values, whatever the width of the integers."""
    digest = hashlib.sha256()
    for tensor in tensors:
        wide = tensor.cpu() if tensor.is_floating_point() else tensor.cpu().to(torch.int64)
        digest.update(str(tuple(wide.shape)).encode())
        digest.update(wide.contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def _graph() -> Csc:
    """Return the fixed graph: degrees from 0 to some hundreds, edges in an order of their own."""
    edge = np.arange(EDGES, dtype=np.int64)
    target = (edge * edge // 97) % NODES
    target[: EDGES // 8] = 5  # a hub
    target[target % 11 == 3] = 7  # and nodes without edges
    source = (edge * 7919 + edge // 3) % NODES
    order = np.argsort(target, kind="stable")
    indptr = np.zeros(NODES + 1, np.int32)
    np.cumsum(np.bincount(target, minlength=NODES), out=indptr[1:])
    zero = np.zeros(1, np.int64)
    return Csc(
        indptr=indptr,
        indices=source[order].astype(np.int32),
        perm=order.astype(np.int32),
        src_type=zero,
        dst_type=zero,
        indptr_base=zero,
        edge_base=np.array([0, EDGES]),
        num_nodes=np.array([NODES]),
    )


def _with_times(csc: Csc) -> Csc:
    """Return the graph with a time for each node; every list is sorted by it."""
    time = np.arange(NODES, dtype=np.int64) * 37 % 150
    owner = np.repeat(np.arange(NODES), np.diff(csc.indptr))
    order = np.lexsort((time[csc.indices], owner))
    assert csc.perm is not None
    return replace(
        csc,
        indices=csc.indices[order],
        perm=csc.perm[order],
        times=TimeTable(time, np.zeros(1, np.int64)),
    )


def _with_weights(csc: Csc) -> Csc:
    """Return the graph with weights from 0 to 1e6, zeros among them."""
    assert (csc.time_base == NO_TIME).all()
    edge = np.arange(EDGES)
    weight = np.where(edge % 5 == 0, 0.0, (edge % 89 + 1.0) ** (edge % 4))
    running, table = np.empty_like(weight), np.zeros(EDGES, np.int64)
    alias.accumulate(csc.indptr, weight, running, 0, NODES)
    alias.fill_alias(csc.indptr, weight, running, *alias.parts(table), 0, NODES)
    weights = WeightTable(weight, running, table, np.ones(1, np.bool_), positive=False)
    return replace(csc, weights=weights)


def _table(dtype: torch.dtype, columns: int) -> Tensor:
    return (torch.arange(NODES * columns) * 31 % 1009).view(NODES, columns).to(dtype)


def _passed() -> list[str]:
    found = read_json(PASSED)
    return found if isinstance(found, list) else []


def write_digests(make: Callable[[], Backend]) -> None:
    """Write the file of digests, from the CPU backend; for who changes what is drawn."""
    DIGESTS.write_text(json.dumps(dict(digests(make())), indent=1) + "\n", encoding="utf-8")
