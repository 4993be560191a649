"""The states that `state_dict` saves: their contents, their checks, fingerprints of seed orders."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DistributedSampler

STATE_VERSION = 2
READABLE_VERSIONS = (1, STATE_VERSION)  # version 1 had three fields of the fingerprint

Fingerprint = Mapping[str, Any]
"""Names and values, numbers or texts, of everything that decides what the batches are."""
SIZE_STEPS = "size_steps"  # what only states of loaders have whose batches were padded to more

TAIL = "tail"  # the field of what ranks do at the end of an epoch

COOPERATIVE = "cooperative"  # the field of how many ranks make a batch together
EDGES = "edges"  # a field that ranks compare, and states do not have

# Fields that states of loaders with `num_neighbors` lack that were saved by version 0.2, or by
# loaders whose ranks make no batches together.
SINCE_0_2: dict[str, Any] = {
    COOPERATIVE: None,
    "sampling": "uniform",
    "layer_dependency": False,
    "batch_dependency": 1,
    "strict_negatives": False,
}

# Fields of a fingerprint that are hashes, of which the value says nothing: what they stand for.
HASHES = {
    "graph": "another graph (edges, or what time_attr= or weight_attr= names)",
    "seeds": "other seeds (input_nodes= or edge_label_index=, or their times or labels)",
    "clusters": "other clusters (order=)",
    EDGES: "another graph (some edges, or what time_attr= or weight_attr= names)",
    "attributes": "other attributes of nodes or edges",
    "first_batch": "another order of the seeds (sampler= or batch_sampler=)",
}
# Fields that no argument is called by: what decides them.
CAUSES = {
    "order": "shuffle=, order=, sampler= or batch_sampler= giving",
    "generator": "generator= given:",
    "loader": "class",
    COOPERATIVE: "cooperative=True on as many ranks as",
    "windows": "input_start_time= and input_end_time= giving",
    "sampler": "neighbor_sampler= of class",
    "input_type": "seeds of type",
    "num_replicas": "a DistributedSampler of as many ranks as num_replicas:",
    "sampler_seed": "a DistributedSampler of seed",
    "batch": "a state of as many batches done:",
    "finished": "an epoch that was finished:",
    "base_seed": "a state of base seed",
}


def difference(name: str, saved: Fingerprint, here: Fingerprint) -> str:
    """Return how one field of two fingerprints differs, in terms of the loader's arguments."""
    if name in HASHES:
        return HASHES[name]
    what = f"{CAUSES[name]} " if name in CAUSES else f"{name}="
    return f"{what}{saved.get(name)!r} (here {here.get(name)!r})"


def _is_int(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value < high


def _is_random_state(value: Any) -> bool:
    """Whether a value is None or a state that torch's CPU generators take."""
    if value is None:
        return True
    try:
        torch.Generator().set_state(value)
    except (RuntimeError, TypeError, AttributeError):
        return False
    return True


# What is saved of `Progress`, and what is allowed there.
FIELDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "epoch": ("an int in [-1, 2**32)", _is_int(-1, 1 << 32)),
    "batch": ("an int of 0 or more", _is_int(0, 1 << 63)),
    "finished": ("a bool", lambda value: type(value) is bool),
    "base_seed": ("an int in [0, 2**64)", _is_int(0, 1 << 64)),
    "default_state": ("a state of a torch generator or None", _is_random_state),
    "generator_state": ("a state of a torch generator or None", _is_random_state),
}


def refusal(problem: str) -> ValueError:
    """Return the error that a state cannot be loaded."""
    return ValueError(
        f"The state cannot be loaded: {problem}. Pass what the loader's state_dict() returned."
    )


def checked(state: Any) -> dict[str, Any]:
    """Return the fingerprint in a state; see `Progress.load_state_dict`.

    Raises:
        ValueError: not a state, or one that no loader can have saved.
    """

    if not isinstance(state, Mapping):
        raise refusal(f"it is a {type(state).__name__} and no dict")
    version = state.get("version")
    if version not in READABLE_VERSIONS:
        raise refusal(
            f"it has version {version!r}, and this pyg_direct reads the versions "
            f"{', '.join(map(str, READABLE_VERSIONS))}"
        )
    extra = {"fingerprint"} if version == STATE_VERSION else {"num_seeds", "batch_size"}
    expected = {"version", "seed", *FIELDS, *extra}
    more = set(state) - expected - {SIZE_STEPS}
    for what, names in (("lacks", expected - set(state)), ("also has", more)):
        if names:
            raise refusal(f"it {what} {', '.join(sorted(map(repr, names)))}")
    for name, (allowed, is_allowed) in FIELDS.items():
        if not is_allowed(state[name]):
            raise refusal(f"{name!r} must be {allowed}, got {state[name]!r}")
    steps = state.get(SIZE_STEPS, [0, 0])
    if type(steps) is not list or len(steps) != 2 or not all(map(_is_int(0, 1 << 10), steps)):
        raise refusal(f"{SIZE_STEPS!r} must be two ints in [0, 1024), got {steps!r}")
    if not state["finished"] and (state["epoch"] < 0 or state["default_state"] is None):
        raise refusal("it is in the middle of an epoch that was never begun")
    saved = state["fingerprint"] if version == STATE_VERSION else {k: state[k] for k in extra}
    if not isinstance(saved, Mapping):
        raise refusal(f"'fingerprint' must be a dict, got {saved!r}")
    defaults = SINCE_0_2 if "num_neighbors" in saved else {}
    return {"seed": state["seed"], **defaults, **saved}


def of_ranks(sampler: Any) -> dict[str, Any]:
    """Return what decides which seeds a DistributedSampler gives, but for its rank and epoch."""
    if not isinstance(sampler, DistributedSampler):
        return {}
    return {"num_replicas": sampler.num_replicas, "sampler_seed": sampler.seed}


def of_positions(batches: Iterable[Any]) -> str:
    """Return a hash of what a batch sampler gave, whatever form its batches have."""
    text = repr([np.asarray(batch).tolist() for batch in batches])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
