"""What a loader meets in a project: tables, ranks, compiled models, and PyG's other loaders."""

import threading
from typing import Any

import numpy as np
import pytest
import torch
from graphs import citations, example_graph, papers_and_authors
from torch.utils.data import WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler
from torch_geometric.data import Data
from torch_geometric.loader import CachedLoader, ImbalancedSampler, PrefetchLoader, ZipLoader
from torch_geometric.nn import GraphSAGE, PNAConv
from torch_geometric.testing import get_random_tensor_frame

from pyg_direct import LinkNeighborLoader, NeighborLoader

KEY = ("author", "writes", "paper")
CPU = torch.device("cpu")


def typed_nodes(**arguments: Any) -> NeighborLoader:
    arguments = {"input_nodes": "paper", "batch_size": 50, "seed": 0} | arguments
    return NeighborLoader(papers_and_authors(), [3, 2], **arguments)


def links(**arguments: Any) -> LinkNeighborLoader:
    arguments = {"batch_size": 400, "seed": 0, "neg_sampling": "binary"} | arguments
    return LinkNeighborLoader(citations(), [3, 2], **arguments)


def typed_links(**arguments: Any) -> LinkNeighborLoader:
    arguments = {"edge_label_index": KEY, "batch_size": 100, "seed": 0} | arguments
    return LinkNeighborLoader(papers_and_authors(), [3, 2], neg_sampling="triplet", **arguments)


KINDS = [typed_nodes, links, typed_links]
each_kind = pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)


def flat(batch: Any) -> dict[Any, Any]:
    """Return every value of a batch by (type, name)."""
    return {
        (store._key, name): value.tolist() if isinstance(value, torch.Tensor) else value
        for store in batch.stores
        for name, value in store.items()
    }


def epoch(loader: Any) -> list[dict[Any, Any]]:
    return [flat(batch) for batch in loader]


# Loaders around the loader ########################################################################


@each_kind
def test_cached_and_prefetch_loader(make: Any) -> None:
    torch.manual_seed(0)
    expected = epoch(make())
    torch.manual_seed(0)
    cached = CachedLoader(make(), device=CPU)
    assert epoch(cached) == expected
    assert epoch(cached) == expected, "from the cache: nothing is drawn anew"
    torch.manual_seed(0)
    assert epoch(PrefetchLoader(make(), device=CPU)) == expected


@pytest.mark.parametrize("filter_per_worker", [True, False])
def test_zip_loader_over_all_kinds(filter_per_worker: bool) -> None:
    loaders = [typed_nodes(), links(), typed_links()]
    zipped = ZipLoader(loaders, batch_size=90, filter_per_worker=filter_per_worker)
    assert len(zipped.dataset) == 200  # the shortest, the papers
    for nodes, pairs, triples in zipped:
        number = nodes["paper"].batch_size
        assert number == len(triples[KEY].input_id)
        assert pairs.edge_label_index.size(1) == 2 * number
        assert nodes["paper"].input_id.tolist() == triples[KEY].input_id.tolist()


@each_kind
def test_filter_per_worker_says_where_and_not_what(make: Any) -> None:
    def run(**arguments: Any) -> tuple[list[Any], set[bool]]:
        torch.manual_seed(0)
        mine: set[bool] = set()

        def note(batch: Any) -> Any:
            mine.add(threading.current_thread() is threading.main_thread())
            return batch

        return epoch(make(transform=note, num_workers=2, **arguments)), mine

    ahead, in_producers = run(filter_per_worker=True)
    here, in_consumer = run(filter_per_worker=False)
    assert ahead == here
    assert (in_producers, in_consumer) == ({False}, {True})


def test_imbalanced_sampler_of_types_and_links() -> None:
    label = (torch.arange(200) % 20 == 0).long()
    loader = typed_nodes(sampler=ImbalancedSampler(label), batch_size=200)
    (batch,) = loader
    assert 0.3 < float(label[batch["paper"].input_id].float().mean()) < 0.7
    weights = torch.zeros(500)
    weights[7] = 1
    (batch,) = typed_links(sampler=WeightedRandomSampler(weights, 30))
    assert batch[KEY].input_id.tolist() == [7] * 30


@pytest.mark.parametrize("cache", [False, True])
def test_inference_and_degrees_with_producers(cache: bool) -> None:
    """Both are for one node type, and for loaders of nodes."""
    data = citations()
    model = GraphSAGE(16, 8, num_layers=2, out_channels=4).eval()
    loader = NeighborLoader(data, [-1], batch_size=64, num_workers=2)
    with torch.no_grad():
        out = model.inference(loader, cache=cache)
        torch.testing.assert_close(out, model(data.x, data.edge_index))
    degree = torch.bincount(data.edge_index[1], minlength=300)
    histogram = PNAConv.get_degree_histogram(loader)
    # It counts every node of a batch, and those that are no seeds have no edges into them.
    assert torch.equal(histogram[1:], torch.bincount(degree)[1:])


