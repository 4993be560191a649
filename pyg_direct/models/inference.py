"""The outputs of a model for all nodes of a graph, layer by layer."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from ..batch.gather import tables_in
from ..core.arguments import check_bytes, check_count, check_flag
from ..core.quantized import QuantizedTensor, new_table, quantize
from ..core.threads import available_cores
from ..core.units import size_text
from ..graph.from_pyg import Graph, graph_of
from ..graph.verify import verified
from ..ops.backend import Backend
from ..ops.devices import backend_for
from . import engine
from .accelerate import plain_of
from .blocks import Scope
from .choice import choose
from .cutter import Convolution, Cut, cut
from .inputs import Inputs, arguments_of, check_data, levels_of, stand_ins
from .layers import Layer
from .nodewise import run_nodewise
from .operations import operations_of
from .schedule import Schedule, make_schedule
from .spaces import Connectivity, Constant, CutError, Edges, Example, Nodes, leaves
from .store import Store, checksum_of
from .tracer import evaluating, one_thread

logger = logging.getLogger("pyg_direct")

BLOCK_BYTES = 32 << 20  # of one thread's block, unless the budget is small
MIN_BLOCK_BYTES = 1 << 20


class Options(NamedTuple):
    """How to run; arguments of `inference`."""

    memory_bytes: int | None
    dtype: torch.dtype | None
    threads: int
    resume: bool
    progress: bool


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
    fallback: str | None = None,
) -> Any:
    """Compute a model's outputs for all nodes, one layer after another over the whole graph.

    Each edge is visited once for each layer, where sampling the neighbourhoods of batches of nodes
    visits it many times. The model is cut into message passing over one hop and row-wise work
    (see `models.cutter`); the results are those of ``model(...)`` on the whole graph in evaluation
    mode. The idea is that of DGI (Yin et al., "DGI: An easy and efficient framework for GNN model
    evaluation", KDD 2023), here for PyG.

    Numbers: a node's sum over its in-edges is taken in the order of the edges, whatever the block
    or the number of threads. Matrix products of torch may round differently for blocks of other
    sizes, and PyG's full batch sums in another order: expect differences of 1e-6, relative to the
    largest value.

    Args:
        model: a PyG model for whole graphs, with initialised parameters. A model of a kind that
            cannot be cut is refused with the reason; see `fallback`.
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
        resume: keep finished blocks in the folder ``<out>.partial``, and go on with them after an
            interruption, also by SIGKILL. Needs `out`.
        progress: show a progress bar of edges, with the time left.
        fallback: "nodes" runs a model that cannot be cut on batches of nodes with their complete
            neighbourhoods, if that gives the same numbers on a small graph; slow. None refuses.

    Returns:
        What the forward returns, for all nodes: a tensor [N, ...], or a dict of them by node type,
        in host memory, without gradients.

    Raises:
        CutError: the model cannot be cut, with the reason.
        ValueError: arguments that do not fit the data or each other, a budget that is too small,
            or `resume` with a folder of another run, or one that is damaged.
        OSError: files cannot be written, such as on a full disk.

    Example:
        >>> outputs = pyg_direct.inference(model, data)
        >>> with torch.no_grad():
        ...     whole = model.eval()(data.x, data.edge_index)
        >>> torch.allclose(outputs, whole, atol=1e-5)
        True
    """
    check_data(data)
    options = Options(
        check_bytes("memory_bytes", memory_bytes),
        _check_dtype(dtype),
        available_cores() if num_workers is None else check_count("num_workers", num_workers, 1),
        check_flag("resume", resume),
        check_flag("progress", progress),
    )
    path = _check_out(out, options.resume)
    if fallback not in (None, "nodes"):
        raise ValueError(f"fallback must be None or 'nodes', got {fallback!r}.")
    arguments, graph = arguments_of(model, data, inputs), graph_of(data)
    model = plain_of(model)
    with evaluating(model), torch.no_grad():
        try:
            with one_thread():
                plan = Plan(model, graph, arguments, options, path)
        except CutError as error:
            if fallback is None:
                raise
            logger.warning("Falling back to batches of nodes: %s", error)

            def allocate(key: str | None, shape: tuple[int, ...], kind: torch.dtype) -> Tensor:
                return new_table(shape, kind, path and _file_of(path, key or ""))

            return run_nodewise(model, data, graph, arguments, allocate, options.progress)
        return plan.run()


class Plan:
    """A model and a graph, ready to run; `str` tells what will be done and with what memory.

    Args:
        model: in evaluation mode.
        graph: its edges, compressed.
        arguments: of the forward, from `arguments_of`.
        options: how to run.
        out: where to, if to files.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        graph: Graph,
        arguments: Mapping[str, Any],
        options: Options,
        out: Path | None,
    ) -> None:
        self._options, self._out = options, out
        levels = levels_of(graph, arguments)
        given = stand_ins(graph, arguments)
        self._cut = cut(model, given, levels)
        self._check_results()
        backend = backend_for(device_of(model))
        tables, constants = _split(self._cut, given)
        if not any(isinstance(value.space, Edges) for value in self._cut.values.values()):
            graph = replace(graph, csc=replace(graph.csc, perm=None))  # which edge is not asked
        self._scope = _scope(self._cut, graph, backend, tables, constants)
        layers = _layers(self._cut, backend, tables)
        threads = min(options.threads, backend.default_producers or options.threads)
        self.schedule = self._fitted(layers, threads)
        self._digest = {
            "model": operations_of(model, self._cut.example.full) if options.resume else "",
            "arguments": repr(sorted(arguments)),
            "options": repr((options.dtype, self.schedule.block_bytes)),
            "versions": torch.__version__,
            **{f"parameter {n}": p for n, p in model.state_dict().items()},
        }

    def __str__(self) -> str:
        return str(self.schedule)

    def _check_results(self) -> None:
        if self._cut.tail is not None:
            raise CutError(f"The model's end is not row-wise: {self._cut.tail_reason}.")
        for name in self._cut.output_names():
            value = self._cut.values[name]
            if not isinstance(value.space, (Nodes, Constant)):
                raise CutError(f"The model returns {name!r}, which has no row for each node.")

    def _fitted(self, layers: dict[str, Layer], threads: int) -> Schedule:
        """Return a schedule within the budget: smaller blocks, then layers in files."""
        options, budget = self._options, self._options.memory_bytes
        outputs = set(self._cut.output_names())
        block_bytes = BLOCK_BYTES
        if budget is not None:
            block_bytes = min(BLOCK_BYTES, max(MIN_BLOCK_BYTES, budget // (8 * threads)))
        schedule = make_schedule(self._scope, layers, outputs, threads, block_bytes, options.dtype)
        for name, table in schedule.tables.items():
            table.in_file = options.resume or (self._out is not None and name in outputs)
        if budget is not None and schedule.in_memory_bytes > budget:
            for table in schedule.tables.values():
                table.in_file = True
        if budget is not None and schedule.in_memory_bytes > budget:
            raise ValueError(
                f"memory_bytes={budget} is too little: the graph takes "
                f"{size_text(schedule.graph_bytes)} and the blocks of {threads} threads "
                f"{size_text(schedule.work_bytes)}. Give at least "
                f"{schedule.in_memory_bytes}, or fewer num_workers."
            )
        return schedule

    def run(self) -> Any:
        """Compute, and return what the forward returns."""
        logger.info("Layer-wise inference: %s", self)
        scope, schedule = self._scope, self.schedule
        folder = None if self._out is None else Path(f"{self._out}.partial")
        checksum = 0
        if self._options.resume:
            csc = scope.backend.memory.to_numpy(scope.graph.csc)
            graph = {"indptr": csc.indptr, "indices": csc.indices, "perm": csc.perm}
            # Stand-ins for edges are as large as the edges, and say nothing that `graph` does not.
            tables = {
                name: table
                for name, table in scope.tables.items()
                if not isinstance(self._cut.values[name].space, Connectivity)
            }
            checksum = checksum_of({**self._digest, **graph, **tables, **scope.constants})
        tasks = sum(len(phase.tasks) for phase in schedule.phases)
        store = Store(folder, checksum, tasks, self._options.resume)
        try:
            with _bar(sum(p.edges for p in schedule.phases), self._options.progress) as advance:
                engine.run(scope, schedule, store, advance)
            found = self._finish(store)
        except BaseException:
            if not self._options.resume:
                store.close()
            raise
        store.close()
        return found

    def _finish(self, store: Store) -> Any:
        """Move results to their files, and return them in the model's structure."""
        if self._out is None:
            scope = self._scope
            return self._cut.result({**scope.constants, **scope.tables})
        names: dict[str, str] = dict(_named(self._cut.structure()))
        found: dict[str, Tensor] = {}
        for name, key in names.items():
            target = _file_of(self._out, key)
            table = self._scope.tables.pop(name, None)
            if table is None or name not in self.schedule.tables:  # an input, or a constant
                raise CutError(f"The model returns {name!r} as it was given; nothing to compute.")
            del table
            found[name] = store.keep(name, target, self.schedule.tables[name].dtype)
        return self._cut.result(found)


def _named(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield (name of a value, its place in the result as text)."""
    if isinstance(value, str):
        yield value, ".".join(path)
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            text = key if isinstance(key, str) else "__".join(map(str, key))
            yield from _named(entry, (*path, text))
    elif isinstance(value, (list, tuple)):
        for i, entry in enumerate(value):
            yield from _named(entry, (*path, str(i)))


def _split(pieces: Cut, given: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors with a row for each node or edge, and the constants, by value name."""
    tables, constants = {}, {}
    values = pieces.input_values(given)
    for name, value in values.items():
        known = pieces.values.get(name)
        if known is None:
            continue
        if isinstance(known.space, Constant):
            constants[name] = value
        else:
            # Kernels read contiguous rows. Stand-ins for edges stay as they are.
            rows = isinstance(known.space, Nodes)
            tables[name] = value.detach().contiguous() if rows else value.detach()
    return tables, constants


def _scope(
    pieces: Cut,
    graph: Graph,
    backend: Backend,
    tables: dict[str, Tensor],
    constants: dict[str, Any],
) -> Scope:
    """Place the graph and the inputs where the backend reads them."""
    csc = graph.csc if backend.memory.checks_reads else verified(graph.csc)
    placed = replace(graph, csc=backend.memory.place_graph(csc))
    backend.memory.place_tables(
        (name, part)
        for name, table in tables.items()
        for part in (tables_in(table) if isinstance(table, QuantizedTensor) else [table])
    )
    return Scope(pieces, placed, backend, graph.csc.indptr, tables, constants)


def _layers(pieces: Cut, backend: Backend, given: Mapping[str, Tensor]) -> dict[str, Layer]:
    """Choose how each convolution runs, and check the whole cut on the example.

    Args:
        pieces: the model.
        backend: that runs it.
        given: the inputs for all nodes; what is quantized there is quantized in the example, too.

    Raises:
        CutError: a convolution that needs more than one hop.
    """
    example = pieces.example
    tables, constants = _split(pieces, example.full)
    for name, table in given.items():
        if isinstance(table, QuantizedTensor):
            tables[name] = quantize(tables[name].cpu(), table.stored.dtype)
    scope = _scope(pieces, graph_of(_graph_of_example(example)), backend, tables, constants)
    layers: dict[str, Layer] = {}
    values: dict[str, Any] = {**pieces.input_values(example.full), **scope.constants}
    for name, table in tables.items():
        if isinstance(table, QuantizedTensor):
            values[name] = table.dense().to(values[name].device)
    for step in pieces.steps:
        # Copies, as a step may change its inputs in place.
        found = step.run({name: _copied(values[name]) for name in step.inputs})
        if isinstance(step, Convolution):
            layers[step.name] = choose(step, scope, found)
        values.update(found)
        scope.tables.update({n: v for n, v in found.items() if isinstance(v, Tensor)})
    return layers


def _graph_of_example(example: Example) -> Any:
    data: Any = Data() if None in example.node_counts else HeteroData()
    for key, count in example.node_counts.items():
        (data if key is None else data[key]).num_nodes = count
    for name, value in example.full.items():
        for edges, space in leaves(value, example.spaces[name]):
            if isinstance(space, Connectivity):
                store = data if space.edge_type is None else data[space.edge_type]
                store.edge_index = edges.cpu()
    return data


def _file_of(out: Path, key: str) -> Path:
    """Return the file of a part of the result; "" is all of it."""
    return out if key == "" else out.with_suffix(f".{key}{out.suffix}")


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def device_of(model: torch.nn.Module) -> torch.device:
    """Return where a model computes."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _check_dtype(dtype: torch.dtype | None) -> torch.dtype | None:
    if dtype is not None and not dtype.is_floating_point:
        raise ValueError(f"dtype must be None or a dtype of floats, got {dtype}.")
    return dtype


def _check_out(out: str | Path | None, resume: bool) -> Path | None:
    if out is None:
        if resume:
            raise ValueError("resume=True needs out=, the file that the result goes to.")
        return None
    path = Path(out)
    if path.suffix != ".npy":
        raise ValueError(f"out must be the name of an .npy file, got {str(out)!r}.")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"out={str(out)!r} lies in a folder that does not exist.")
    return path


@contextlib.contextmanager
def _bar(total: int, shown: bool) -> Iterator[Callable[[int], None] | None]:
    """Show a progress bar of edges (and rows), if that is wanted."""
    if not shown:
        yield None
        return
    from tqdm import tqdm

    with tqdm(total=total, unit="edge", unit_scale=True, desc="Inference") as bar:
        yield bar.update
