"""A gradient that is zero outside of some rows stays so, whatever operation it goes through."""

# ruff: noqa: E501  (a table: some functions a line)

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from pyg_direct.models.lazy.batch_run import BatchRun
from pyg_direct.models.lazy.calls import Zero, zero_where
from pyg_direct.models.lazy.tensor import TableTensor, leave

ROWS, HELD, COLUMNS = 7, 2, 6
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(ROWS, COLUMNS, dtype=torch.float64, generator=GENERATOR)
Y = torch.rand(ROWS, COLUMNS, dtype=torch.float64, generator=GENERATOR) + 0.5
MASK, PLACES = X > 0.2, torch.tensor([4, 0, 0, 3])
INDEX = torch.randint(COLUMNS, (ROWS, 3), generator=GENERATOR)


def of(layer):
    return lambda h: layer.double()(h)


FUNCTIONS = {
    "log_softmax": lambda h: h.log_softmax(-1), "softmax": lambda h: h.softmax(1),
    "softmin": lambda h: functional.softmin(h, 1), "glu": lambda h: functional.glu(h, 1),
    **{
        name: getattr(functional, name)
        for name in ["relu", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus", "softsign", "softshrink", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "tanhshrink", "logsigmoid", "sigmoid", "tanh", "relu6"]
    },
    "prelu": of(nn.PReLU(COLUMNS)), "rrelu": lambda h: functional.rrelu(h, training=False),
    "layer norm": of(nn.LayerNorm(COLUMNS)), "group norm": of(nn.GroupNorm(2, COLUMNS)),
    "rms norm": of(nn.RMSNorm(COLUMNS)), "batch norm": of(nn.BatchNorm1d(COLUMNS).eval()),
    "normalize": lambda h: functional.normalize(h), "norm": lambda h: h / h.norm(dim=1, keepdim=True),
    "std": lambda h: h / h.std(1, keepdim=True), "cosine": lambda h: h * functional.cosine_similarity(h, Y).view(-1, 1),
    "logsumexp": lambda h: h - h.logsumexp(1, True), "where": lambda h: torch.where(MASK, h, Y),
    "where zero": lambda h: torch.where(h > 0, h, 0.0), "zero where": lambda h: torch.where(h > 0, 0.0, h),
    "clamp": lambda h: h.clamp(-0.5, 0.5), "clamp by a table": lambda h: h.clamp(-Y, Y),
    "maximum": lambda h: torch.maximum(h, Y), "minimum": lambda h: torch.minimum(Y, h),
    "power": lambda h: h.abs() ** Y, "xlogy": lambda h: torch.xlogy(h, Y), "lerp": lambda h: torch.lerp(h, Y, 0.3),
    "masked": lambda h: h.masked_fill(MASK, 2.0), "addcmul": lambda h: torch.addcmul(h, Y, h),
    "largest": lambda h: h.max(1, keepdim=True).values + h.amax(1, True), "median": lambda h: h.median(1, True).values * h,
    "sorted": lambda h: h.sort(1).values, "top": lambda h: h.topk(3, 1).values, "cumsum": lambda h: h.cumsum(1),
    "flip": lambda h: h.flip(1) + h.roll(2, 1), "gather": lambda h: h.gather(1, INDEX), "picked": lambda h: h[:, PLACES],
    "scattered": lambda h: torch.zeros_like(h).scatter(1, INDEX, h[:, :3]), "padded": lambda h: functional.pad(h, (1, 2)),
    "filled by places": lambda h: h.index_fill(1, PLACES, 1.0), "a vector": lambda h: h @ Y[0],
    "logits": lambda h: h * (h @ Y[0]).view(-1, 1).sigmoid(),
    "diagonal": lambda h: h.view(ROWS, 2, 3).diagonal(0, 1, 2), "windows": lambda h: h.unfold(1, 2, 2),
    "heads": lambda h: (h.view(ROWS, 2, 3) * Y.view(ROWS, 2, 3)).sum(-1).softmax(1), "repeat": lambda h: h.repeat(1, 2),
    "bilinear": lambda h: nn.Bilinear(COLUMNS, COLUMNS, 3).double()(h, Y),
    "convolution": lambda h: nn.Conv1d(2, 3, 2).double()(h.view(ROWS, 2, 3)),
    "cross": lambda h: torch.linalg.cross(h[:, :3], Y[:, 3:]), "batched": lambda h: torch.bmm(Y.view(ROWS, 2, 3), h.view(ROWS, 3, 2)),
    "unreduced": lambda h: functional.mse_loss(h, Y, reduction="none"), "fft": lambda h: torch.fft.fft(h).abs(),
    "complex": lambda h: torch.polar(h.abs(), Y).conj().real, "stack": lambda h: torch.stack([h, Y], 1).unbind(1)[0],
    "distances": lambda h: torch.cdist(h, Y[:3]), "einsum": lambda h: torch.einsum("nd,de->ne", h, Y[:6]),
    "part": lambda h: h.chunk(3, 1)[1] * 2, "parts": lambda h: (lambda a, b: a * b.sigmoid())(*h.chunk(2, 1)),
    "attention": lambda h: functional.scaled_dot_product_attention(*[h.view(ROWS, 2, 3)] * 3),
}  # fmt: skip


def gradients(function):
    """Return the step, its gradient of `h`, and that of plain tensors, of the first outputs."""
    found = []
    for ours in (True, False):
        run = BatchRun(torch.device("cpu"))
        x = X.clone().requires_grad_()
        h = (run.enter(x) if ours else x) * 1
        torch.manual_seed(0)
        out = function(h)
        rows = leave(out, HELD) if ours else out[:HELD]
        found.append(torch.autograd.grad(rows.sin().sum(), h)[0])
        if ours:
            step = run
    return step, *found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_gradient_of_some_rows_is_computed_on_these(name) -> None:
    step, found, expected = gradients(FUNCTIONS[name])
    whole = {"all rows": "aten.rrelu_with_noise.default"} if name == "rrelu" else {}
    assert step.forms.texts() == whole
    assert found.node.support.count == HELD
    torch.testing.assert_close(step.whole(found), expected)


def test_nonzero_gradients_are_not_taken_for_zero() -> None:
    for function in (lambda h: h.exp() + h, lambda h: h * h.sum()):
        step, found, expected = gradients(function)
        torch.testing.assert_close(step.whole(found), expected)
    with_numbers = {"value": 1.0, "other": 2}
    for name in ("add", "masked_fill", "constant_pad_nd", "scatter"):
        assert zero_where(name, {"self": X, **with_numbers}) is None
    assert zero_where("masked_fill", {"self": X, "mask": MASK, "value": torch.zeros(())}) is None
    assert zero_where("masked_fill", {"self": X, "mask": MASK, "value": 0}) == Zero(("self",))
    assert zero_where("div", {"self": X, "other": 2}) == Zero(("self",))
    assert zero_where("exp", {"self": X}) is None


# Their backward writes to parts of tensors, or takes logarithms.
UNKNOWN = {
    "logcumsumexp", "native_group_norm", "fft.hfft", "fft.hfft2", "fft.hfftn",
    "fft.irfft", "fft.irfft2", "fft.irfftn", "index_reduce",
}  # fmt: skip


def detached(value):
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def leaves(value, rows):
    """Return the tensors with a gradient and so many rows."""
    found = [t for t in tree_leaves(value) if isinstance(t, torch.Tensor) and t.dim() > 0]
    return [t for t in found if t.requires_grad and t.size(0) == rows and not t.is_complex()]


def gradient_of(op, sample, tables):
    """Return (step, gradient, expected) of a sample; None if rows do not stay apart in its forward.

    Args:
        op: of torch's own list.
        sample: of it.
        tables: whether its other tensors of as many rows are of the step, too.
    """
    x, run = sample.input, BatchRun(torch.device("cpu"))
    if not isinstance(x, torch.Tensor) or x.dim() == 0 or not HELD < x.size(0) < 4000:
        return None
    ours, theirs = (x.detach().clone().requires_grad_() for _ in range(2))
    h = run.enter(ours) * 1

    def entered(value):
        fits = tables and isinstance(value, torch.Tensor) and value.shape[:1] == x.shape[:1]
        return run.enter(value.detach()) if fits else detached(value)

    found = []
    for first, change in ((theirs, detached), (h, entered)):
        args, kwargs = tree_map(change, (sample.args, sample.kwargs))
        torch.manual_seed(0)
        try:
            found.append(leaves(op(first, *args, **kwargs), len(x)))
        except (RuntimeError, AssertionError, TypeError, ValueError, IndexError):
            return None
    apart = all(isinstance(t, TableTensor) and t.node.dim == 0 for t in found[1])
    if not found[0] or len(found[1]) != len(found[0]) or not apart or run.forms.whole_calls:
        return None
    weights = [torch.randn_like(t[:HELD]) for t in found[0]]
    rows = [t[:HELD] for t in found[0]], [leave(t, HELD) for t in found[1]]
    expected, gradient = (
        torch.autograd.grad(r, to, weights, allow_unused=True)[0]
        for r, to in zip(rows, (theirs, h), strict=True)
    )
    if not isinstance(gradient, TableTensor) or expected is None or expected[HELD:].any():
        return None
    return run, gradient, expected


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
def test_all_differentiable_operations_of_torch() -> None:
    from torch.testing._internal.common_methods_invocations import op_db

    compared: set[str] = set()
    for op in op_db:
        if not (op.supports_dtype(torch.float64, "cpu") and op.supports_autograd):
            continue
        torch.manual_seed(0)
        samples = op.sample_inputs("cpu", torch.float64, requires_grad=True)
        for sample, tables in itertools.product(itertools.islice(samples, 40), (False, True)):
            found = gradient_of(op, sample, tables)
            if found is None or (op.name == "index_select" and sample.args[0] == 0):
                continue
            run, gradient, expected = found
            torch.testing.assert_close(run.whole(gradient), expected, equal_nan=True)
            if op.name not in UNKNOWN:
                assert {**run.forms.whole_calls, **run.forms.gradients} == {}, op.name
                assert gradient.node.support is not None, op.name
                assert gradient.node.support.count <= HELD, op.name
            compared.add(op.name)
    assert len(compared) > 250
