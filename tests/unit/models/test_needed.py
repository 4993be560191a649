"""Values of a step: whichever rows are asked for, they are those of plain tensors."""

import pytest
import torch
from torch.nn import functional

from pyg_direct.models.lazy import lists as message_lists
from pyg_direct.models.lazy.batch_run import BatchRun
from pyg_direct.models.lazy.tensor import TableTensor, leave
from pyg_direct.models.lazy.values import Leaf, Rows, union

aten = torch.ops.aten
ROWS, HELD, COLUMNS = 10, 3, 4
X = torch.linspace(-1, 2, ROWS * COLUMNS, dtype=torch.float64).view(ROWS, COLUMNS)
INDEX = torch.tensor([0, 7, 2, 2, 9, 1, 0, 3, 3, 3, 1, 5])
SORTED = INDEX.sort().values
MASK = X > 0
ROW_MASK, SQUARE = MASK[:, :1], X[:COLUMNS].clone()


def scattered(values, index, reduce="sum", include_self=False):
    base = values.new_zeros(ROWS, values.size(1))
    index = index.view(-1, 1).expand_as(values)
    return base.scatter_reduce(0, index, values, reduce, include_self=include_self)


def by_head(x):
    return x.view(ROWS, 2, 2)


# g is a gradient: zero but in its first rows.
OPERATIONS = {
    "plus a number": lambda g, x: g + 1,
    "minus a number": lambda g, x: g - 1,
    "from a number": lambda g, x: 1 - g,
    "plus a row": lambda g, x: g + X[0],
    "plus a table": lambda g, x: g + x,
    "plus a table of another dtype": lambda g, x: g + x.float() + (x.float() + g),
    "plus twice a table": lambda g, x: torch.add(g, x, alpha=2),
    "plus itself": lambda g, x: g + g,
    "plus fewer rows": lambda g, x: g + g.neg().index_select(0, torch.arange(ROWS)) + x * g,
    "times a table": lambda g, x: x * g,
    "by a table": lambda g, x: g / (x + 3),
    "table by it": lambda g, x: x / (g + 3),
    "a row by it": lambda g, x: (X[0] / g).nan_to_num(7.0),
    "read twice": lambda g, x: (lambda h: h.neg() + h.exp())(x + 1),
    "filled": lambda g, x: g.masked_fill(MASK, 1.0),
    "filled with zero": lambda g, x: g.masked_fill(MASK, 0.0),
    "chosen": lambda g, x: torch.where(MASK, g, x),
    "power": lambda g, x: g.exp() + g.clamp(min=1) + g.pow(0),
    "joined": lambda g, x: torch.cat([g, x, X], 1),
    "stacked": lambda g, x: torch.stack([x, g]),
    "two of its rows": lambda g, x: g[1:3].neg(),
    "first rows": lambda g, x: g[:5] + x[2:7],
    "gathered": lambda g, x: g.index_select(0, INDEX) * x[INDEX],
    "summed up": lambda g, x: g.new_zeros(ROWS, COLUMNS).index_add(0, INDEX, g[INDEX]),
    "summed up twice": lambda g, x: x.index_add(0, INDEX, g[INDEX], alpha=2),
    "summed up by order": lambda g, x: scattered(x[SORTED], INDEX.flip(0)),
    "summed onto rows": lambda g, x: (x + 0).index_add(0, INDEX, x[INDEX]),
    "summed into more rows": lambda g, x: sum(
        x.new_zeros(rows, COLUMNS).index_add(0, INDEX, x[INDEX])[rows - ROWS :]
        for rows in (ROWS, ROWS + 2)
    ),
    "put": lambda g, x: x.new_zeros(ROWS, COLUMNS).index_put((INDEX,), g[INDEX], accumulate=True),
    "put onto rows": lambda g, x: (x + 0).index_put((SORTED,), x[INDEX], accumulate=True),
    "put from the end": lambda g, x: x.new_zeros(ROWS, COLUMNS).index_put(
        (INDEX - ROWS,), x[INDEX], accumulate=True
    ),
    "overwritten": lambda g, x: x.new_zeros(ROWS, COLUMNS).index_put((INDEX[:3],), x[4:7]),
    "expanded": lambda g, x: x[INDEX].expand(-1, COLUMNS) + x[INDEX][:, :1].expand(12, COLUMNS),
    "summed by column": lambda g, x: x.new_zeros(ROWS, COLUMNS).scatter_add(
        0, (INDEX.view(-1, 1) + torch.arange(COLUMNS)) % ROWS, x[INDEX]
    ),
    "summed by head": lambda g, x: (by_head(x)[INDEX] * by_head(x)[SORTED]).sum(2),
    "summed over heads": lambda g, x: (by_head(x)[INDEX] * by_head(x)[SORTED]).sum(1),
    "weighted": lambda g, x: scattered(x[INDEX] * X[INDEX, :1], SORTED),
    "weighted by a gradient": lambda g, x: scattered(g[INDEX][:, :1] * x[SORTED], INDEX),
    "largest": lambda g, x: scattered(x[INDEX], SORTED, "amax"),
    "largest of weighted": lambda g, x: scattered(x[INDEX] * X[INDEX, :1], SORTED, "amax"),
    "smallest of messages": lambda g, x: scattered(x[INDEX].sin(), INDEX, "amin"),
    "largest above zero": lambda g, x: scattered(x[INDEX], SORTED, "amax", include_self=True),
    "in two orders": lambda g, x: (lambda m: scattered(m, INDEX)[:4] + m[:4])(x[INDEX].sin()),
    "counted": lambda g, x: x.new_zeros(ROWS).scatter_add(0, INDEX, x.new_ones(len(INDEX))) * 2,
    "counted by twos": lambda g, x: x.new_zeros(ROWS).scatter_add(
        0, INDEX, x.new_full((len(INDEX),), 2.0)
    ),
    "gathered from the end": lambda g, x: x[INDEX - ROWS * (INDEX % 2)],
    "every second row": lambda g, x: x[::2] + g[1::2],
    "split": lambda g, x: x.split([4, 6])[1][:5] + g.split(5)[1],
    "second of several": lambda g, x: x.sort(1).indices + x.unbind(1)[2].view(-1, 1),
    "over columns": lambda g, x: g.sum(1, keepdim=True) + x.mean(1, keepdim=True),
    "over rows": lambda g, x: x - g.sum(0) + x.mean(0),
    "multiplied over rows": lambda g, x: x @ (g.t() @ x),
    "softmax": lambda g, x: g.softmax(1) + x.softmax(0),
    "backward of softmax": lambda g, x: aten._softmax_backward_data(g, x, 1, x.dtype),
    "backward of softmax over rows": lambda g, x: aten._softmax_backward_data(x, x, 0, x.dtype),
    "backward of log softmax": lambda g, x: aten._log_softmax_backward_data(g, x, 1, x.dtype),
    "backward of slice": lambda g, x: aten.slice_backward(g, [ROWS, 6], 1, 1, 5, 1),
    "backward of slice of rows": lambda g, x: aten.slice_backward(x, [14, COLUMNS], 0, 0, 10, 1),
    "backward of slice of later rows": lambda g, x: x + aten.slice_backward(
        x[:6], [ROWS, COLUMNS], 0, 4, ROWS, 1
    ),
    "backward of select": lambda g, x: aten.select_backward(g, [ROWS, COLUMNS, 3], 2, 1),
    "backward of leaky relu": lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False),
    "backward of softplus": lambda g, x: aten.softplus_backward(g, x, 1, 20),
    "backward of hard tanh": lambda g, x: aten.hardtanh_backward(g, x, -1, 1),
    "transposed": lambda g, x: g.t().contiguous().t() + x,
    "by a matrix and its transpose": lambda g, x: (x @ SQUARE) @ SQUARE.t(),
    "plus a part and all of a table": lambda g, x: x + X[:1] + X,
    "in place with more digits": lambda g, x: x.bfloat16().mul_(X + 1 / 3).double(),
    "drawn": lambda g, x: (x * 0).bernoulli_(0.5, generator=torch.Generator().manual_seed(3)),
    "in place": lambda g, x: (g * 2).add_(1).mul_(x).relu_(),
    "view": lambda g, x: (g + x).view(ROWS, 2, 2).transpose(1, 2).reshape(ROWS, COLUMNS),
    "one after the other": lambda g, x: ((x + 1).relu() - 1).neg().exp() / 3 * x,
}  # fmt: skip


