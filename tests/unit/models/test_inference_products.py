"""Inference without messages: sums by heads, products that come before sums, counts, lists."""

import gc
import weakref

import pytest
import torch
from models import OUT, WIDTH, assert_close, basic, forward, graph_inputs
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GATv2Conv, GraphConv, GraphSAGE, SAGEConv, TransformerConv

from pyg_direct import inference
from pyg_direct.core.private_torch import storage_of
from pyg_direct.core.quantized import new_table
from pyg_direct.models.inference import blocks, executor
from pyg_direct.models.inference.executor import SharedRows
from pyg_direct.models.lazy.lists import Orders


@pytest.fixture
def summed(monkeypatch) -> list[torch.Size]:
    """Shapes of the tables whose rows are summed without messages, as that is done."""
    made: list[torch.Size] = []

    def noting(name, place):
        original = getattr(blocks, name)
        return lambda *given: (made.append(given[place].shape), original(*given))[1]

    monkeypatch.setattr(blocks, "sum_by_heads", noting("sum_by_heads", 2))
    monkeypatch.setattr(blocks, "aggregate", noting("aggregate", 1))
    return made


def check(model, inputs=None, **options):
    inputs = inputs or graph_inputs()
    found = inference(model, Data(**inputs), tuple(inputs), **options)
    assert_close(found, forward(model, inputs))


class One(nn.Module):
    def __init__(self, conv) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


