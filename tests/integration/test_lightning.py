"""Lightning's data modules build PyG's own loaders, and take our sampler."""

import importlib
import warnings

import pytest
import torch
import torch.distributed
from graphs import papers_and_authors
from torch.utils.data import DistributedSampler
from torch_geometric.data import Data

from pyg_direct import LinkNeighborLoader, NeighborLoader, NeighborSampler

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")


@pytest.fixture(scope="module")
def lightning():
    """Lightning, PyG's modules for it and models: an import that takes seconds."""
    with warnings.catch_warnings():  # the import of Lightning is not what is tested
        warnings.simplefilter("ignore")
        pytest.importorskip("pytorch_lightning")
        return importlib.import_module("lightning_models")


def graph():
    generator = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn(100, 4, generator=generator),
        edge_index=torch.randint(100, (2, 600), generator=generator),
    )
    data.train_mask = torch.arange(100) < 60
    data.val_mask = ~data.train_mask
    return data


@pytest.mark.pyg("with.lightning_node_data")
def test_node_data_with_other_fan_outs_for_evaluation(lightning):
    data = graph()
    module = lightning.LightningNodeData(
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


def test_node_data_with_types(lightning):
    data = papers_and_authors()
    module = lightning.LightningNodeData(
        data,
        input_train_nodes=("paper", data["paper"].train_mask),
        input_val_nodes="paper",
        loader="custom",
        node_sampler=NeighborSampler(data, [3, 2], seed=1),
        batch_size=50,
        num_workers=0,
    )
    train, val = list(module.train_dataloader()), list(module.val_dataloader())
    assert (len(train), len(val)) == (3, 4)
    for batch in train:
        assert bool(data["paper"].train_mask[batch["paper"].n_id[:50]].all())
        assert torch.equal(batch["author"].x, data["author"].x[batch["author"].n_id])


def test_link_data_with_types(lightning):
    data, key = papers_and_authors(), ("author", "writes", "paper")
    module = lightning.LightningLinkData(
        data,
        input_train_edges=(key, data[key].edge_index),
        loader="custom",
        link_sampler=NeighborSampler(data, [3]),
        neg_sampling="triplet",
        batch_size=100,
        num_workers=0,
    )
    batches = list(module.train_dataloader())
    assert len(batches) == 5
    for batch in batches:
        ends = data[key].edge_index[:, batch[key].input_id]
        assert torch.equal(batch["author"].n_id[batch["author"].src_index], ends[0])
        assert torch.equal(batch["paper"].n_id[batch["paper"].dst_pos_index], ends[1])


@pytest.mark.filterwarnings("ignore")  # Lightning's own
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_trainer_takes_our_loaders(lightning, num_workers):
    data = graph()
    data.y = torch.arange(100) % 2
    common = {"batch_size": 20, "num_workers": num_workers, "persistent_workers": num_workers > 0}
    train = NeighborLoader(data, [4, 4], input_nodes=data.train_mask, shuffle=True, **common)
    val = NeighborLoader(data, [-1, -1], input_nodes=data.val_mask, **common)
    model = lightning.Classifier()
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(model, train, val)
    seen = [i for batch in model.seen["train"] for i in batch]
    assert sorted(seen) == sorted([*range(60)] * 2)
    assert seen[:60] != seen[60:], "shuffled anew"
    assert [i for batch in model.seen["val"] for i in batch] == [*range(60, 100)] * 2


def loader_of(data, **options):
    arguments = {"input_nodes": data.train_mask, "batch_size": 20, "replace": True, **options}
    return NeighborLoader(data, [4, 4], **arguments)


@pytest.fixture
def ddp(lightning):
    """A trainer under DDP, which puts samplers of its own into loaders, also for one rank."""
    yield lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, strategy="ddp", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def labelled():
    data = graph()
    data.y = torch.arange(100) % 2
    return data


WAYS = (
    r"(?s)split_by_rank=True.*from pyg_direct import NeighborLoader.*train_dataloader"
    r".*DistributedSampler"
)


@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_a_loader_given_to_fit_under_ddp_says_what_to_write(lightning, ddp):
    data = labelled()
    with pytest.raises(TypeError, match=WAYS):
        ddp.fit(lightning.Classifier(), loader_of(data))


@pytest.mark.filterwarnings("ignore")
def test_a_loader_given_to_predict_says_what_to_write(lightning):
    trainer = lightning.Trainer(accelerator="cpu", devices=1, logger=False)
    module = lightning.Classifier()
    module.forward = module.predict_step = lambda batch: module.step(batch, "val")
    with pytest.raises(TypeError, match=WAYS):
        trainer.predict(module, loader_of(labelled()))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{}, {"sampler": DistributedSampler(range(60), 1, 0)}])
def test_each_way_under_ddp_that_the_error_names_covers_all_seeds(lightning, ddp, options):
    module = lightning.Module(loader_of, labelled(), **options)
    ddp.fit(module)
    assert sorted(i for batch in module.seen["train"] for i in batch) == [*range(60)]
    assert isinstance(ddp.train_dataloader.sampler, DistributedSampler)
    assert ddp.train_dataloader.node_sampler.replace


@pytest.mark.filterwarnings("ignore")
def test_a_split_loader_given_to_fit_under_ddp(lightning, ddp):
    """Lightning makes the process group after it was given the loaders."""
    data, module = labelled(), lightning.Classifier()
    train = loader_of(data, split_by_rank=True, seed=1, shuffle=True)
    val = NeighborLoader(data, [-1], input_nodes=data.val_mask, split_by_rank=True, tail="uneven")
    ddp.fit(module, train, val)
    expected = [batch.input_id.tolist() for batch in loader_of(data, seed=1, shuffle=True)]
    assert module.seen["train"] == expected
    assert ddp.train_dataloader is train
    assert sorted(i for batch in module.seen["val"][2:] for i in batch) == [*range(60, 100)]


@pytest.mark.parametrize("loader_class", [NeighborLoader, LinkNeighborLoader])
def test_a_loader_rebuilt_from_its_attributes(loader_class):
    """As the trainer does, to put in a sampler of its own for each rank."""
    data = graph()
    seeds = {"input_nodes": data.train_mask} if loader_class is NeighborLoader else {}
    loader = loader_class(data, [2], batch_size=20, seed=3, **seeds)
    kwargs = {"dataset": loader.dataset, "collate_fn": loader.collate_fn, "batch_size": 20}
    again = loader_class(loader.data, [2], seed=3, **seeds, **kwargs)
    for ours, theirs in zip(loader, again, strict=True):
        assert torch.equal(ours.e_id, theirs.e_id)


@pytest.mark.pyg("with.lightning_link_data")
def test_lightning_link_data_takes_a_sampler_and_labels_negatives(lightning):
    data = graph()
    module = lightning.LightningLinkData(
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