@pytest.mark.parametrize("first", [0, 1, 2, 4, 9, ROWS])
@pytest.mark.parametrize("name", OPERATIONS)
def test_rows_are_those_of_plain_tensors(name, first) -> None:
    operation = OPERATIONS[name]
    gradient = torch.zeros_like(X)
    gradient[:HELD] = X[:HELD].cos()
    run = BatchRun(torch.device("cpu"))
    ours = operation(run.wrap(Leaf(gradient[:HELD].clone(), 0, ROWS)), run.enter(X.clone()))
    expected = operation(gradient, X)
    assert ours.shape == expected.shape
    first = min(first, len(expected))
    torch.testing.assert_close(run.rows_of(ours, first), expected[:first])
    torch.testing.assert_close(run.whole(ours), expected)


@pytest.mark.parametrize("options", [(-1, False), (3, False), (0, True)], ids=str)
def test_gradients_of_embeddings_are_those_of_all_rows(options) -> None:
    """Of which the first are not zero; ids that are counted are those of all rows."""
    run, gradient = BatchRun(torch.device("cpu")), torch.zeros_like(X)
    gradient[:HELD] = X[:HELD].cos()
    given = INDEX[:ROWS], ROWS, *options
    ours = aten.embedding_dense_backward(run.wrap(Leaf(X[:HELD].cos(), 0, ROWS)), *given)
    torch.testing.assert_close(ours, aten.embedding_dense_backward(gradient, *given))
    assert ("aten.embedding_dense_backward.default" in run.forms.whole_calls) == options[1]


