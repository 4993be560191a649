"""`pyg_direct.swapped()`: installed code gets our loaders, and PyG is left as it was."""

import importlib
import sys
import threading
import types
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch_geometric.loader
import torch_geometric.nn
import torch_geometric.sampler
import torch_geometric.typing
from graphs import citations, example_graph, papers_and_authors
from torch_geometric.loader import neighbor_loader

import pyg_direct

# Every class of ours that PyG has under the same name, and where programs import it from.
CLASSES = {
    "NeighborLoader": ("loader", "loader.neighbor_loader"),
    "LinkNeighborLoader": ("loader", "loader.link_neighbor_loader"),
    "HGTLoader": ("loader", "loader.hgt_loader"),
    "ShaDowKHopSampler": ("loader", "loader.shadow"),
    "ClusterData": ("loader", "loader.cluster"),
    "ClusterLoader": ("loader", "loader.cluster"),
    "GraphSAINTSampler": ("loader", "loader.graph_saint"),
    "GraphSAINTNodeSampler": ("loader", "loader.graph_saint"),
    "GraphSAINTEdgeSampler": ("loader", "loader.graph_saint"),
    "GraphSAINTRandomWalkSampler": ("loader", "loader.graph_saint"),
    "NeighborSampler": ("sampler",),
    "HGTSampler": ("sampler",),
    "Node2Vec": ("nn", "nn.models", "nn.models.node2vec"),
}
PLACES = [
    (name, f"torch_geometric.{module}") for name, places in CLASSES.items() for module in places
]


def named(place: tuple[str, str]) -> Any:
    name, module = place
    return getattr(importlib.import_module(module), name)


