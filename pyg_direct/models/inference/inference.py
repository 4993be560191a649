"""The outputs of a model for all nodes of a graph: its own forward, on tables; also on ranks."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from ...core.arguments import check_bytes, check_count, check_flag, check_model
from ...core.journal import Journal, WorkFolder, WorkKind, sync_directory, sync_file
from ...core.lazy_tensor import LazyTensor
from ...core.private_torch import tree_leaves, tree_map
from ...core.quantized import new_table, open_table
from ...core.threads import available_cores
from ...ops.backend import Backend
from ...ops.devices import backend_for
from ...ranks.together import Together
from ..lazy.modes import eagerly, evaluating
from ..lazy.tensor import TableTensor, Watch
from ..training.batch_sizes import mapped
from .check import Check
from .executor import Executor, Limits, checksum_of
from .inputs import (
    EDGE_NAMES,
    Inputs,
    arguments_of,
    check_data,
    check_rows,
    edges_of,
    is_edges,
    naming_types,
)
from .run import InferenceRun

logger = logging.getLogger("pyg_direct")

BYTES_OF_PART = 1 << 18  # of a block where a part of the graph is compared
LAYERS = WorkKind(
    "inference",
    "layers_of_inference",
    r"[0-9a-f]{32}-[A-Za-z0-9_.]+\.(npy|rows)|(result)?[0-9]+\.npy",
    "model and data",
)


def inference(
    model: torch.nn.Module,
    data: Data | HeteroData,
    inputs: Inputs = None,
    *,
    out: str | Path | None = None,
    memory_bytes: int | None = None,
    dtype: torch.dtype | None = None,
    num_workers: int | None = None,
    resume: bool = False,
    progress: bool = False,
    split_by_rank: Any = False,
    fallback: str | None = None,
    certify: bool = True,
) -> Any:
    """Compute a model's outputs for all nodes, one layer after another over the whole graph.

    Each edge is visited once for each layer, where sampling the neighbourhoods of batches of nodes
    visits it many times. The model's own forward runs once, on tensors that are computed by blocks
    of rows when their numbers are needed; so the results are those of ``model(...)`` on the whole
    graph in evaluation mode, for any model. To compute layer by layer is the idea of DGI (Yin et
    al., "DGI: An easy and efficient framework for GNN model evaluation", KDD 2023).

    Numbers: a node's sum over its in-edges is taken in the order of the edges, whatever the block
    or the number of threads. Matrix products of torch may round differently for blocks of other
    sizes, a layer's product comes before its sums where that makes rows shorter, and PyG's full
    batch sums in another order: expect differences of 1e-6, relative to the largest value.

    Args:
        model: a PyG model for whole graphs, with initialised parameters. Operations that need all
            rows at a time, such as ``x - x.mean(dim=0)``, get them.
        data: `Data` or `HeteroData`; attributes may be memory-mapped. Those of nodes that are not
            contiguous are copied.
        inputs: names of the forward's parameters to pass (each with the attribute of that name), or
            a dict of parameter -> attribute name, value, or dict of values by type. None passes
            the parameters without default.
        out: ``.npy`` file for the result, written through a memory map. Of a model that returns a
            dict, each entry goes to a file of its own: ``emb.npy`` becomes ``emb.paper.npy``.
        memory_bytes: that the run may take beside the data, the model and memory-mapped files.
            Layers for which it does not suffice go to temporary files.
        dtype: in which layers are kept until the next one reads them, such as `torch.bfloat16`;
            None for the model's. What is computed is in the model's.
        num_workers: threads that compute blocks; None for one for each core.
        resume: keep finished layers in the folder ``<out>.partial``, and take those that another
            run with the same operations on the same numbers needs, also after SIGKILL. Needs `out`.
        progress: show a progress bar of the rows that this process computes; of several ranks, on
            the first.
        split_by_rank: True, or a process group: its ranks, all of which call this with equal models
            and data, compute a share of the rows of each layer, in files of the folder
            ``<out>.partial``, which all must reach. Needs `out`; all ranks return the result.
        fallback: "nodes" or None, as in earlier versions, which refused some models. Every model
            runs on tables now, so that nothing falls back.
        certify: compare with the model itself, copies of which run: on the whole graph if it has
            few nodes and edges (32,768, or fewer with `memory_bytes`), else on a part of it, before
            the run: some nodes, those that they get messages from, and so on. With `dtype`, what is
            compared is computed without it, before the run. Not compared are
            models that `copy.deepcopy` cannot copy, or that draw random numbers in evaluation, and
            large graphs with edges as a sparse matrix or with arguments of neither nodes nor edges;
            the log says so. The time is that of some batches.

    Returns:
        What the forward returns: tensors in host memory, without gradients, in the structure in
        which it returns them.

    Raises:
        ValueError: arguments that do not fit the data or each other, or an operation that exceeds
            `memory_bytes` because it needs all rows at a time; it is named. Or ``<out>.partial``
            holds what no run wrote, or a damaged journal.
        BlockingIOError: another process is computing in ``<out>.partial``.
        OSError: files cannot be written, such as on a full disk.
        RuntimeError: another rank failed, or its forward did something else, or the outputs
            differ from those of the model itself by more than rounding does (1e-3 of the largest
            number for float32, 1e-7 for float64, 0.1 for less precise ones).

    Example:
        >>> outputs = pyg_direct.inference(model, data)
        >>> with torch.no_grad():
        ...     whole = model.eval()(data.x, data.edge_index)
        >>> torch.allclose(outputs, whole, atol=1e-5)
        True
    """
    check_flag("resume", resume)
    check_flag("progress", progress)
    check_flag("certify", certify)
    if fallback not in (None, "nodes"):
        raise ValueError(f"fallback must be None or 'nodes', got {fallback!r}.")
    check_model(model)
    ranks = Together(split_by_rank, device_of(model))
    with ranks.telling():
        check_data(data)
        path = _check_out(out, resume, ranks.size > 1)
        arguments = arguments_of(model, data, inputs)
        check_rows(data, arguments)
        backend = backend_for(device_of(model))
        threads = (
            available_cores() if num_workers is None else check_count("num_workers", num_workers, 1)
        )
        limits = Limits(
            min(threads, backend.default_producers or threads),
            check_bytes("memory_bytes", memory_bytes),
            _check_dtype(dtype),
        )
        if ranks.size > 1:
            options = {"out": out, "resume": resume, **limits._asdict()}
            check_equal(ranks, {**digests_of(model, data, arguments), **options})
        arguments |= {name: edges_of(data, name) for name in arguments if is_edges(name)}
        check = None
        if certify:
            check = Check(model, data, arguments, limits.memory_bytes, limits.dtype is not None)
            check.of_part(functools.partial(_of_part, backend, limits._replace(dtype=None)))
        folder = None if path is None else Path(f"{path}.partial")
        with contextlib.ExitStack() as stack:
            advance = stack.enter_context(_bar(progress and ranks.rank == 0))
            executor = Executor(backend, limits, folder, resume, advance, ranks)
            stack.callback(executor.close)
            executor.journal = stack.enter_context(_open(ranks, folder, resume))
            stack.enter_context(same_draws(ranks, backend.device))
            with naming_types(model, data):
                found = _forward(model, arguments, executor, path, check)
            ranks.exchange("the end")
    return found


@contextlib.contextmanager
def _open(ranks: Together, folder: Path | None, resume: bool) -> Iterator[Journal | None]:
    """Give the first rank of a run its folder, which is removed at the end unless it is resumed.

    Raises:
        ValueError: the folder holds what no earlier run wrote, or a damaged journal.
        BlockingIOError: another process is computing there.
    """
    if folder is None:
        yield None
        return
    work, journals = WorkFolder(folder, LAYERS), list[Journal]()

    def begin() -> None:
        if problem := work.problem():
            raise ValueError(
                f"{folder} is not from an earlier run of inference(), which would write its layers "
                f"there: it {problem}. Move it, or pass another out=."
            )
        work.hold()
        if not resume:
            work.remove()
            work.release()
            work.hold()
        journals.append(work.journal({}))

    try:
        ranks.from_first("the folder", begin)
        done = False
        try:
            with ranks.telling():  # before it is gone, as others may be reading there
                yield journals[0] if resume and journals else None
            done = True
        finally:
            if ranks.rank == 0 and (done or not resume):
                work.remove()
    finally:
        work.release()


def _of_part(
    backend: Backend, limits: Limits, model: torch.nn.Module, arguments: Mapping[str, Any]
) -> Any:
    """Compute the outputs for a part of the graph, in blocks of few rows."""
    executor = Executor(backend, limits)
    executor.block_bytes = BYTES_OF_PART
    try:
        return _forward(model, arguments, executor)
    finally:
        executor.close()


@torch.inference_mode(False)  # which the threads that compute are not in
def _forward(
    model: torch.nn.Module,
    arguments: Mapping[str, Any],
    executor: Executor,
    out: Path | None = None,
    check: Check | None = None,
) -> Any:
    """Run the forward on tables, and return its result with plain tensors."""
    run = InferenceRun(executor)
    given = {}
    for name, value in arguments.items():
        if is_edges(name):
            given[name] = tree_map(lambda v: v.to(run.device), value)
        else:
            given[name] = _tables(run, value)
    threads = torch.get_num_threads()
    try:
        with evaluating(model), torch.no_grad(), eagerly():
            with Watch(run.protect, run.count):
                found = model(**given)
            results = _Results(run, executor.folder)
            found = results.plain(found)
            run.finish()
    finally:
        torch.set_num_threads(threads)
    logger.info("Operations on whole tables: %s", run.forms.whole_calls or "none")
    if check is not None:
        check.of_whole(found)
    return found if out is None else results.in_place(found, out)


def _tables(run: InferenceRun, value: Any) -> Any:
    """Return an argument of the forward: a table for a tensor with several columns, or of ids.

    Numbers by edge, such as weights, are few, and layers compute with them before they pass
    messages.
    """
    if isinstance(value, Mapping):
        return {key: _tables(run, entry) for key, entry in value.items()}
    if not isinstance(value, Tensor):
        return value
    flat = value.dim() == 0 or value.size(0) < 2 or value.layout != torch.strided
    if flat or (value.dim() == 1 and value.is_floating_point()):
        plain = value.dense() if isinstance(value, LazyTensor) else value
        made = plain.detach().to(run.device, copy=True)
        run.count(made)
        return made
    table = value if isinstance(value, LazyTensor) else value.detach()
    return run.wrap(run.saved.leaf(table, 0))


class _Results:
    """Makes plain tensors of what a forward returns.

    Args:
        run: of the forward.
        folder: for files; None for memory.
    """

    def __init__(self, run: InferenceRun, folder: Path | None) -> None:
        self._run, self._folder = run, folder
        self._paths: dict[int, Path] = {}

    def plain(self, value: Any) -> Any:
        """Return a result with plain tensors."""
        return mapped(lambda tensor, _: self._tensor(tensor), value)

    def _tensor(self, value: Tensor) -> Tensor:
        executor = self._run.executor
        path = None if self._folder is None else self._folder / f"result{len(self._paths)}.npy"
        if isinstance(value, TableTensor) and value.plain is None and value.node.table is None:
            table = executor.complete(value.node, path=None if executor.resume else path)
            path = executor.paths.get(table.data_ptr(), path)
        else:
            whole = value.whole() if isinstance(value, TableTensor) else value.detach()
            if path is None:
                return whole.to("cpu", copy=True).contiguous()
            if executor.ranks.rank > 0:  # the first rank writes it
                return whole
            table = new_table(tuple(whole.shape), whole.dtype, path).copy_(whole)
        if path is not None:
            self._paths[id(table)] = path
        return table.contiguous()

    def in_place(self, found: Any, out: Path) -> Any:
        """Return the result with its files moved to their places."""
        places: dict[int, Path] = {}
        mapped(lambda v, path: places.setdefault(id(v), _file_of(out, path)), found)

        def move() -> None:
            for tensor in places:
                sync_file(self._paths[tensor])
            for tensor, place in places.items():
                os.replace(self._paths[tensor], place)
            for folder in {place.absolute().parent for place in places.values()}:
                sync_directory(folder)

        self._run.executor.ranks.from_first("moving the result", move)
        return mapped(lambda v, _: open_table(places[id(v)], v.dtype), found)


def _file_of(out: Path, path: tuple[Any, ...]) -> Path:
    """Return the file of a tensor of the result, by its place there."""
    texts = ["__".join(map(str, key)) if isinstance(key, tuple) else str(key) for key in path]
    return out.with_suffix(f".{'.'.join(texts)}{out.suffix}") if texts else out


def device_of(model: torch.nn.Module) -> torch.device:
    """Return where a model computes."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _check_dtype(dtype: torch.dtype | None) -> torch.dtype | None:
    if dtype is not None and not dtype.is_floating_point:
        raise ValueError(f"dtype must be None or a floating-point dtype, got {dtype}.")
    return dtype


