"""Checks of single arguments. Every error names the argument, what it got and what it may be."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, Dataset, FeatureStore, GraphStore, HeteroData
from torch_geometric.sampler import NegativeSampling

from .pyg import SubgraphType

PLACES = ("auto", "host", "device")
STRATEGIES = ("uniform", "last")
CACHE_POLICIES = ("visits", "presample", "degree")

NODES_OR_EDGES = "the nodes or of the edges"  # what times may be of
SHOWN_CHARACTERS, SHOWN_ENTRIES = 200, 8  # of a value in an error
MAX_WINDOW = 1 << 62  # so that a time minus a window can be distinguished from the least time


def check_data(data: Any) -> None:
    """Raise a ValueError unless `data` is a graph of PyG's, or a pair of stores."""
    stores = isinstance(data, (tuple, list)) and len(data) == 2
    if stores and all(map(_is_graph, data)):
        stores = False  # PyG's classes are both stores, too, but two with edges are two graphs
    if isinstance(data, (Data, HeteroData)) or (
        stores and isinstance(data[0], FeatureStore) and isinstance(data[1], GraphStore)
    ):
        return
    wanted = "data must be one Data, HeteroData or tuple (FeatureStore, GraphStore)"
    if isinstance(data, Dataset):
        raise ValueError(
            f"{wanted}, got the data set {type(data).__name__} of {len(data)} graphs. Pass one of "
            f"them, as dataset[0]."
        )
    if isinstance(data, (list, tuple)) and any(isinstance(g, (Data, HeteroData)) for g in data):
        kind = "Data" if any(isinstance(g, Data) for g in data) else "HeteroData"
        raise ValueError(
            f"{wanted}, got a {type(data).__name__} of {len(data)} graphs. Pass one of them, or "
            f"join them: {kind}.from_dict(Batch.from_data_list(data).to_dict()), both from "
            f"torch_geometric.data."
        )
    raise ValueError(f"{wanted}, got {type(data).__name__}.")


def _is_graph(value: Any) -> bool:
    """Whether a value is PyG data with edges."""
    return isinstance(value, (Data, HeteroData)) and any(
        key in store for store in value.edge_stores for key in ("edge_index", "adj_t", "adj")
    )


def missing_attribute(argument: str, name: Any, of: str, names: Iterable[str]) -> ValueError:
    """Return the error of an argument that names an attribute which is not there.

    Args:
        argument: that names it, such as "time_attr".
        name: as the user gave it.
        of: what should have it, such as "the edges".
        names: of the attributes that are there.
    """
    there = ", ".join(map(repr, sorted(set(names)))) or "none"
    return ValueError(f"{argument}={name!r} is not an attribute of {of}. Those are: {there}.")


def check_partner(argument: str, partner: str, partner_given: Any) -> None:
    """Raise a ValueError if an argument is given without the one that its meaning hangs on."""
    if not partner_given:
        raise ValueError(f"{argument} has no meaning without {partner}.")


def check_strategy(strategy: Any, time_attr: str | None) -> str:
    """Return `temporal_strategy`.

    Raises:
        ValueError: none of STRATEGIES; or 'last' without times that tell which neighbours are.
    """
    if check_choice("temporal_strategy", strategy, STRATEGIES) == "last":
        check_partner("temporal_strategy='last'", "time_attr", time_attr)
    return str(strategy)


def check_window(time_window: Any, time_attr: str | None) -> int | None:
    """Return `time_window` as an int, or None.

    Raises:
        ValueError: not an int of 0 or more, below 2^62; or one without times to apply it to.
    """
    if time_window is None:
        return None
    check_partner("time_window", "time_attr", time_attr)
    window = check_count("time_window", time_window)
    if window >= MAX_WINDOW:
        raise ValueError(f"time_window must be below 2**62, got {window}.")
    return window


def check_exclusion(value: Any, edge_types: Sequence[Any], mirrored: bool) -> Any:
    """Return what `exclude_seed_edges` asks for: None, 'self', 'reverse' or an edge type.

    Args:
        value: as the user gave it.
        edge_types: of the graph; [None] if it is homogeneous.
        mirrored: whether the reverse of each sampled edge is added to the subgraph.

    Raises:
        ValueError: something else, or 'self' where mirroring would bring the edges back.
    """
    if value is None or (isinstance(value, (bool, np.bool_)) and not value):
        return None
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, str) and value == "self"):
        if mirrored:
            raise ValueError(
                "subgraph_type='bidirectional' adds the reverse of each sampled edge, which may be "
                "a seed edge: pass exclude_seed_edges='reverse'."
            )
        return "self"
    if isinstance(value, str) and value == "reverse":
        return value
    named = tuple(value) if isinstance(value, (tuple, list)) else None
    if named is None or named not in edge_types:
        raise ValueError(
            f"exclude_seed_edges must be True or 'self', 'reverse', or the edge type that holds "
            f"the reverse edges, of {list(edge_types)}, got {shown(value)}."
        )
    return named