BY_HEADS = {
    "GAT": lambda: GAT(WIDTH, 8, 2, OUT, heads=2),
    "no self-loops": lambda: GAT(WIDTH, 8, 2, OUT, heads=2, add_self_loops=False),
    "GATv2Conv": lambda: One(GATv2Conv(WIDTH, 5, heads=3)),
    "TransformerConv": lambda: One(TransformerConv(WIDTH, 5, heads=3)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", BY_HEADS)
def test_attention_writes_no_messages(kind, dtype, summed, monkeypatch) -> None:
    monkeypatch.setattr(executor, "BLOCK_BYTES", 4096)
    inputs = graph_inputs()
    inputs["x"] = inputs["x"].to(dtype)
    check(BY_HEADS[kind]().to(dtype), inputs, num_workers=2)
    assert {len(shape) for shape in summed} == {3}


def test_messages_to_a_hub_are_computed_part_by_part(summed, monkeypatch) -> None:
    inputs = graph_inputs()
    inputs["edge_index"][1] = 5
    monkeypatch.setattr(blocks, "HUB_BYTES", 1024)
    monkeypatch.setattr(executor, "BLOCK_BYTES", 1024)
    check(One(GATv2Conv(WIDTH, 5, heads=3, add_self_loops=False)), inputs)
    assert len(summed) < len(inputs["x"])


@pytest.mark.parametrize("aggr", ["mean", "sum"])
@pytest.mark.parametrize(("out", "width"), [(WIDTH // 2, WIDTH // 2), (2 * WIDTH, WIDTH)])
@pytest.mark.parametrize("kind", [SAGEConv, GraphConv])
def test_the_shorter_rows_are_summed(kind, out, width, aggr, summed) -> None:
    check(One(kind(WIDTH, out, aggr=aggr)))
    assert {shape[1] for shape in summed} == {width}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_of_any_dtype_with_fewer_columns(dtype) -> None:
    inputs = graph_inputs()
    model = basic(GraphSAGE)()
    found = inference(model, Data(**inputs), tuple(inputs), dtype=dtype)
    bound = 1e-5 if dtype == torch.float32 else 0.05
    assert torch.allclose(found, forward(model, inputs), atol=bound)


class Halved(nn.Module):
    """Means that are used twice, once divided by something else than their number."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.lin = GraphConv(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x, edge_index):
        sums = x.new_zeros(x.shape).index_add(0, edge_index[1], x[edge_index[0]])
        each = 1 + x.abs()
        return self.lin(sums / each) + self.lin(sums / 2) + self.lin(sums) + sums[:, :3]


def test_operations_that_do_not_commute_are_computed_as_written() -> None:
    check(Halved())


def reduced(h, e, reduce, include=True, base=0.0, factor=1.0):
    index = e[1].view(-1, 1).expand(-1, h.size(1))
    start = torch.full_like(h, base)
    return start.scatter_reduce(0, index, h[e[0]] * factor, reduce, include_self=include)


def counts(h, e, base, number):
    found = h.new_full((len(h),), base).index_add(0, e[1], h.new_full((e.size(1),), number))
    return h / (1 + found).view(-1, 1)


def written_between_reads(h):
    h = h * 1
    first = h.sin()
    h[0] = 3.0
    second = h.tanh()
    h[h > 0.5] = 1.0
    return h + first + second


def sums(x, e):
    return x.new_zeros(x.shape).index_add(0, e[1], x[e[0]])


BODIES = {
    "mean with the row": lambda net, x, e: reduced(x, e, "mean", base=2.0),
    "largest or zero": lambda net, x, e: reduced(x, e, "amax"),
    "mean of integers": lambda net, x, e: x + reduced((x * 9).long(), e, "mean", factor=1),
    "counts of twos": lambda net, x, e: counts(x, e, 0.0, 2.0),
    "counts onto ones": lambda net, x, e: counts(x, e, 1.0, 1.0),
    "twice": lambda net, x, e: x.index_add(0, e[1] % 9, x[e[0]] * 1, alpha=2),
    "from the end": lambda net, x, e: (x * 2)[torch.arange(len(x)) - len(x)],
    "dtype of a sum": lambda net, x, e: (x > 0).int().sum(0, dtype=torch.int32),
    "in place with more digits": lambda net, x, e: (x * 1).bfloat16().mul_(x + 1 / 3).double(),
    "part of a bias": lambda net, x, e: torch.addmm(
        net.bias, sums(x, e), net.weight, beta=0.5, alpha=2.0
    ),
    "sums onto ones": lambda net, x, e: x.new_ones(x.shape).index_add(
        0, e[1], x[e[0]]
    ) @ net.weight,
    "divided by column": lambda net, x, e: (sums(x, e) / x.exp().expand(-1, -1)) @ net.weight,
    "written between reads": lambda net, x, e: written_between_reads(x),
}  # fmt: skip


class Body(nn.Module):
    def __init__(self, body) -> None:
        super().__init__()
        self.body, self.bias = body, nn.Parameter(torch.linspace(0, 1, 3))
        self.weight = nn.Parameter(torch.linspace(-1, 1, 3 * WIDTH).view(WIDTH, 3))

    def forward(self, x, edge_index):
        return self.body(self, x, edge_index)


@pytest.mark.parametrize("name", BODIES)
def test_rare_arguments_of_operations(name, monkeypatch) -> None:
    monkeypatch.setattr(executor, "BLOCK_BYTES", 3000)
    inputs, model = graph_inputs(), Body(BODIES[name]).double()
    inputs["x"] = inputs["x"].double()
    with torch.no_grad():
        expected = model(**{k: v.clone() for k, v in inputs.items()})
    found = inference(model, Data(**inputs), tuple(inputs))
    torch.testing.assert_close(found, expected, check_stride=False)


def test_rows_that_are_not_there_are_refused() -> None:
    body = Body(lambda net, x, e: (x * 1)[torch.arange(len(x)) + 1])
    with pytest.raises(IndexError, match="index 60 is out of range for a dimension of size 60"):
        inference(body, Data(**graph_inputs()))


class Kept(nn.Module):
    """Keeps hidden rows, and writes to an argument of the edges."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((WIDTH,), 3.0))

    def forward(self, x, edge_index, edge_weight):
        edge_weight.mul_(2)
        self.hidden = x * self.scale
        return self.hidden.tanh() * edge_weight.sum()


def test_kept_and_written_tensors_are_those_of_the_forward() -> None:
    model, inputs = Kept(), graph_inputs("edge_weight")
    expected, weight = inputs["x"] * 3.0, inputs["edge_weight"].clone()
    inference(model, Data(**inputs), tuple(inputs))
    nn.init.zeros_(model.scale)
    torch.testing.assert_close(model.hidden.clone() + 0, expected)
    assert torch.equal(inputs["edge_weight"], weight)


class Turned(nn.Module):
    """Layers between which the edges change in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(WIDTH, WIDTH), SAGEConv(WIDTH, OUT)

    def forward(self, x, edge_index):
        edge_index = edge_index.clone()
        x = self.first(x, edge_index)
        edge_index.copy_(edge_index.flip(0).clone())
        return self.second(x, edge_index)


@pytest.mark.parametrize("write", [torch.Tensor.zero_, lambda i: i.add_(1)], ids=["zero", "add"])
def test_a_list_may_change_once_its_rows_are_computed(write) -> None:
    class Net(nn.Module):
        def forward(self, x, edge_index):
            index = edge_index[0] + 0
            rows = x[index]
            largest = rows.sort(0).values[-1]  # reads all rows at once
            write(index)
            return x.index_add(0, edge_index[1], rows) + largest

    data = Data(x=torch.randn(50, 4), edge_index=torch.randint(49, (2, 200)))
    wanted = Net()(data.x, data.edge_index)
    torch.testing.assert_close(inference(Net(), data, certify=False), wanted)


def test_edges_changed_in_place_give_the_output_of_the_forward() -> None:
    check(Turned())


def test_a_list_is_read_once_until_it_changes() -> None:
    lists, index = Orders(lambda held: None), torch.tensor([[3, 1, 2], [0, 0, 7]])
    first = lists.narrowed(index[0])
    assert lists.narrowed(index[0]) is first
    assert first.values.tolist() == [3, 1, 2]
    assert (first.low, first.high) == (1, 3)
    index[0, 1] = 9
    lists.forget(storage_of(index))
    assert lists.narrowed(index[0]).values.tolist() == [3, 9, 2]
    assert lists.narrowed(index[1]).values.tolist() == [0, 0, 7]
    assert lists.of(index[1], 8).indptr.tolist() == [0, 2, 2, 2, 2, 2, 2, 2, 3]
    assert lists.of(index[1], 9).indptr.tolist() == [0, 2, 2, 2, 2, 2, 2, 2, 3, 3]
    assert lists.narrowed(index.flatten()[::2]).values.tolist() == [3, 2, 0]
    with pytest.raises(IndexError, match="index 9 is out of range for a dimension of size 9"):
        lists.of(index[0], 9)


def test_lists_in_the_memory_of_numpy_are_read_each_time() -> None:
    array = torch.tensor([3, 1]).numpy().copy()
    held: list[torch.Tensor] = []
    lists, index = Orders(held.append), torch.from_numpy(array)
    first = lists.narrowed(index)
    assert first.high == 3
    assert lists.narrowed(index) is lists.narrowed(index[:]) is first
    array[0] = 8
    assert lists.narrowed(index).high == 8
    assert [part.tolist() for part in held] == [[3, 1], [8, 1]]


@pytest.mark.parametrize("in_numpy", [False, True])
def test_what_is_kept_of_edges_is_counted_once(in_numpy: bool) -> None:
    """Two lists, where the messages to each node begin, their order, and a list in that order."""
    torch.manual_seed(0)
    nodes, edges = 40, 3000
    edge_index = torch.randint(nodes, (2, edges))
    if in_numpy:
        edge_index = torch.from_numpy(edge_index.numpy().copy())
    held: list[torch.Tensor] = []
    lists = Orders(held.append)
    for _ in range(2):  # layers
        order = lists.of(edge_index[1], nodes)
        order.sorted(lists.narrowed(edge_index[0]).values)
    assert sum(part.nbytes for part in held) == 4 * 4 * edges + 8 * (nodes + 1)


@pytest.mark.parametrize("kind", [GAT, GraphSAGE])
def test_layers_are_freed_as_soon_as_nobody_reads_them(kind, monkeypatch) -> None:
    """And not when garbage is collected, as their memory is a part of `memory_bytes`."""
    nodes, prepare = [], blocks.BlockScatter.prepare

    def noted(node):
        prepare(node)
        nodes.append((weakref.ref(node), node.product is not None))

    monkeypatch.setattr(blocks.BlockScatter, "prepare", noted)
    gc.collect()
    gc.disable()
    try:
        inference(kind(WIDTH, 8, 3, 4), Data(**graph_inputs()), ("x", "edge_index"))
        assert any(is_product for _, is_product in nodes)
        assert not [node for ref, is_product in nodes if (node := ref()) is not None and is_product]
    finally:
        gc.enable()


def test_what_is_kept_of_edges_is_freed_when_the_outputs_are_there(monkeypatch) -> None:
    kept, count = [], executor.Budget.count

    def noted(self, tensor, what):
        kept.append((what, weakref.ref(tensor)))
        count(self, tensor, what)

    monkeypatch.setattr(executor.Budget, "count", noted)
    gc.collect()
    gc.disable()
    try:
        inference(GraphSAGE(WIDTH, 8, 3, 4), Data(**graph_inputs()), ("x", "edge_index"))
        lists = [ref for what, ref in kept if what == "the order of the edges"]
        assert lists
        assert not [ref for ref in lists if ref() is not None]
    finally:
        gc.enable()


def test_one_number_of_any_stride_is_stored(tmp_path) -> None:
    path = tmp_path / "table.npy"
    new_table((2, 1), torch.float32, path).zero_()
    table = SharedRows(path, torch.float32)
    table.write(1, torch.arange(16.0).view(2, 8)[:1, 3:4])
    assert table.table()[:].tolist() == [[0.0], [3.0]]
