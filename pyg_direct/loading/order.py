"""Orders of seeds in which those of one batch, and of batches in a row, are near each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from ..ops.host import keys as rng

# Parts of the order that batches take seeds from, and seeds in a row of a breadth-first search that
# make a cluster. Fewer parts keep more rows from batch to batch and mix fewer labels: batches of
# 512 of the Debian graph are 0.15 from the labels of all in total variation (0.11 when shuffled);
# with 32 parts and 64 seeds they were 0.23, and a GraphSAGE lost 0.7 % of accuracy.
LANES, CHUNK = 128, 16


class ClusterOrder(Sampler[int]):
    """Goes through the seeds cluster by cluster, in a new random order in each epoch.

    Clusters come in random order, as do the seeds of a cluster; what that gives is cut into
    `LANES` parts of equal length, of which batches take seeds in turns, so that the labels of a
    batch are those of several clusters. Where batches have fewer seeds than that, there are at most
    as many parts, so that batches in a row take from the same ones, and half as many as clusters,
    of which a batch has some then. With ranks in place of clusters, `CHUNK` seeds in a row
    are a cluster, from a random place on. This follows Liu et al., "BGL: GPU-Efficient GNN
    Training by Optimizing Graph Data I/O and Preprocessing" (NSDI 2023), which interleaves
    breadth-first sequences with random shifts.

    Attributes:
        cluster: int64 [seeds], the cluster of each seed.
        by_rank: whether it holds ranks, all different, and not clusters.
        generator: from which each epoch draws one number; None for torch's default generator.
        batch_size: seeds of a batch.
    """

    def __init__(self, generator: torch.Generator | None, batch_size: int = LANES) -> None:
        self.batch_size = batch_size
        self.cluster = torch.empty(0, dtype=torch.int64)
        self.by_rank = False
        self.generator = generator

    def __len__(self) -> int:
        return len(self.cluster)

    def __iter__(self) -> Iterator[int]:
        """Begin an epoch: iterate over what `draw` returns."""
        return iter(self.draw().tolist())

    def draw(self) -> Tensor:
        """Draw the order of an epoch, positions of seeds, int64 [seeds].

        Example: clusters [0, 0, 1, 1] in two lanes: 1 may come first with its seeds 3, 2, then 0
        with 0, 1; the lanes are 3, 2 and 0, 1, and the order is 3, 0, 2, 1.
        """
        own = torch.Generator().manual_seed(rng.draw_seed(self.generator))
        cluster = self.cluster
        if self.by_rank:
            cluster = (cluster + int(torch.randint(CHUNK, (), generator=own))) // CHUNK
        count = len(cluster)
        numbers, cluster = torch.unique(cluster, return_inverse=True)
        place = torch.randperm(len(numbers), generator=own)[cluster]
        order = torch.randperm(count, generator=own)
        order = order[torch.argsort(place[order], stable=True)]
        width = LANES
        if self.batch_size < LANES and not self.by_rank:
            width = max(1, min(self.batch_size, len(numbers) // 2))
        lanes = torch.arange(-(-count // width) * width).view(width, -1).t().reshape(-1)
        return order[lanes[lanes < count]]


class PartOrder(ClusterOrder):
    """Gives each batch the seeds of one part of a partitioned graph, parts in turn.

    Of W ranks, W a divisor of the number of parts, the one that holds part p makes batches of its
    seeds, as it makes the batches i with i mod W = p mod W. Where a part has no full batch left,
    the one with most seeds left has its turn; what is less than a batch of each part comes last,
    mixed. Each epoch has a new random order. Which batches there are depends on no rank.

    Args:
        generator: as of `ClusterOrder`.
        batch_size: seeds of a batch.
    """

    def __init__(self, generator: torch.Generator | None, batch_size: int) -> None:
        super().__init__(generator, batch_size)

    def draw(self) -> Tensor:
        """Draw the order of an epoch, positions of seeds, int64 [seeds].

        Example: the parts [0, 1, 0, 1, 1, 1] of seeds and a batch size of 2: the batches are of
        part 0, 1 and 1, such as 2, 0 | 3, 5 | 1, 4.
        """
        own = torch.Generator().manual_seed(rng.draw_seed(self.generator))
        order, size = torch.randperm(len(self.cluster), generator=own), self.batch_size
        of_part = [order[self.cluster[order] == p] for p in range(int(self.cluster.max()) + 1)]
        left = [len(seeds) // size for seeds in of_part]
        batches, turn = [], 0
        while any(left):
            p = turn % len(left)
            p = p if left[p] > 0 else max(range(len(left)), key=left.__getitem__)
            first = (len(of_part[p]) // size - left[p]) * size
            batches.append(of_part[p][first : first + size])
            left[p], turn = left[p] - 1, turn + 1
        rest = torch.cat([seeds[len(seeds) // size * size :] for seeds in of_part])
        rest = rest[torch.randperm(len(rest), generator=own)]
        return torch.cat([*batches, rest])


def check_order(order: Any, options: dict[str, Any], names: Sequence[str] = ("proximity",)) -> None:
    """Raise a TypeError or ValueError unless `order` is one, and nothing else orders the seeds.

    Args:
        order: as of `NeighborLoader`.
        options: of DataLoader.
        names: which orders have one, of 'proximity' and 'parts'.
    """
    if isinstance(order, Tensor):
        if order.dim() != 1 or order.is_floating_point() or order.dtype == torch.bool:
            raise ValueError(
                f"order must hold one integer for each seed, its cluster, got {order.dtype} of "
                f"shape {tuple(order.shape)}."
            )
    elif isinstance(order, str) and order == "parts" and order not in names:
        raise ValueError(
            "order='parts' needs data that was opened from a partition, or share_rows=True with "
            "owners=."
        )
    elif not (isinstance(order, str) and order in names):
        given = repr(order) if isinstance(order, (str, int)) else type(order).__name__
        raise ValueError(
            f"order must be 'proximity', a tensor of clusters (integers, one for each seed), "
            f"'parts' where the data is a partition, or None, got {given}."
        )
    for name in ("shuffle", "sampler", "batch_sampler"):
        if not (options.get(name) is None or options[name] is False):
            raise ValueError(
                f"order= and {name}= both say in which order the seeds come; pass one of them."
            )


def ranks_among(rank: Tensor) -> Tensor:
    """Return for each seed how many seeds have a lower rank, int64 [seeds]."""
    return torch.argsort(torch.argsort(rank, stable=True))