def test_views_do_not_change_with_what_is_overwritten() -> None:
    run = BatchRun(torch.device("cpu"))
    x = run.enter(X.clone())
    h = x + 1
    view, after = h.view(ROWS, 2, 2), h.neg()
    rows, part = h[2:], (h * 1)[:6]
    del h
    for _ in range(2):
        torch.testing.assert_close(run.whole(view), (X + 1).view(ROWS, 2, 2))
        torch.testing.assert_close(run.whole(after), -(X + 1))
        torch.testing.assert_close(run.whole(rows), X[2:] + 1)
        torch.testing.assert_close(run.whole(part), X[:6] + 1)
    torch.testing.assert_close(run.whole(x), X)


def test_views_change_with_what_they_show() -> None:
    run = BatchRun(torch.device("cpu"))
    h = run.enter(X.clone()) + 1
    view = h.view(ROWS, 2, 2)
    h.mul_(3)
    torch.testing.assert_close(run.whole(view), ((X + 1) * 3).view(ROWS, 2, 2))


def test_messages_are_computed_again_in_another_order() -> None:
    run = BatchRun(torch.device("cpu"))
    messages = run.enter(X.clone())[INDEX].sin()
    summed = scattered(messages, INDEX, "amax")
    torch.testing.assert_close(run.rows_of(summed, 3), scattered(X[INDEX].sin(), INDEX, "amax")[:3])
    torch.testing.assert_close(run.rows_of(messages, 4), X[INDEX].sin()[:4])


def test_rows_in_two_orders_are_held_together_by_all_rows() -> None:
    order = message_lists.MessageOrder(torch.tensor([0, 0, 1, 3]), 4)
    assert order.position is None  # the messages are in it
    one, other, none = Rows(1, order), Rows(1), Rows(0)
    assert union(one, other, 4) == union(other, one, 4) == Rows(4)
    assert union(one, none, 4) == union(none, one, 4) == one
    assert union(one, Rows(3, order), 4) == Rows(3, order)
    assert union(one, None, 4) is None


