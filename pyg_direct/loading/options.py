"""The keyword arguments that a loader passes on to PyG's and torch's classes, and its `repr`."""

from __future__ import annotations

import difflib
import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils.data import Sampler
from torch_geometric.sampler import BaseSampler
from torch_geometric.typing import EdgeType
from typing_extensions import TypedDict

from ..core.arguments import check_count, check_partner, shown
from ..core.placing import GPU_NAMES, Gpu, Placing
from ..core.threads import available_cores
from ..core.types import Ends
from ..core.units import size_text
from ..ops.placement import Placement
from ..ranks.split import NAMES as SPLIT_NAMES
from ..ranks.split import Ranks, options_of
from ..sampling.sampler import NeighborSampler, keyed
from .stages import torch_threads

PACKAGE = __name__.partition(".")[0] + "."
DEFAULT_PREFETCH = 2
P = ParamSpec("P")
R = TypeVar("R")
MOST_DEPENDENT = 256  # of `batch_dependency`, without a warning

OURS_TO_GIVE = {"self", "args", "kwargs", "node_sampler", "link_sampler"}
# Arguments that a loader shows as attributes, and that it has read when it was built.
READ_ONCE = {
    "input_nodes", "input_time", "input_id", "edge_label_index", "node_idx", "depth",
    "num_neighbors", "replace", "num_steps", "sample_coverage",
}  # fmt: skip


@functools.cache
def arguments_of(loader: Any, package: str = "") -> frozenset[str]:
    """Return the arguments of a class and of those above it, or of those in one package."""
    return frozenset(
        name
        for base in loader.__mro__[:-1]
        if "__init__" in vars(base) and base.__module__.startswith(package)
        for name in inspect.signature(vars(base)["__init__"]).parameters
    )


class CommonOptions(TypedDict, total=False):
    """Keyword arguments that all loaders take beside their own, for type checkers.

    `Gpu` and `Ranks` are records of some of them.
    """

    # Of `torch.utils.data.DataLoader`:
    shuffle: bool | None
    sampler: Sampler[Any] | Iterable[Any] | None
    batch_sampler: Sampler[list[Any]] | Iterable[Any] | None
    num_workers: int
    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    generator: torch.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory_device: str
    in_order: bool
    # Of PyG's loaders:
    custom_cls: type[Any] | None
    input_id: Tensor | None
    # For several ranks; see `pyg_direct.NeighborLoader`:
    split_by_rank: bool | torch.distributed.ProcessGroup
    rank: int | None
    world_size: int | None
    share_rows: bool
    owners: Any
    cooperative: bool
    tail: str
    ranks: Ranks | None
    # What Lightning passes again when it builds a loader anew:
    dataset: Any
    collate_fn: Any


class DrawOptions(CommonOptions, total=False):
    """The same, with where batches are made and what their draws follow from."""

    device: torch.device | str | int | None
    seed: int | None
    prefetch: int


class BatchOptions(DrawOptions, total=False):
    """The same of loaders whose batches have ids and attributes."""

    ids: str
    feature_dtype: torch.dtype | None


class LoaderOptions(BatchOptions, total=False):
    """The same of loaders whose batch size is DataLoader's."""

    batch_size: int | None


class NeighborOptions(LoaderOptions, total=False):
    """The same of loaders that sample neighbors, beside the arguments of PyG's."""

    gpu: Gpu | None
    topology: str
    features: str
    device_bytes: int | None
    gather_blocks: int | None
    cache: str | int | float | None
    cache_policy: Any
    time_window: int | None
    input_start_time: Tensor | None
    input_end_time: Tensor | None
    sampling: str
    layer_dependency: bool
    batch_dependency: int
    order: Tensor | str | None
    static_shapes: bool | Mapping[str, Any]


class LinkOptions(NeighborOptions, total=False):
    """The same of loaders that sample around links."""

    exclude_seed_edges: bool | str | EdgeType | None
    strict_negatives: bool


# What those of this package are where they are not given.
DEFAULTS: Mapping[str, Any] = {
    "gpu": None,
    "device": None,
    "topology": "auto",
    "features": "auto",
    "device_bytes": None,
    "ids": "host",
    "gather_blocks": None,
    "cache": None,
    "cache_policy": "visits",
    "feature_dtype": None,
    "seed": None,
    "prefetch": DEFAULT_PREFETCH,
    "time_window": None,
    "input_start_time": None,
    "input_end_time": None,
    "exclude_seed_edges": None,
    "strict_negatives": False,
    "sampling": "uniform",
    "layer_dependency": False,
    "batch_dependency": 1,
    "order": None,
    "static_shapes": False,
}