def _check_out(out: str | Path | None, resume: bool, ranked: bool) -> Path | None:
    if out is None:
        for needs in [f"resume={resume}"] * resume + ["split_by_rank="] * ranked:
            raise ValueError(f"{needs} needs out=, the file that the result goes to.")
        return None
    path = Path(out)
    if path.suffix != ".npy":
        raise ValueError(f"out must be the name of an .npy file, got {str(out)!r}.")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"out={str(out)!r} is in a folder that does not exist.")
    return path


@contextlib.contextmanager
def _bar(shown: bool) -> Iterator[Callable[[int], None] | None]:
    """Show a progress bar of rows, if that is wanted."""
    if not shown:
        yield None
        return
    from tqdm import tqdm

    with tqdm(unit="row", unit_scale=True, desc="Inference") as bar:
        yield bar.update


SAMPLE = 64  # rows, and columns, of an argument that are compared


def digests_of(model: torch.nn.Module, data: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is compared of a model and its arguments: all parameters, and samples of data."""
    found = {"model": checksum_of(model.state_dict())}
    for name, value in arguments.items():
        edges = [store[key] for store in data.stores for key in EDGE_NAMES if key in store]
        given = edges if is_edges(name) else value
        parts = [_sample(v) for v in tree_leaves(given) if isinstance(v, Tensor)]
        found[name] = checksum_of({str(i): part for i, part in enumerate(parts)})
    return found


def _sample(value: Tensor) -> Any:
    """Return some elements of a tensor; of one that would have to be made, its shape."""
    if isinstance(value, LazyTensor) or value.layout != torch.strided:
        return f"{tuple(value.shape)} {value.dtype}"
    steps = [slice(None, None, max(1, size // SAMPLE)) for size in value.shape]
    return {"shape": tuple(value.shape), "elements": value.detach()[tuple(steps)].tolist()}


def check_equal(ranks: Together, values: Mapping[str, Any]) -> None:
    """Raise ValueError on all ranks for a value, by name, that differs between them. Collective."""
    said = ranks.exchange("the arguments of inference()", {k: str(v) for k, v in values.items()})
    for rank, others in enumerate(said):
        differing = [name for name in said[0] if others.get(name) != said[0][name]]
        if differing or len(others) != len(said[0]):
            raise ValueError(
                f"Ranks call inference() with different arguments: "
                f"{', '.join(differing) or 'inputs'} of rank {rank} differs from rank 0. All ranks "
                f"need the same model, as after DistributedDataParallel, the same data, and equal "
                f"arguments."
            )


@contextmanager
def same_draws(ranks: Together, device: torch.device) -> Iterator[None]:
    """Let several ranks draw the same random numbers for a while, and put back their generators."""
    if ranks.size == 1:
        yield
        return
    seed = ranks.from_first("a seed", lambda: int(torch.randint(1 << 62, ())))
    with torch.random.fork_rng([device] if device.index is not None else []):
        torch.manual_seed(seed)
        yield