def test_an_equal_list_gets_the_same_order() -> None:
    orders = message_lists.Orders(lambda held: None)
    order = orders.of(INDEX, ROWS)
    assert orders.of(INDEX.clone(), ROWS) is order
    assert orders.of(INDEX, ROWS + 1) is not order


def test_ids_that_are_out_of_range_are_refused() -> None:
    x = BatchRun(torch.device("cpu")).enter(X.clone())
    for wrong in (ROWS, -ROWS - 1):
        with pytest.raises(
            IndexError, match=f"{wrong} is out of range for a dimension of size {ROWS}"
        ):
            x.index_select(0, torch.tensor([1, wrong, 2]))


@pytest.mark.parametrize("wrong", [-1, ROWS])
def test_sums_into_rows_that_are_not_there_are_refused_as_by_torch(wrong: int) -> None:
    x, to = BatchRun(torch.device("cpu")).enter(X.clone()), torch.tensor([1, wrong, 2])
    with pytest.raises(RuntimeError, match=f"{wrong} is out of bounds .* with size {ROWS}"):
        x.new_zeros(ROWS, COLUMNS).index_add(0, to, x[:3])


@pytest.mark.parametrize(
    ("narrow", "wide"), [(torch.float32, torch.float64), (torch.bfloat16, torch.float32)]
)
def test_sums_of_rows_with_weights_of_another_dtype_are_those_of_torch(
    narrow: torch.dtype, wide: torch.dtype
) -> None:
    run, x = BatchRun(torch.device("cpu")), X.to(narrow)
    weights = torch.linspace(0.1, 1, len(INDEX), dtype=wide).view(-1, 1)
    found, expected = (
        h.new_zeros(ROWS, COLUMNS, dtype=wide).index_add(0, SORTED, h[INDEX] * weights)
        for h in (run.enter(x.clone()), x)
    )
    assert torch.equal(run.whole(found), expected)


@pytest.mark.parametrize("p", [0.3, 0.5])  # 0.5 is what torch leaves out of its calls
def test_dropout_differs_by_row_and_step(p) -> None:
    ones, drawn = torch.ones(3000, 8), []
    for _ in range(2):
        run = BatchRun(torch.device("cpu"))
        dropped = functional.dropout(run.enter(ones), p)
        noise = dropped.node.inputs[1].box()  # held, so that its rows are kept
        some = run.rows_of(dropped, 1500).clone()
        assert noise.have.count == 1500
        drawn.append(run.whole(dropped))
        assert torch.equal(drawn[-1][:1500], some)
        assert abs(float(drawn[-1].mean()) - 1) < 0.05
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0][:1024], drawn[0][1024:2048])


def test_rows_that_come_later_are_normalised_like_the_first() -> None:
    run = BatchRun(torch.device("cpu"), all_statistics=False)
    weight, bias, some = X[5], X[6], X[:4]
    normal = functional.batch_norm(run.enter(X.clone()), None, None, weight, bias, training=True)
    expected = (X - some.mean(0)) / (some.var(0, correction=0) + 1e-5).sqrt() * weight + bias
    torch.testing.assert_close(run.rows_of(normal, 4), expected[:4])
    torch.testing.assert_close(run.whole(normal), expected)


def test_rows_that_are_joined_to_rows_of_as_many_columns_are_computed_at_once() -> None:
    """Else the columns of what is joined would be taken for its rows."""
    x = torch.arange(36.0).view(6, 6)
    h = BatchRun(torch.device("cpu")).enter(x.clone())
    assert isinstance(torch.cat([h, h], 1), TableTensor)
    joined = torch.cat([h, h], 0)
    assert not isinstance(joined, TableTensor)
    assert torch.equal(joined, torch.cat([x, x], 0))