# Those that the sampler of a loader is built with.
OF_SAMPLING = ("time_window", "sampling", "layer_dependency")


def takes(options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let `help()` and `inspect.signature` show the arguments of this package in `**kwargs`.

    Args:
        options: the `TypedDict` of the keyword arguments.
    """

    def with_signature(initialise: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(initialise)
        *named, rest = signature.parameters.values()
        own = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
            for name, default in DEFAULTS.items()
            if name in options.__annotations__
        ]
        documented: Any = initialise
        documented.__signature__ = signature.replace(parameters=[*named, *own, rest])
        return initialise

    return with_signature


class Given(NamedTuple):
    """The keyword arguments of a loader: those of this package, and what is passed on."""

    own: dict[str, Any]  # the names of `DEFAULTS`
    passed_on: dict[str, Any]  # to PyG's and torch's classes, and those for ranks; may be changed
    placing: Placing
    seed: int | None
    prefetch: int
    feature_dtype: torch.dtype | None


def given(loader: type, options: Mapping[str, Any], **named: Any) -> Given:
    """Return the keyword arguments of a loader.

    Args:
        loader: its class.
        options: as the user gave them.
        **named: others that are passed on.

    Raises:
        TypeError: the loader has no such argument.
    """
    check_names(options, loader)
    options = _unpacked(options)
    own = {name: options.get(name, default) for name, default in DEFAULTS.items()}
    passed_on = {name: value for name, value in options.items() if name not in DEFAULTS}
    placing = Placing(**{name: own[name] for name in Placing._fields if name in own})
    return Given(
        own, named | passed_on, placing, own["seed"], own["prefetch"], own["feature_dtype"]
    )


def _unpacked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of a loader with the fields of `gpu=` and `ranks=`.

    Raises:
        TypeError: one of the two is something else.
        ValueError: a field is given as an argument, too.
    """
    found = dict(options)
    for name, kind, names in (("gpu", Gpu, GPU_NAMES), ("ranks", Ranks, SPLIT_NAMES)):
        record = found.pop(name, None)
        if record is None:
            continue
        if not isinstance(record, kind):
            raise TypeError(f"{name} must be a pyg_direct.{kind.__name__}, got {shown(record)}.")
        twice = [other for other in names if other in found]
        if twice:
            raise ValueError(
                f"{name}={kind.__name__}(...) and {twice[0]}= say the same. Pass {twice[0]} as a "
                f"field of {kind.__name__}, or leave out {name}=."
            )
        found.update(options_of(record) if isinstance(record, Ranks) else vars(record))
    return found


def check_names(options: Mapping[str, Any], loader: type) -> None:
    """Raise a TypeError, which names the loader, unless it or a class above it takes each option.

    Args:
        options: keyword arguments.
        loader: its class, perhaps a user's subclass.
    """
    known = arguments_of(loader).union(SPLIT_NAMES, ["ranks"]) - OURS_TO_GIVE
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f" Did you mean {near[0]}=?" if near else ""
            raise TypeError(f"{loader.__name__} has no argument {name}=.{hint}")


def check_assignment(loader: Any, name: str) -> None:
    """Raise an AttributeError if an argument is assigned to that a built loader reads no more."""
    kind: Any = type(loader)
    passed_on = name not in DEFAULTS and name in LoaderOptions.__annotations__
    if passed_on or name not in arguments_of(kind, PACKAGE):
        return  # DataLoader itself refuses to have some of its own assigned to
    if name not in READ_ONCE and hasattr(loader, name):
        return
    sampler = next((n for n in ("node_sampler", "link_sampler") if hasattr(loader, n)), None)
    settable = sampler and isinstance(getattr(type(getattr(loader, sampler)), name, None), property)
    instead = f"Assign to loader.{sampler}.{name}, or build" if settable else "Build"
    raise AttributeError(
        f"{name} of a {type(loader).__name__} is read when the loader is built, so that assigning "
        f"to it would change nothing. {instead} a new loader."
    )


def check_dependency(value: Any, sampler: BaseSampler) -> int:
    """Return `batch_dependency`, which needs a sampler of ours with LABOR if it is above 1."""
    count = check_count("batch_dependency", value, least=1)
    is_labor = isinstance(sampler, NeighborSampler) and keyed(sampler).settings.sampling == "labor"
    if count > 1:
        check_partner(f"batch_dependency={count}", "sampling='labor'", is_labor)
    if count > MOST_DEPENDENT:
        warnings.warn(
            f"batch_dependency={count}: batches that share that many of their draws act like "
            f"fewer batches, and models have been seen to lose accuracy above {MOST_DEPENDENT}. "
            f"Cache misses are nearly as rare with 64.",
            UserWarning,
            stacklevel=3,
        )
    return min(count, 2**32 - 1)  # an epoch has fewer batches


def refuse_unused(kwargs: dict[str, Any], ours: type) -> None:
    """Raise a TypeError if arguments of DataLoader were given that PyG's loaders drop silently.

    Lightning passes on those of a loader that it builds anew; they would be the same without it.

    Args:
        kwargs: keyword arguments of a loader.
        ours: the base of the loaders whose `collate_fn` may be passed.
    """
    collate_fn, dataset = kwargs.get("collate_fn"), kwargs.get("dataset")
    if collate_fn is not None and not isinstance(getattr(collate_fn, "__self__", None), ours):
        raise TypeError(
            f"collate_fn={collate_fn!r} would have no effect: pass transform= to change finished "
            f"batches, or override the method collate_fn in a subclass."
        )
    if dataset is not None and not isinstance(dataset, range):
        raise TypeError(
            f"dataset={type(dataset).__name__} would have no effect: the seeds are input_nodes= or "
            f"edge_label_index=."
        )


def check_prefetch(prefetch: int, kwargs: dict[str, Any]) -> int:
    """Return how far each producer works ahead: `prefetch`, or DataLoader's name for it."""
    factor = kwargs.get("prefetch_factor")
    if factor is not None and prefetch not in (DEFAULT_PREFETCH, factor):
        raise ValueError(
            f"prefetch={prefetch} and prefetch_factor={factor} contradict each other; pass one."
        )
    if factor is not None:
        return check_count("prefetch_factor", factor)
    return check_count("prefetch", prefetch)


def threads_of_a_batch(options: Mapping[str, Any]) -> int:
    """Return how many CPU threads share one batch: with several producers, batches run in parallel.

    Args:
        options: of `torch.utils.data.DataLoader`; may be wrong, as they are checked later.
    """
    workers = options.get("num_workers")
    several = isinstance(workers, int) and workers > 1
    return 1 if several else min(available_cores(), torch_threads())


def describe(
    name: str, ends: Ends | None, num_seeds: int, arguments: dict[str, Any], placement: Placement
) -> str:
    """Return one line: what a loader loads, how, and where it makes its batches.

    Args:
        name: of the class.
        ends: the numbers of nodes and edges; None if only a foreign sampler knows them.
        num_seeds: of an epoch.
        arguments: what else to print, by name.
        placement: where batches are, and arrays, if they were placed.

    Example: ``NeighborLoader(12 nodes, 20 edges, 5 seeds, num_neighbors=[2, 3], batch_size=2,
    device=cpu)``.
    """
    parts = []
    if ends is not None:
        parts += [_count(ends.node, "nodes"), _count(ends.edge, "edges")]
    parts.append(f"{num_seeds:,} seeds")
    parts += [f"{key}={value}" for key, value in arguments.items()]
    parts.append(f"device={placement.device}")
    places: dict[str, int] = {}
    for row in placement.rows:
        places[row.place] = places.get(row.place, 0) + row.nbytes
    parts += [f"{size_text(nbytes)} in {place}" for place, nbytes in places.items()]
    return f"{name}({', '.join(parts)})"


def _count(numbers: Mapping[Any, int], what: str) -> str:
    total = f"{sum(numbers.values()):,} {what}"
    return total if None in numbers else f"{total} of {len(numbers)} types"


def rebuilding_by_lightning(name: str) -> str:
    """Return what to say when Lightning begins to build a loader of a class anew."""
    return (
        f"Lightning would build this {name} anew, with a sampler of its own (for the ranks of DDP, "
        f"or to predict), and does not know its arguments. Write one of: (1) to fit and validate, "
        f"{name}(..., split_by_rank=True), wherever it is built; (2) 'from pyg_direct import "
        f"{name}' at the top of the file, and build the loader in a hook such as train_dataloader; "
        f"(3) there, sampler=torch.utils.data.DistributedSampler(range(num_seeds)); (4) for nodes, "
        f"LightningNodeData(loader='custom', node_sampler=pyg_direct.NeighborSampler(...)). "
        f"Trainer(use_distributed_sampler=False) trains every rank on all seeds of its loader."
    )
