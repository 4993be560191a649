"""A training step and `inference` need all rows for the same operations, and give the same."""

import weakref

import pytest
import torch
from both_runs import ENGINES, plain
from torch.nn import functional

ROWS, COLUMNS = 12, 4
X = torch.linspace(-1, 2, ROWS * COLUMNS).view(ROWS, COLUMNS).sin()
LIST = torch.arange(ROWS).flip(0)
TARGET, SOURCE = LIST // 2, LIST
BY_ELEMENT = TARGET.view(-1, 1).expand(ROWS, COLUMNS)
EVEN = LIST % 2 == 0
FIRST_COLUMN = torch.zeros(ROWS, 2, dtype=torch.int64)
WEIGHT, PAIR = X[:COLUMNS].clone(), torch.tensor([0, 1])


def reduced(h, reduce):
    return h.new_zeros(ROWS, COLUMNS).scatter_reduce(
        0, BY_ELEMENT, h[SOURCE], reduce, include_self=False
    )


def written(h, place, value=0.0):
    h = h.clone()
    h[place] = value
    return h


BY_ROW = {
    "relu": lambda h: h.relu(),
    "plus a number": lambda h: h + 1,
    "where": lambda h: torch.where(h > 0, h, h * 0.1),
    "masked_fill": lambda h: h.masked_fill(h < 0, 0.0),
    "index_add": lambda h: h.new_zeros(ROWS, COLUMNS).index_add(0, TARGET, h[SOURCE]),
    "index_add of plain messages": lambda h: h.new_zeros(ROWS, COLUMNS).index_add(0, TARGET, X),
    "index_add onto rows": lambda h: h.index_add(0, TARGET, h[SOURCE]),
    "index_put that adds": lambda h: h.index_put((TARGET,), h[SOURCE], accumulate=True),
    "messages of a part of the rows": lambda h: h.new_zeros(ROWS, COLUMNS).index_add(
        0, TARGET[: ROWS - 1], h[1:]
    ),
    "messages of columns": lambda h: h.t().new_zeros(COLUMNS, ROWS).index_add(
        1, TARGET, h.t().index_select(1, SOURCE)
    ).t(),
    "messages by numbers of another dtype": lambda h: h.new_zeros(ROWS, COLUMNS).double().index_add(
        0, TARGET, h[SOURCE] * h[SOURCE][:, :1].double()
    ),
    "mean of messages": lambda h: reduced(h, "mean"),
    "largest message": lambda h: reduced(h, "amax"),
    "scatter_add_": lambda h: h.new_zeros(ROWS, COLUMNS).scatter_add_(0, BY_ELEMENT, h[SOURCE]),
    "degrees": lambda h: h.new_zeros(ROWS).scatter_add_(0, TARGET, h.new_ones(ROWS)).view(-1, 1),
    "zeros_like": lambda h: torch.zeros_like(h).copy_(h),
    "empty_like": lambda h: torch.empty_like(h).copy_(h),
    "new_empty": lambda h: h.new_empty(ROWS, COLUMNS).copy_(h),
    "ones_like": lambda h: torch.ones_like(h) * h,
    "full_like": lambda h: torch.full_like(h, 3) * h,
    "new_full": lambda h: h.new_full((ROWS, COLUMNS), 2.0) * h,
    "gather of rows": lambda h: h.gather(0, BY_ELEMENT),
    "gather of columns": lambda h: h.gather(1, FIRST_COLUMN),
    "scatter over columns": lambda h: h.scatter(1, FIRST_COLUMN, 0.0),
    "index_select": lambda h: h.index_select(0, LIST),
    "a list of rows": lambda h: h[LIST - ROWS],
    "the last row and another": lambda h: h[torch.tensor([-1, 2])],
    "a mask of rows": lambda h: h[EVEN],
    "embedding": lambda h: functional.embedding(LIST, h),
    "every second row": lambda h: h[1::2],
    "last rows": lambda h: h[3:],
    "split": lambda h: h.split([5, 7])[1],
    "chunk": lambda h: h.chunk(3)[1],
    "columns apart": lambda h: torch.stack(h.unbind(1), 1),
    "columns rolled": lambda h: h.roll(1, 1),
    "columns sorted": lambda h: h.sort(1).values,
    "largest columns": lambda h: h.topk(3, 1).values,
    "columns summed up": lambda h: h.cumsum(1),
    "columns padded": lambda h: functional.pad(h, (1, 0)),
    "normalised rows": lambda h: functional.normalize(h),
    "layer_norm": lambda h: functional.layer_norm(h, (COLUMNS,)),
    "batch_norm of evaluation": lambda h: functional.batch_norm(h, X[0], X[1].abs()),
    "softmax over columns": lambda h: h.softmax(1),
    "product with a matrix": lambda h: h @ WEIGHT,
    "heads": lambda h: h.view(ROWS, 2, 2).transpose(1, 2).reshape(ROWS, COLUMNS),
    "transposed twice": lambda h: h.t().contiguous().t(),
    "in place": lambda h: h.clone().mul_(2).add_(1),
    "converted": lambda h: h.double().float(),
}  # fmt: skip
OF_ALL_ROWS = {
    "minus their sum": lambda h: h - h.sum(0) / ROWS,
    "minus their mean": lambda h: h - h.mean(0),
    "by the largest": lambda h: h / h.abs().amax(),
    "any": lambda h: h * (h > 0).any(0),
    "by their norm": lambda h: h / h.norm(),
    "by their deviation": lambda h: h / h.std(0),
    "batch_norm of training": lambda h: functional.batch_norm(h, None, None, training=True),
    "softmax over rows": lambda h: h.softmax(0),
    "rows rolled": lambda h: h.roll(1, 0),
    "rows sorted": lambda h: h.sort(0).values,
    "rows summed up": lambda h: h.cumsum(0),
    "joined rows": lambda h: torch.cat([h[1:], h[:1]]),
    "repeated rows": lambda h: h.repeat(2, 1),
    "rows of another size": lambda h: h.reshape(-1, 2),
    "multiplied over rows": lambda h: h @ (h.t() @ h),
    "distances of all pairs": lambda h: torch.cdist(h, h[:5]),
    "distances from as many other rows": lambda h: torch.cdist(X, h),
    "elements by row": lambda h: h.gather(0, (BY_ELEMENT + torch.arange(COLUMNS)) % ROWS),
    "a row written to": lambda h: written(h, 0),
    "a column written to": lambda h: written(h, (slice(None), 0)),
    "index_put": lambda h: h.index_put((PAIR,), X[:2]),
    "index_copy": lambda h: h.index_copy(0, PAIR, X[:2]),
    "dropout": lambda h: functional.dropout(h, 0.5, training=True),
    "rand_like": lambda h: h + torch.rand_like(h),
    "normal_": lambda h: h + torch.empty_like(h).normal_(),
}  # fmt: skip
OPERATIONS = {**BY_ROW, **OF_ALL_ROWS}


def ran(engine, name):
    """Return what an operation gives, and the operations of torch that read all rows for it."""
    torch.manual_seed(3)
    h = ENGINES[engine]()(X)
    found = OPERATIONS[name](h)
    forms = h.run.forms
    return plain(found), {*forms.whole_calls, *forms.by_blocks}


@pytest.mark.parametrize("name", OPERATIONS)
def test_engines_read_all_rows_for_the_same_operations(name) -> None:
    (of_step, in_step), (of_inference, in_inference) = (ran(engine, name) for engine in ENGINES)
    assert in_step == in_inference
    assert bool(in_step) == (name in OF_ALL_ROWS)
    torch.manual_seed(3)
    expected = OPERATIONS[name](X)
    for found in (of_step, of_inference):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("join", [lambda *h: torch.cat(h, 1), lambda *h: h[0] + h[1]])
def test_an_operation_keeps_the_rows_of_a_tensor_but_not_the_tensor(engine, join) -> None:
    h = ENGINES[engine]()(X)
    relu = h.relu()
    gone = weakref.ref(relu)
    joined = join(relu, h)
    del relu
    assert gone() is None
    torch.testing.assert_close(plain(joined), join(X.relu(), X))