def test_a_tensor_does_not_grow_in_place() -> None:
    x = BatchRun(torch.device("cpu")).enter(X.clone())
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        x[:, :1].clone().add_(x)


@pytest.mark.parametrize("other", [X, X.flip(0)], ids=["lists", "rows"])
def test_gradients_of_weights_are_those_of_their_own(other) -> None:
    """The sums of x for one product are taken for the gradient of its weight, and of no other."""
    found = []
    for ours in (True, False):
        run, weights = BatchRun(torch.device("cpu")), torch.linspace(0, 1, 48).double()
        weights = weights.view(2, 6, COLUMNS).requires_grad_()
        first, second = (run.enter(t.clone()) if ours else t for t in (X, other))
        tables = [first, first if other is X else second]
        lists = INDEX, INDEX.flip(0) if other is X else INDEX
        to = SORTED.view(-1, 1).expand(-1, 6)  # as PyG scatters messages
        out = sum(
            x.new_zeros(ROWS, 6).scatter_add(0, to, (x @ weight.t()).index_select(0, sources))
            for x, weight, sources in zip(tables, weights.unbind(), lists, strict=True)
        )
        rows = leave(out, 4) if ours else out[:4]
        assert len(run.lists.deferred) == (2 if ours else 0)
        found.append(torch.autograd.grad(rows.sin().sum(), weights)[0])
    torch.testing.assert_close(*found)


def test_layers_that_pick_rows_by_brackets_run_on_the_needed_ones() -> None:
    found = []
    for ours in (True, False):
        run = BatchRun(torch.device("cpu"))
        weight = torch.linspace(0, 1, 24).double().view(6, COLUMNS).requires_grad_()
        x = run.enter(X.clone()) if ours else X
        bias = torch.ones(ROWS, 6).double().requires_grad_()
        h = x @ weight.t() + bias
        out = x.new_zeros(ROWS, 6).index_add(0, SORTED, h[INDEX])
        rows, kinds = leave(out, 4) if ours else out[:4], list[type]()
        bias.register_hook(lambda grad, kinds=kinds: kinds.append(type(grad)))
        found.append(torch.autograd.grad(rows.sin().sum(), [weight, bias])[0])
        assert run.forms.whole_calls == {}
        assert kinds == [torch.Tensor]
    torch.testing.assert_close(*found)


def test_rows_that_are_known_keep_their_numbers() -> None:
    """A maximum is compared with what it was taken of, also after more rows were asked for."""
    run = BatchRun(torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(300, 60, generator=generator), torch.randn(60, 7, generator=generator)
    h = run.enter(x) @ weight
    some = run.rows_of(h, 9).clone()
    made = h.node.with_known(torch.zeros(300, 7), Rows(300))  # however they are rounded
    assert torch.equal(made[:9], some)
    assert not made[9:].any()
    assert torch.equal(run.whole(h)[:9], some)


def test_plain_tensors_written_later_count_as_they_were() -> None:
    run, added = BatchRun(torch.device("cpu")), X.clone()
    h = run.enter(X) + added
    added.zero_()
    torch.testing.assert_close(run.whole(h), X + X)


def test_lists_written_later_count_as_they_were_or_are_an_error(monkeypatch) -> None:
    for copied in (0, 100):
        monkeypatch.setattr(message_lists, "COPIED_ENTRIES", copied)
        run, index = BatchRun(torch.device("cpu")), INDEX.clone()
        h = run.enter(X).index_select(0, index)
        index.zero_()
        if copied:
            torch.testing.assert_close(run.whole(h), X[INDEX])
        else:
            with pytest.raises(RuntimeError, match="modified in place after rows"):
                run.whole(h)


def test_rows_nobody_needs_are_not_computed_or_kept() -> None:
    run = BatchRun(torch.device("cpu"))
    h = run.enter(X).sin()
    made = functional.linear(h, torch.eye(COLUMNS, dtype=X.dtype))
    sine = h.node
    del h
    run.rows_of(made, 2)
    assert made.node.have.count == 2
    assert sine.have is None
