"""Which rows of what a model returns are those of the seeds."""

import dataclasses
from collections import namedtuple

import torch

from pyg_direct.batch.edges import HopEnds, SampledEdges
from pyg_direct.models.training.batch_sizes import BatchSizes

EDGES = torch.tensor([[0, 1, 4], [0, 2, 3]])
Pair = namedtuple("Pair", "h score")


@dataclasses.dataclass
class Output:
    h: torch.Tensor
    name: str = "h"


def sizes(
    source: tuple[int, int], destination: tuple[int, int], key=("a", "to", "b")
) -> BatchSizes:
    return BatchSizes([(key, SampledEdges(EDGES, HopEnds(source, destination, (3,))))])


def test_types_with_as_many_nodes_are_told_apart_by_their_names() -> None:
    found = sizes((2, 5), (0, 5)).seeds_of({"a": torch.ones(5, 2), "b": torch.ones(5, 2)})
    assert {key: len(value) for key, value in found.items()} == {"a": 2, "b": 0}


def test_outputs_of_ambiguous_size_keep_all_rows() -> None:
    assert len(sizes((2, 5), (0, 5)).seeds_of(torch.ones(5, 2))) == 5
    assert len(sizes((2, 5), (0, 4)).seeds_of(torch.ones(6, 2))) == 6


def test_rows_of_seeds_are_cut_out_of_every_container() -> None:
    made = sizes((2, 5), (2, 5), None)
    rows = torch.ones(5, 2)
    assert len(made.seeds_of(rows)) == 2
    assert [len(t) for t in made.seeds_of([rows, (rows, rows[:3])])[1]] == [2, 3]
    pair = made.seeds_of(Pair(rows, torch.ones(())))
    assert (type(pair), len(pair.h), pair.score.dim()) == (Pair, 2, 0)
    assert len(made.seeds_of(Output(rows)).h) == 2
    assert made.seeds_of("text") == "text"
