"""Stage of `benchmarks.gpu`: WholeGraph's gather and sampling over mapped host memory."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.device import Context, Device, opened
from benchmarks.gpu.gather import random_bytes, random_rows
from benchmarks.gpu.needs import MissingError, need
from benchmarks.gpu.training import load_graph
from benchmarks.statistics import spread

ROW_BYTES = (100, 400, 512, 1536)


def run(context: Context) -> None:
    """Measure it on the tables and the graph of the other stages."""
    need("pylibwholegraph")
    try:
        load_libraries()
        import pylibwholegraph.torch as wholegraph
    except (ImportError, OSError) as error:  # of a library that it is linked with
        raise MissingError(f"pylibwholegraph cannot be imported: {error}") from error

    comm, _ = wholegraph.init_torch_env_and_create_wm_comm(0, 1, 0, 1)

    def mapped(source: Tensor) -> Any:
        """Return a tensor of WholeGraph's in host memory that the GPU reads itself."""
        made = wholegraph.create_wholememory_tensor(
            comm, "continuous", "cpu", list(source.shape), source.dtype, None
        )
        local, _ = made.get_local_tensor(host_view=True)
        local.copy_(source)
        return made

    with opened(context.dry) as device:
        context.keep("gather", [])
        for row_bytes in ROW_BYTES:
            record = measure_gather(context, device, mapped, row_bytes)
            context.keep("gather", [*context.results["gather"], record])
        context.keep("sampling", measure_sampling(context, device, wholegraph, mapped))


def load_libraries() -> None:
    """Load what the wheels of WholeGraph are linked with, and do not load themselves."""
    for name in ("rapids_logger", "librmm"):
        with contextlib.suppress(ImportError):  # they may lie where the loader finds them
            importlib.import_module(name).load_library()


def measure_gather(context: Context, device: Device, mapped: Any, row_bytes: int) -> dict[str, Any]:
    """Measure a gather of rows in random order, as `gpu_gather.measure_gather` does ours."""
    plan = context.plan
    rows = plan.table_bytes // row_bytes
    table = random_bytes(rows * row_bytes).view(torch.float32).view(rows, -1)
    picked = min(rows, plan.gather_bytes // row_bytes, plan.gather_rows)
    indices = [random_rows(rows, picked, device.device) for _ in range(plan.launches)]
    whole = mapped(table)
    got = whole.gather(indices[0][:1000]).cpu().view(torch.int32)
    if not torch.equal(got, table[indices[0][:1000].cpu()].view(torch.int32)):
        raise AssertionError("WholeGraph's gather gave other rows")

    def work() -> None:
        for index in indices:
            whole.gather(index)

    work()
    num_bytes = plan.launches * picked * row_bytes
    samples = [num_bytes / device.timer(work) for _ in range(plan.repeats)]
    return {"row_bytes": row_bytes, "rows": picked, "bytes_per_second": spread(samples)}


def measure_sampling(
    context: Context, device: Device, wholegraph: Any, mapped: Any
) -> dict[str, Any]:
    """Measure sampled edges a second, in our fan-outs around our seeds."""
    plan = context.plan
    data, train = load_graph(context.folder)
    row, col = data.edge_index
    counts = torch.bincount(col, minlength=plan.num_nodes)
    indptr = torch.zeros(plan.num_nodes + 1, dtype=torch.int64)
    torch.cumsum(counts, 0, out=indptr[1:])
    graph = wholegraph.GraphStructure()
    graph.set_csr_graph(mapped(indptr), mapped(row[torch.argsort(col, stable=True)]))
    samples, edges = [], 0

    def work() -> None:
        nonlocal edges
        edges = 0
        for _ in range(plan.batches):
            seeds = train[torch.randint(len(train), (plan.batch_size,))].to(device.device)
            _, found, _, _ = graph.multilayer_sample_without_replacement(seeds, plan.fanout)
            edges += sum(hop.size(1) for hop in found)

    for number in range(plan.rounds + 1):
        seconds = device.timer(work)
        if number > 0:  # the first one warms up
            samples.append(edges / seconds)
    return {"edges_per_second": spread(samples)}
