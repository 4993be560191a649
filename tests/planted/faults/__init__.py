"""The faults of all rooms."""

from __future__ import annotations

from ..fault import Fault
from . import (
    batch,
    between,
    crossings,
    cuda,
    epochs,
    files,
    graph,
    in_common,
    kernels,
    loaders,
    loading,
    models,
    ops,
    ops_cuda,
    pairs,
    partitions,
    ranks,
    rest,
    sampling,
    saved,
    second_rounds,
    tools,
)

FAULTS: list[Fault] = [
    *kernels.FAULTS,
    *cuda.FAULTS,
    *graph.FAULTS,
    *ops.FAULTS,
    *ops_cuda.FAULTS,
    *sampling.FAULTS,
    *batch.FAULTS,
    *files.FAULTS,
    *loading.FAULTS,
    *epochs.FAULTS,
    *loaders.FAULTS,
    *models.FAULTS,
    *partitions.FAULTS,
    *in_common.FAULTS,
    *between.FAULTS,
    *pairs.FAULTS,
    *crossings.FAULTS,
    *rest.FAULTS,
    *saved.FAULTS,
    *ranks.FAULTS,
    *tools.FAULTS,
    *second_rounds.FAULTS,
]