@pytest.fixture
def installed(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that builds PyG's loaders in code of its own."""
    (tmp_path / "their_project.py").write_text(
        "import torch_geometric.loader\n"
        "from torch_geometric.loader import LinkNeighborLoader, NeighborLoader\n"
        "def nodes(data):\n"
        "    return NeighborLoader(data, [2], batch_size=5)\n"
        "def links(data):\n"
        "    return LinkNeighborLoader(data, [2], batch_size=5)\n"
        "def by_name(data):\n"
        "    return torch_geometric.loader.NeighborLoader(data, [2], batch_size=5)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("their_project", None)


def test_all_of_ours_that_pyg_has_are_in_the_list() -> None:
    """A class that is added to both gets a place here, and so in `swapped()`."""
    shared = {
        name
        for name in pyg_direct.__all__
        for package in (torch_geometric.loader, torch_geometric.sampler, torch_geometric.nn)
        if isinstance(getattr(package, name, None), type)
    }
    assert shared == set(CLASSES)


@pytest.mark.parametrize("place", PLACES)
def test_every_class_is_replaced_and_given_back(place: tuple[str, str]) -> None:
    before = named(place)
    with pyg_direct.swapped():
        assert named(place) is getattr(pyg_direct, place[0])
    assert named(place) is before
    assert before.__module__.startswith("torch_geometric.")


@pytest.mark.usefixtures("installed")
def test_installed_code_gets_our_loaders() -> None:
    before = [named(place) for place in PLACES]
    with pyg_direct.swapped():
        import their_project

        assert isinstance(their_project, types.ModuleType)
        loaders = [
            getattr(their_project, name)(example_graph()) for name in ("nodes", "links", "by_name")
        ]
    kinds = [pyg_direct.NeighborLoader, pyg_direct.LinkNeighborLoader, pyg_direct.NeighborLoader]
    assert [type(loader) for loader in loaders] == kinds
    assert [len(list(loader)) for loader in loaders] == [3, 4, 3], "they outlive the context"
    assert [named(place) for place in PLACES] == before


def test_the_deprecated_neighbor_sampler_of_the_loaders_stays() -> None:
    """`torch_geometric.loader.NeighborSampler` is another class than the sampler of that name."""
    before = torch_geometric.loader.NeighborSampler
    with pyg_direct.swapped():
        assert torch_geometric.loader.NeighborSampler is before


def test_nested_and_left_by_an_exception() -> None:
    before = [named(place) for place in PLACES]
    with pyg_direct.swapped():
        with pytest.raises(KeyError), pyg_direct.swapped():
            raise KeyError
        assert torch_geometric.loader.NeighborLoader is pyg_direct.NeighborLoader
    assert [named(place) for place in PLACES] == before


def test_contexts_of_two_threads_may_overlap() -> None:
    """The names come back with the last context, in whatever order they are left."""
    before = [named(place) for place in PLACES]
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with pyg_direct.swapped():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with pyg_direct.swapped():
        thread.start()
        inside.wait()
    assert torch_geometric.loader.NeighborLoader is pyg_direct.NeighborLoader
    leave.set()
    thread.join()
    assert [named(place) for place in PLACES] == before


def test_a_loader_put_there_by_others_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Theirs(torch_geometric.loader.NeighborLoader):
        pass

    monkeypatch.setattr(torch_geometric.loader, "NeighborLoader", Theirs)
    with pyg_direct.swapped():
        assert torch_geometric.loader.NeighborLoader is pyg_direct.NeighborLoader
    assert torch_geometric.loader.NeighborLoader is Theirs


def test_modules_of_pyg_that_are_imported_inside_do_not_keep_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = named(("NeighborLoader", "torch_geometric.loader"))
    module: Any = types.ModuleType("torch_geometric.imported_late")
    with pyg_direct.swapped():
        monkeypatch.setitem(sys.modules, module.__name__, module)
        module.NeighborLoader = torch_geometric.loader.NeighborLoader
    assert module.NeighborLoader is before


def test_parts_of_pyg_that_use_private_parts_of_the_sampler_keep_it() -> None:
    before = torch_geometric.sampler.NeighborSampler
    modules = ("sampler.neighbor_sampler", "distributed.dist_neighbor_sampler")
    places = [("NeighborSampler", f"torch_geometric.{module}") for module in modules]
    for place in places:
        named(place)  # imports the module, which PyG 2.6 does not by itself
    with pyg_direct.swapped():
        assert all(named(place) is before for place in places)


@pytest.mark.skipif(
    not (torch_geometric.typing.WITH_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE),
    reason="PyG's loader needs pyg-lib or torch-sparse",
)
def test_objects_of_pygs_classes_work_inside() -> None:
    parts = torch.arange(100) % 4
    data = citations()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = neighbor_loader.NeighborLoader(data, [-1], batch_size=500)
    gnn = torch_geometric.nn.GraphSAGE(16, 8, 1).eval()
    cluster_data = pyg_direct.ClusterData(
        example_graph(), 4, partition=parts[: example_graph().num_nodes], log=False
    )
    cluster_data.__class__ = torch_geometric.loader.ClusterData
    with pyg_direct.swapped():
        out = gnn.inference(loader)
        assert len(list(torch_geometric.loader.ClusterLoader(cluster_data))) == 4
    torch.testing.assert_close(out, gnn(data.x, data.edge_index))


@pytest.fixture
def datamodule() -> Any:
    pytest.importorskip("pytorch_lightning")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Lightning's import
        return importlib.import_module("torch_geometric.data.lightning.datamodule")


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
def test_a_data_module_of_lightning_gets_our_sampler_and_loaders(datamodule: Any) -> None:
    data, nodes = citations(), torch.arange(100)
    options: dict[str, Any] = {"num_neighbors": [3], "batch_size": 50, "num_workers": 1}
    options["eval_loader_kwargs"] = {"num_neighbors": [-1], "batch_size": 100}
    with pyg_direct.swapped():
        module = datamodule.LightningNodeData(data, nodes, input_val_nodes=nodes, **options)
        train, (val,) = module.train_dataloader(), module.val_dataloader()
    assert isinstance(module.graph_sampler, pyg_direct.NeighborSampler)
    assert isinstance(train, pyg_direct.NeighborLoader)
    assert len(train) == 2
    for batch in train:
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert int(torch.bincount(batch.edge_index[1]).max()) <= 3
    assert val.num_sampled_edges == [int((data.edge_index[1] < 100).sum())]
    assert datamodule.NeighborSampler is torch_geometric.sampler.NeighborSampler
    assert datamodule.NodeLoader is torch_geometric.loader.NodeLoader
    outside = module.train_dataloader()
    assert not isinstance(outside, pyg_direct.NeighborLoader), "PyG's loader, our sampler"


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
@pytest.mark.parametrize("loader", ["neighbor", "link_neighbor"])
def test_a_data_module_of_links_does_so_too(datamodule: Any, loader: str) -> None:
    data = citations()
    edges = data.edge_index[:, :40]
    with pyg_direct.swapped():
        module = datamodule.LightningLinkData(
            data, edges, loader=loader, num_neighbors=[2], batch_size=20, neg_sampling="binary"
        )
        train = module.train_dataloader()
    assert isinstance(train, pyg_direct.LinkNeighborLoader)
    for batch in train:
        assert batch.edge_label_index.shape == (2, 40)
    assert datamodule.LinkLoader is torch_geometric.loader.LinkLoader


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
def test_a_data_module_with_another_sampler_keeps_pygs_loaders(datamodule: Any) -> None:
    sampler = pyg_direct.HGTSampler(papers_and_authors(), [4])
    with pyg_direct.swapped():
        module = datamodule.LightningNodeData(
            papers_and_authors(), "paper", loader="custom", node_sampler=sampler, batch_size=50
        )
        assert type(module.train_dataloader()) is torch_geometric.loader.NodeLoader


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sparse ")  # CSR tensors, which RelBench takes, are in beta
def test_static_links_of_relbench_are_disjoint_where_its_module_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its loader asks for disjoint batches by a flag that says whether pyg-lib is there."""
    pytest.importorskip("relbench")
    data = papers_and_authors()
    edges = data["author", "writes", "paper"].edge_index
    authors, row = edges[0].unique(return_inverse=True)
    sizes, ones = (len(authors), data["paper"].num_nodes), torch.ones(len(row))
    right = torch.sparse_coo_tensor(
        torch.stack([row, edges[1]]), ones, sizes, check_invariants=True
    ).to_sparse_csr()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what RelBench imports
        with pyg_direct.swapped():
            module = importlib.reload(importlib.import_module("relbench.modeling.loader"))
    for flag in (False, True):
        monkeypatch.setattr(module, "WITH_PYG_LIB", flag)
        loader = module.LinkNeighborLoader(
            data, [4, 4], ("author", authors), ("paper", right),
            sizes[1], torch.zeros(len(authors), dtype=torch.int64), batch_size=10,
        )  # fmt: skip
        batches = next(iter(loader))
        for batch, kind in zip(batches, ("author", "paper", "paper"), strict=True):
            assert ("batch" in batch[kind]) is flag
            if flag:
                _check_disjoint(batch, kind)


def _check_disjoint(batch: Any, kind: str) -> None:
    """Each seed has a subgraph of its own: no edge leads from one to another."""
    assert batch[kind].batch[:10].tolist() == list(range(10))
    for (source, _, destination), store in zip(batch.edge_types, batch.edge_stores, strict=True):
        row, column = store.edge_index
        assert torch.equal(batch[source].batch[row], batch[destination].batch[column])


def test_isinstance_holds_in_both_directions() -> None:
    """`BasicGNN.inference` asserts the class by name: ours is a subclass of what it imported."""
    original = torch_geometric.loader.NeighborLoader
    with pyg_direct.swapped():
        loader = torch_geometric.loader.NeighborLoader(example_graph(), [2])
        assert isinstance(loader, torch_geometric.loader.NeighborLoader)
    assert isinstance(loader, original)