def shown(value: Any) -> str:
    """Return a value for an error: of tensors and arrays dtype and shape, of long texts the begin.

    Example: ``('paper', mask)`` is ``('paper', torch.bool of shape (100,))``.
    """
    if isinstance(value, (Tensor, np.ndarray)):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    if isinstance(value, (tuple, list)) and any(map(_is_long, value)):
        inner = ", ".join(map(shown, value[:SHOWN_ENTRIES]))
        inner += ", ..." if len(value) > SHOWN_ENTRIES else ""
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    if isinstance(value, dict) and any(map(_is_long, value.values())):
        return f"{{{', '.join(f'{key!r}: {shown(entry)}' for key, entry in value.items())}}}"
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _is_long(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray, tuple, list, dict))


def check_flag(name: str, value: Any) -> bool:
    """Return `value` as a bool; 0 and 1 count as one, other things do not.

    Raises:
        TypeError: not a bool.
    """
    if isinstance(value, (bool, np.bool_)) or (type(value) is int and value in (0, 1)):
        return bool(value)
    raise TypeError(f"{name} must be True or False, got {shown(value)}.")


def check_model(model: Any) -> None:
    """Raise a TypeError unless `model` is a module of torch, rather than a class of such."""
    if not isinstance(model, torch.nn.Module):
        is_class = isinstance(model, type)
        got = f"the class {model.__name__}; call it" if is_class else type(model).__name__
        raise TypeError(f"model must be a torch.nn.Module, got {got}.")


def check_callable(name: str, value: Any) -> None:
    """Raise a TypeError unless `value` can be called or is None."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function or None, got {shown(value)}.")


def check_count(name: str, value: Any, least: int = 0) -> int:
    """Return `value` as an int.

    Raises:
        ValueError: not an integer of `least` or more.
    """
    integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not integer or value < least:
        raise ValueError(f"{name} must be an int of {least} or more, got {shown(value)}.")
    return int(value)


def check_share(name: str, value: Any) -> float:
    """Return `value` as a float.

    Raises:
        ValueError: not a number in (0, 1].
    """
    if not _is_number(value) or not 0 < value <= 1:
        raise ValueError(f"{name} must be a number in (0, 1], got {shown(value)}.")
    return float(value)


def check_mode(name: str, value: Any) -> str:
    """Return `value` if it is a place where arrays may be stored for a GPU.

    Raises:
        ValueError: it is none of PLACES.
    """
    return check_choice(name, value, PLACES)


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return `value` if it is one of `choices`.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, str) or value not in choices:
        raise ValueError(
            f"{name} must be one of {', '.join(map(repr, choices))}, got {shown(value)}."
        )
    return value


def check_bytes(name: str, value: Any) -> int | None:
    """Return `value` if it is None or a number of bytes.

    Raises:
        ValueError: neither None nor an int of 0 or more.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ValueError(
            f"{name} must be None or a number of bytes of 0 or more, got {shown(value)}."
        )
    return value


def check_cache(cache: Any, policy: Any) -> None:
    """Raise a ValueError unless `cache` is a size of a cache, and `policy` says what it holds.

    Args:
        cache: None, "auto", bytes as an int, or a float, the share of the tables on the host.
        policy: "visits", "presample", "degree", a tensor with a number for each node, or a dict of
            such by node type.
    """
    sizes = cache is None or cache == "auto" or (_is_number(cache) and cache >= 0)
    if not sizes or (isinstance(cache, float) and not cache <= 1):
        raise ValueError(
            f"cache must be None, 'auto', a number of bytes (int), or a share of the tables in "
            f"host memory (a float in [0, 1]), got {shown(cache)}."
        )
    named = policy.values() if isinstance(policy, Mapping) else [policy]
    if not (isinstance(policy, str) and policy in CACHE_POLICIES) and not all(
        isinstance(value, Tensor) and value.dim() == 1 for value in named
    ):
        raise ValueError(
            f"cache_policy must be one of {', '.join(CACHE_POLICIES)}, a tensor [num_nodes], or a "
            f"dict of tensors by node type, got {shown(policy)}."
        )
    if not (isinstance(policy, str) and policy == "visits"):
        check_partner("cache_policy", "cache=", cache is not None)


def check_seed(seed: int | None) -> int | None:
    """Return `seed` as a Python int.

    Raises:
        TypeError: not an integer or None.
        ValueError: outside [0, 2^64).
    """
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise TypeError(f"seed must be an int or None, got {type(seed).__name__}.")
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"seed must be in [0, 2**64), got {seed}.")
    return int(seed)


def check_key(key: Any) -> tuple[int, int]:
    """Return the two words of a key as Python ints.

    Raises:
        ValueError: not two integers in [0, 2^32).
    """
    words = tuple(key) if isinstance(key, Sequence) else ()
    if len(words) != 2 or not all(
        isinstance(word, (int, np.integer)) and 0 <= word < 1 << 32 for word in words
    ):
        raise ValueError(
            f"key must be two integers in [0, 2**32), such as (1, 2), got {shown(key)}."
        )
    return int(words[0]), int(words[1])


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def check_tensor(name: str, value: Any) -> None:
    """Raise a TypeError unless `value` is a tensor or None."""
    if value is not None and not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}.")


