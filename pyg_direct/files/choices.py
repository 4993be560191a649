"""Options of commands about files, and their defaults; without torch, for fast errors."""

from __future__ import annotations

from typing import NamedTuple

# Of a conversion.
SELF_LOOPS = ("keep", "remove", "add")
FEATURE_DTYPES = ("int8", "float16", "bfloat16")
SCALES = ("column", "row")
IDS = ("numbers", "names")

# Of a generated graph.
ROOTS = {1: 0, 2: 1, 4: 2}  # square roots that a skew takes
DTYPES = ("int8", "float16", "float32")


class PowerLaw(NamedTuple):
    """A graph that `generate` writes.

    Args:
        num_nodes: below 2^31.
        num_edges: the exact number, parallel edges and self loops included.
        num_features: columns of `x`.
        num_classes: of the labels `y`, about equally frequent.
        num_groups: communities that labels are made of, at least `num_classes`; None for as many.
        skew: 1 for equal degrees, 2 or 4 for power laws of exponent 3 and 2.33.
        homophily: in [0, 1], probability that an edge is drawn within a community.
        signal: in [0, 1], distance of the classes' centroids; 0 for no information.
        train_share: in [0, 1], of the nodes in `train_mask`; half as many are in `val_mask`, and as
            many in `test_mask`.
        dtype: "int8" (a `QuantizedTensor` of one scale), "float16" or "float32".
        seed: in [0, 2^64); the same seed gives the same files, on any machine.
    """

    num_nodes: int
    num_edges: int
    num_features: int = 128
    num_classes: int = 16
    num_groups: int | None = None
    skew: int = 2
    homophily: float = 0.7
    signal: float = 0.25
    train_share: float = 0.01
    dtype: str = "int8"
    seed: int = 0
