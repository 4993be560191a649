"""Operations that write to arguments: what they return, and what the arguments hold then."""

import itertools

import pytest
import torch
from between import Net, reference, run
from both_runs import ENGINES, plain
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from pyg_direct import accelerate, inference
from pyg_direct.models.lazy import rules
from pyg_direct.models.training.costs import StepCosts

aten = torch.ops.aten


def row(*shape):
    return torch.arange(1.0, torch.Size(shape).numel() + 1).view(shape).sin()


@torch.library.custom_op("written_arguments::doubled", mutates_args=("count",))
def doubled(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    count.add_(1)
    return x * 2


@torch.library.custom_op("written_arguments::several", mutates_args=("x", "sums"))
def several(
    x: torch.Tensor, sums: torch.Tensor, rest: list[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    sums.copy_(x.sum(0))
    x.mul_(3)
    return x + rest[0], x.amax(1)


@torch.library.custom_op("written_arguments::nothing", mutates_args=("x",))
def nothing(x: torch.Tensor) -> None:
    x.add_(1)


def written(write):
    def call(x):
        write(x)
        return x, x * 1

    return call


def conjugated(x):
    y = x.cfloat() * (1 + 2j)
    out = torch.zeros_like(y)
    return y.conj() * y, torch.add(y.conj(), 1, out=out), out.copy_(y.conj().imag), y.imag


def copied_view(make):
    def call(x):
        y = make(x)
        y.add_(1)
        return x + 0, y

    return call


FUNCTIONS = {
    "rrelu": lambda x: functional.rrelu(x, training=False),
    "rrelu in place": lambda x: functional.rrelu(x, training=False, inplace=True),
    "drawn rrelu": lambda x: torch.rrelu(x, training=True),
    "noise of a table": lambda x: aten.rrelu_with_noise(x, x.sin(), 0.1, 0.3, False),
    "a number": lambda x: (lambda c: (doubled(x, c), c))(torch.zeros(())),
    "numbers": lambda x: (lambda c: (doubled(x, c), c))(torch.zeros(3)),
    "a table": lambda x: (lambda c: (doubled(x, c), c * 1))(torch.empty_like(x).zero_()),
    "a part of a table": lambda x: (doubled(x, x[1:]), x * 1),
    "one number of a table": lambda x: (doubled(x[:, :2].clone(), x[1, 1]), x * 1),
    "several": lambda x: (lambda s: (*several(x, s, [x.sin()]), s, x * 1))(torch.zeros(3)),
    "nothing": lambda x: (nothing(x), x.sin()),
    "two results": lambda x: torch.max(x, 1, out=(x.new_zeros(4), torch.zeros(4).long())),
    "two tables": lambda x: torch.sort(x, 1, out=(x * 0, torch.zeros_like(x).long())),
    "out of another shape": lambda x: torch.add(x, x, out=torch.empty(0)),
    "a table of another shape": lambda x: torch.sum(x, 1, out=(x * 0).resize_(0)),
    "lists": lambda x: (lambda y: (torch._foreach_add_([x, y], 1.0), x * 1, y * 1))(x * 2),
    "other order of arguments": lambda x: x.abs().add_(1).polygamma_(1),
    "transposed": written(lambda x: x.t_()),
    "exchanged": written(lambda x: x.transpose_(0, 1)),
    "one more dimension": written(lambda x: x.unsqueeze_(1)),
    "one less": written(lambda x: x.unsqueeze_(0).squeeze_()),
    "resized": written(lambda x: x.resize_(5, 2)),
    "summed to one number": lambda x: x * torch.einsum("ij,ij->", x, x).rsqrt(),
    "written to one number": lambda x: (x[1, 1].add_(5), x.view(-1)[4].mul_(2), x * 1),
    "conjugated": conjugated,
    "copy of a transposed": copied_view(lambda x: x.t().contiguous()),
    "copy of columns": copied_view(lambda x: x[:, :2].contiguous()),
    "no copy": copied_view(lambda x: x.view(2, 6).contiguous()),
    "by places in memory": copied_view(lambda x: x[:, 1:].as_strided((3, 2), (2, 1), 1)),
}  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_and_arguments_are_those_of_plain_tensors(name, engine) -> None:
    made = ENGINES[engine]()(row(4, 3))
    with torch.no_grad():
        torch.manual_seed(0)
        found = plain(FUNCTIONS[name](made))
        torch.manual_seed(0)
        expected = FUNCTIONS[name](row(4, 3))
    torch.testing.assert_close(found, type(found)(expected), check_stride=False)


@pytest.mark.parametrize("engine", ENGINES)
def test_memory_of_conjugated_numbers_is_not_written_to(engine) -> None:
    with pytest.raises(NotImplementedError, match="conjugated"):
        (ENGINES[engine]()(row(4, 3)) * 1j).conj().mul_(2)


BETWEEN = {
    "rrelu": lambda net, h: net.rrelu(h),
    "count": lambda net, h: doubled(h, net.steps),
    "empty": lambda net, h: doubled(h, torch.empty_like(h)),
    "one number": lambda net, h: h * torch.einsum("ij,ij->", h, h).rsqrt(),
    "read one": lambda net, h: h + h[3, 1] * h.select(1, 0)[2],
}


def counting(name):
    torch.manual_seed(0)
    model = Net(BETWEEN[name])
    model.rrelu = nn.RReLU()
    model.register_buffer("steps", torch.zeros(()))
    return model.eval()


@pytest.mark.parametrize("name", BETWEEN)
def test_operations_that_write_to_arguments_run_accelerated(
    name, loader, batch, monkeypatch
) -> None:
    monkeypatch.setattr(StepCosts, "pay", lambda *args: True)
    model, plain_model = counting(name), counting(name)
    fast = accelerate(model, loader, certify=False)
    trained = name not in ("count", "empty")  # whose custom operation has no backward
    with torch.set_grad_enabled(trained):
        found, expected = run(fast, batch), reference(plain_model, batch)
    assert fast.acceleration.reason == ""
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.steps, plain_model.steps)
    if trained:
        found.square().sum().backward()
        expected.square().sum().backward()
        for ours, theirs in zip(model.parameters(), plain_model.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", BETWEEN)
def test_inference_with_operations_that_write_to_arguments_is_right(name, loader) -> None:
    model, expected = counting(name), counting(name)
    data = loader.data
    found = inference(model, data)
    with torch.no_grad():
        torch.testing.assert_close(found, expected(data.x, data.edge_index), rtol=1e-4, atol=1e-4)
    assert torch.equal(model.steps, expected.steps)


class Writes(TorchDispatchMode):
    """Collects the calls that write to arguments."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.is_mutable:
            self.found.append((func, *tree_map(copied, (args, kwargs or {}))))
        return func(*args, **(kwargs or {}))


def copied(value):
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def tensors_in(value):
    return [v for v in tree_leaves(value) if isinstance(v, torch.Tensor)]


def writes_of(op, seen):
    """Yield the calls of forms not seen before in samples: as they are, in place, and with out=."""
    torch.manual_seed(0)
    for sample in itertools.islice(op.sample_inputs("cpu", torch.float32), 12):
        given = (sample.input, *sample.args), sample.kwargs
        for variant in (op, op.get_inplace(), with_out(op) if op.supports_out else None):
            with Writes() as writes, torch.no_grad():
                try:
                    variant(*tree_map(copied, given[0]), **given[1])
                except (RuntimeError, AssertionError, TypeError, ValueError, IndexError):
                    continue  # samples of what this build of torch does not have
            for func, args, kwargs in writes.found:
                tensors = tensors_in((args, kwargs))
                form = func, tuple((t.shape, t.dtype) for t in tensors)
                strided = all(t.layout == torch.strided and t.numel() < 2000 for t in tensors)
                if form not in seen and strided and func.namespace == "aten":
                    yield func, args, kwargs
                seen.add(form)


def with_out(op):
    def call(*args, **kwargs):
        made = tree_map(lambda v: torch.zeros_like(v), op(*args, **kwargs))
        return op(*args, **kwargs, out=tuple(made) if isinstance(made, tuple) else made)

    return call


def compare(engine, func, args, kwargs, which):
    """Compare a call with tables for some of its tensors with the call on plain tensors."""
    make, places = ENGINES[engine](), iter(which)

    def table(value):
        if not isinstance(value, torch.Tensor):
            return value
        wanted = next(places) and value.dim() > 0 and value.size(0) > 1
        return make(value) if wanted else value.clone()

    ours, theirs = tree_map(table, (args, kwargs)), tree_map(copied, (args, kwargs))
    found = []
    with torch.no_grad():
        for given in (theirs, ours):
            torch.manual_seed(0)
            out = func(*given[0], **given[1])
            found.append([t.clone() for t in map(plain, tensors_in((out, given)))])
    torch.testing.assert_close(
        found[1], found[0], equal_nan=True, rtol=1e-4, atol=1e-4, check_stride=False,
        msg=lambda m: f"{func} with tables {which}: {m}",
    )  # fmt: skip


def compare_samples(operations):
    """Compare the samples of operations; return which overloads they have."""
    seen, overloads = set(), set()
    for op in operations:
        for func, args, kwargs in (
            writes_of(op, seen) if op.supports_dtype(torch.float32, "cpu") else ()
        ):
            count = len(tensors_in((args, kwargs)))
            draws = func in (aten.bernoulli_.float, aten.bernoulli_.Tensor)  # drawn by rows
            for engine in list(ENGINES)[draws:]:
                compare(engine, func, args, kwargs, [True] * count)
                for only in range(count if count > 1 else 0):
                    compare(engine, func, args, kwargs, [i == only for i in range(count)])
            overloads.add(func)
    return overloads


def operations():
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
def test_all_samples_of_torch() -> None:
    assert len(compare_samples(operations())) > 400


def test_operations_that_write_to_nothing_have_the_same_arguments() -> None:
    assert rules.without_writing(aten.polygamma_.default) is None
    assert rules.without_writing(aten.pow_.Scalar) is aten.pow.Tensor_Scalar
    assert rules.without_writing(aten.add_.Tensor) is aten.add.Tensor
    assert rules.without_writing(aten.add.out) is None
