"""How each contestant makes its loader; imported in the child processes only."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput

from benchmarks import graphbolt
from benchmarks.cpu.cases import Case, Contestant

# Said at every construction, and known: it is what the baseline is.
warnings.filterwarnings("ignore", "Using 'NeighborSampler' without a 'pyg-lib'")

ARRAYS = ("x", "y", "edge_index")


def save_graph(data: Data, folder: Path) -> None:
    """Write the tensors of `data` for `load_graph`."""
    for name in ARRAYS:
        np.save(folder / f"{name}.npy", data[name].numpy())


def load_graph(folder: Path) -> Data:
    """Read the graph into ordinary tensors.

    Neither the mapped file nor NumPy's own memory would do: both lie on other pages than what a
    user's tensors lie on, and pages are a good part of what a batch costs.
    """
    data = Data()
    for name in ARRAYS:
        mapped = np.load(folder / f"{name}.npy", mmap_mode="c")
        data[name] = torch.empty(mapped.shape, dtype=torch.from_numpy(mapped[:0]).dtype)
        data[name].copy_(torch.from_numpy(mapped))
    return data


def make_loader(contestant: Contestant, case: Case, data: Data, **kwargs: Any) -> Any:
    """Return the contestant's loader over `data`, with seeds in random order."""
    kwargs |= {"batch_size": case.batch_size, "num_workers": contestant.num_workers}
    if contestant.loader == "graphbolt":
        seeds = torch.arange(data.num_nodes)
        return graphbolt.loader_of(
            data, seeds, case.fanout, case.batch_size, contestant.num_workers
        )
    if contestant.loader == "pyg_direct":
        from pyg_direct import NeighborLoader
    else:
        import torch_geometric.typing
        from torch_geometric.loader import NeighborLoader

        # PyG prefers pyg-lib by itself.
        torch_geometric.typing.WITH_PYG_LIB = contestant.loader == "pyg+pyg_lib"
    return NeighborLoader(data, case.fanout, shuffle=True, **kwargs)


def endless(loader: Any) -> Iterator[Any]:
    """Yield batches, epoch after epoch."""
    while True:
        yield from loader


def sampling_only(
    contestant: Contestant, case: Case, data: Data, loader: Any
) -> Callable[[], Any] | None:
    """Return a function that samples one batch and gathers no features.

    Without workers it calls the sampler. With workers it is a loader over the bare graph, which
    uses them, and shares the sampler with `loader`.
    """
    if contestant.loader == "graphbolt":
        return None
    sampler = loader.node_sampler
    if contestant.num_workers == 0:
        generator = torch.Generator().manual_seed(0)

        def sample() -> Any:
            node = torch.randint(data.num_nodes, (case.batch_size,), generator=generator)
            return sampler.sample_from_nodes(NodeSamplerInput(input_id=None, node=node))

        return sample
    bare = Data(edge_index=data.edge_index, num_nodes=data.num_nodes)
    batches = endless(make_loader(contestant, case, bare, neighbor_sampler=sampler))
    return lambda: next(batches)