def check_dense(name: str, value: Any) -> None:
    """Raise a ValueError for a tensor that has not a number in memory for each of its places.

    Args:
        name: of the argument.
        value: as the user gave it, alone or after a type.
    """
    for part in value if isinstance(value, (tuple, list)) and len(value) == 2 else [value]:
        if isinstance(part, Tensor) and (part.is_meta or part.layout != torch.strided):
            kind = "on the meta device" if part.is_meta else f"of the layout {part.layout}"
            raise ValueError(f"{name} must be a dense tensor in memory, got one {kind}.")


def check_subgraph_type(value: Any) -> SubgraphType:
    """Return the kind of subgraph that `value` names.

    Raises:
        ValueError: no such kind.
    """
    try:
        return SubgraphType(value)
    except ValueError:
        kinds = ", ".join(repr(kind.value) for kind in SubgraphType)
        raise ValueError(f"subgraph_type must be one of {kinds}, got {shown(value)}.") from None


def check_loader_options(options: dict[str, Any], data: Any) -> None:
    """Check the keyword arguments of PyG's loaders, and DataLoader's that torch does not check.

    Torch takes most of them as they come, and fails when the first batch is made.

    Raises:
        TypeError, ValueError: the message says which is wrong.
    """
    if "num_workers" in options:
        check_count("num_workers", options["num_workers"])
    timeout = options.get("timeout", 0)
    if not _is_number(timeout) or not timeout >= 0:
        raise ValueError(f"timeout must be a number of seconds, 0 or more, got {shown(timeout)}.")
    for name in ("filter_per_worker", "shuffle", "pin_memory", "persistent_workers", "in_order"):
        if options.get(name) is not None:
            check_flag(name, options[name])
    for name in ("transform", "transform_sampler_output", "worker_init_fn", "custom_cls"):
        check_callable(name, options.get(name))
    check_tensor("input_id", options.get("input_id"))
    generator = options.get("generator")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator or None, got {shown(generator)}.")
    for name in ("sampler", "batch_sampler"):
        value = options.get(name)
        if value is not None and (isinstance(value, str) or not isinstance(value, Iterable)):
            raise TypeError(f"{name} must be a sampler or another iterable, got {shown(value)}.")
    if options.get("custom_cls") is not None and isinstance(data, (Data, HeteroData)):
        raise ValueError(
            f"custom_cls names the class of batches from remote stores, got "
            f"{options['custom_cls']!r} beside a {type(data).__name__}, whose batches are of its "
            f"own class."
        )


def check_input_id(input_id: Any, num_seeds: int) -> None:
    """Raise an error unless `input_id` is None or holds one integer for each seed."""
    if input_id is not None and (
        input_id.shape != (num_seeds,) or input_id.is_floating_point() or input_id.is_complex()
    ):
        raise ValueError(
            f"input_id must hold one integer for each of {num_seeds} seeds, got {input_id.dtype} "
            f"of shape {tuple(input_id.shape)}."
        )


def check_negatives(neg_sampling: Any, ratio: Any) -> NegativeSampling | None:
    """Return how to draw negatives, from `neg_sampling` and `neg_sampling_ratio`.

    Raises:
        TypeError, ValueError: something that is neither, no such mode, an amount that is no
            positive number, or both arguments at a time.
    """
    if ratio is not None:
        if not _is_number(ratio):
            raise TypeError(f"neg_sampling_ratio must be a number or None, got {shown(ratio)}.")
        if not 0 <= ratio < math.inf:
            raise ValueError(
                f"neg_sampling_ratio must be 0 or more, and finite, got {shown(ratio)}."
            )
        if ratio > 0 and neg_sampling is not None:
            raise ValueError(
                f"neg_sampling={neg_sampling!r} and neg_sampling_ratio={ratio!r} contradict each "
                f"other; pass only neg_sampling."
            )
    if ratio:
        return NegativeSampling("binary", ratio)
    try:
        config: Any = NegativeSampling.cast(neg_sampling)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"neg_sampling must be 'binary', 'triplet', a NegativeSampling or a dict of its "
            f"arguments, got {shown(neg_sampling)}: {error}"
        ) from error
    if config is not None and not math.isfinite(config.amount):
        raise ValueError(f"neg_sampling must ask for a finite amount, got {config.amount}.")
    if config is not None and config.is_triplet() and config.src_weight is not None:
        # PyG's own programs pass both weights, so it is not an error.
        warnings.warn(
            "neg_sampling: src_weight has no effect with mode='triplet', where sources are those "
            "of the links.",
            UserWarning,
            stacklevel=3,
        )
    return config  # type: ignore[no-any-return]


def check_ids(ids: Tensor, end: int, what: str) -> None:
    """Raise an IndexError unless every element of `ids` is in [0, end)."""
    if ids.numel() > 0:
        low, high = map(int, torch.aminmax(ids))
        if low < 0 or high >= end:
            bad = low if low < 0 else high
            raise IndexError(f"{what} must be node ids in [0, {end}), got {bad}.")