# Ranks of a distributed run: no process group is needed to say which rank one is ##################


@pytest.mark.parametrize("num_workers", [0, 2])
def test_ranks_share_the_seeds(num_workers: int) -> None:
    data, ranks = citations(), range(3)
    order = [DistributedSampler(range(300), 3, rank, shuffle=True, seed=4) for rank in ranks]
    loaders = [
        NeighborLoader(data, [2], batch_size=32, sampler=sampler, num_workers=num_workers)
        for sampler in order
    ]
    epochs = []
    for number in range(2):
        for sampler in order:
            sampler.set_epoch(number)
        seeds = [[i for batch in loader for i in batch.input_id.tolist()] for loader in loaders]
        assert [len(part) for part in seeds] == [100, 100, 100]
        assert sorted(i for part in seeds for i in part) == list(range(300))
        epochs.append(seeds)
    assert epochs[0] != epochs[1], "set_epoch changes the order"
    for sampler in order:
        sampler.set_epoch(0)
    again = [[i for batch in loader for i in batch.input_id.tolist()] for loader in loaders]
    assert again == epochs[0]


def test_ranks_share_the_links() -> None:
    data = citations()
    count, seen = data.num_edges, []
    for rank in range(4):
        sampler = DistributedSampler(range(count), 4, rank, shuffle=False, drop_last=True)
        loader = LinkNeighborLoader(data, [2], batch_size=64, sampler=sampler)
        seen += [i for batch in loader for i in batch.input_id.tolist()]
    assert len(seen) == len(set(seen)) == count // 4 * 4


# Compiled models ##################################################################################


@pytest.mark.filterwarnings("ignore")  # dynamo's own
def test_batches_pass_through_a_compiled_model() -> None:
    """Shapes differ from batch to batch; the graph is traced by dynamo, code is not generated."""
    torch._dynamo.reset()
    data = citations()
    model = GraphSAGE(16, 8, num_layers=2, out_channels=4).eval()
    compiled = torch.compile(model, backend="eager", dynamic=True)
    with torch.no_grad():
        for batch in NeighborLoader(data, [4, 2], batch_size=128, seed=0):
            torch.testing.assert_close(
                compiled(batch.x, batch.edge_index), model(batch.x, batch.edge_index)
            )


# Tables as attributes #############################################################################


@pytest.fixture
def tables() -> Data:
    pytest.importorskip("torch_frame")
    data = example_graph()
    data.table, data.of_graph = get_random_tensor_frame(12), get_random_tensor_frame(1)
    data.edge_attr = get_random_tensor_frame(20)
    return data


def test_tensor_frames_around_links_and_types(tables: Data) -> None:
    for batch in LinkNeighborLoader(tables, [2], batch_size=5, neg_sampling="binary"):
        assert batch.table == tables.table[batch.n_id]
    data = papers_and_authors()
    data["author"].table = get_random_tensor_frame(120)
    for batch in NeighborLoader(data, [3, 3], input_nodes="paper", batch_size=50):
        assert batch["author"].table == data["author"].table[batch["author"].n_id]


# Attributes of other kinds, where there are types #################################################


def test_attributes_of_any_kind_with_types(tmp_path: Any) -> None:
    data = papers_and_authors()
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(120, 4))
    mapped[:] = np.arange(480).reshape(120, 4)
    author, written = data["author"], data[KEY]
    author.x, author.half = mapped, torch.rand(120, 2, 3).half()
    author.flag, author.wave = torch.rand(120) > 0.5, torch.randn(120, 2, dtype=torch.complex64)
    author.sparse, author.note = torch.eye(120).to_sparse(), {"any": "thing"}
    written.flag, written.edge_attr = torch.rand(500) > 0.5, torch.rand(500, 2, 2).double()
    data.year = 2020
    for batch in NeighborLoader(data, [3, 3], input_nodes="paper", batch_size=50, num_workers=1):
        n_id, e_id = batch["author"].n_id, batch[KEY].e_id
        assert torch.equal(batch["author"].x, torch.from_numpy(np.array(mapped))[n_id])
        for name in ("half", "flag", "wave"):
            assert batch["author"][name].dtype == author[name].dtype
            assert torch.equal(batch["author"][name], author[name][n_id])
        assert batch["author"].sparse.is_sparse
        assert torch.equal(batch["author"].sparse.to_dense(), torch.eye(120)[n_id])
        assert batch["author"].note is author.note
        assert torch.equal(batch[KEY].flag, written.flag[e_id])
        assert torch.equal(batch[KEY].edge_attr, written.edge_attr[e_id])
        assert batch.year == 2020


class Citations(Data):
    """A subclass with an attribute and a method of its own."""

    def mean_x(self) -> torch.Tensor:
        return self.x.mean()


def test_subclasses_of_data_around_links() -> None:
    data = Citations(**citations().to_dict())
    for batch in LinkNeighborLoader(data, [3], batch_size=500):
        assert type(batch) is Citations
        assert torch.equal(batch.mean_x(), data.x[batch.n_id].mean())
