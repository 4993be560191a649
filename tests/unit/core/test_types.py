"""Records that the package's rooms share: what cannot be one, and what tells two apart."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from pyg_direct.core.types import Csc
from pyg_direct.graph.from_pyg import graph_of


def csc() -> Csc:
    return graph_of(Data(edge_index=torch.tensor([[0, 1], [1, 1]]), num_nodes=2)).csc


@pytest.mark.parametrize("name", ["src_type", "dst_type", "edge_base"])
def test_a_csc_whose_relations_differ_in_number_is_refused(name: str) -> None:
    longer = np.append(getattr(csc(), name), getattr(csc(), name)[-1])
    with pytest.raises(ValueError, match=r"must agree in number, got [12] source types"):
        replace(csc(), **{name: longer})
