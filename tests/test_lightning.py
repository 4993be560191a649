"""Lightning's data modules build PyG's own loaders, and take our sampler."""

import warnings

import pytest
import torch
from torch_geometric.data import Data

from pyg_direct import NeighborSampler

with warnings.catch_warnings():  # the import of Lightning is not what is tested
    warnings.simplefilter("ignore")
    pytest.importorskip("pytorch_lightning")
    from torch_geometric.data.lightning import LightningLinkData, LightningNodeData

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")


def graph():
    generator = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn(100, 4, generator=generator),
        edge_index=torch.randint(100, (2, 600), generator=generator),
    )
    data.train_mask = torch.arange(100) < 60
    data.val_mask = ~data.train_mask
    return data


def test_node_data_with_other_fan_outs_for_evaluation():
    data = graph()
    module = LightningNodeData(
        data,
        input_train_nodes=data.train_mask,
        input_val_nodes=data.val_mask,
        loader="custom",
        node_sampler=NeighborSampler(data, [2, 2], seed=1),
        batch_size=20,
        num_workers=0,
        eval_loader_kwargs={"num_neighbors": [-1], "batch_size": 40},
    )
    train, (val,) = list(module.train_dataloader()), list(module.val_dataloader())
    assert len(train) == 3
    for batch in train:
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert len(batch.num_sampled_edges) == 2
        assert bool(data.train_mask[batch.n_id[:20]].all())
    assert val.num_sampled_edges == [int((data.edge_index[1] >= 60).sum())]
    assert list(module.graph_sampler.num_neighbors.values) == [2, 2]


def test_link_data():
    data = graph()
    module = LightningLinkData(
        data,
        input_train_edges=data.edge_index,
        loader="custom",
        link_sampler=NeighborSampler(data, [3]),
        neg_sampling_ratio=1.0,
        batch_size=50,
        num_workers=0,
    )
    for batch in module.train_dataloader():
        assert batch.edge_label.tolist() == [1.0] * 50 + [0.0] * 50
        ends = batch.n_id[batch.edge_label_index[:, :50]]
        assert torch.equal(ends, data.edge_index[:, batch.input_id])
