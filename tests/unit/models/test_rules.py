"""The rules for rows, on the samples of torch's own tests: blocks of rows against the whole."""

import itertools
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from pyg_direct.core.private_torch import is_pointwise
from pyg_direct.models.lazy import row_rules
from pyg_direct.models.lazy.calls import CallPlan
from pyg_direct.models.lazy.row_rules import RULES, NotRowwise, RowwiseRule
from pyg_direct.models.lazy.rules import keeps_rows, operator

aten = torch.ops.aten
DTYPES = (torch.float32, torch.int64, torch.complex64, torch.bool)
WARNINGS = pytest.mark.filterwarnings("ignore")  # those of torch's samples
MAX_ELEMENTS = 20_000  # of a sample's tensor


class Calls(TorchDispatchMode):
    """Collects the ATen calls that write to nothing."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not func._schema.is_mutable and func.namespace == "aten":
            self.found.append((func, *tree_map(copied, (args, kwargs))))
        return func(*args, **kwargs)


def copied(value):
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def tensors_in(value):
    return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]


def name_of(func):
    return func._schema.name.split("::")[1]


def calls_of(op, dtype, seen):
    """Return the calls with a rule in an operation's samples, those of forms not seen before."""
    found = []
    torch.manual_seed(0)
    for sample in itertools.islice(op.sample_inputs("cpu", dtype), 60):
        with Calls() as calls, torch.no_grad():
            try:
                op(sample.input, *sample.args, **sample.kwargs)
            except (RuntimeError, AssertionError, TypeError, ValueError, IndexError):
                continue  # samples of what this build of torch does not have
        for func, args, kwargs in calls.found:
            tensors = tensors_in((args, kwargs))
            others = [v for v in tree_leaves((args, kwargs)) if not isinstance(v, torch.Tensor)]
            form = func, tuple((t.dim(), t.dtype) for t in tensors), repr(others)[:80]
            plain = all(t.layout == torch.strided and t.numel() < MAX_ELEMENTS for t in tensors)
            if plain and form not in seen and has_rule(func):
                found.append((func, args, kwargs))
            seen.add(form)
    return found


def has_rule(func):
    return is_pointwise(func) or name_of(func) in RULES


def choices_of_rows(args, kwargs):
    """Yield {position of a tensor: dimension of its rows} for one table, or several."""
    tensors = tensors_in((args, kwargs))[:6]
    options = [[(i, d) for d in range(t.dim()) if t.size(d) > 1] for i, t in enumerate(tensors)]
    for each in itertools.islice(itertools.product(*[[None, *o] for o in options]), 1, 100):
        chosen = dict(c for c in each if c is not None)
        if len({tensors[i].size(d) for i, d in chosen.items()}) == 1:
            yield chosen


def compare(func, args, kwargs, chosen):
    """Compare two blocks of rows with the whole; return whether a rule applied."""
    tensors = tensors_in((args, kwargs))
    row_of = {id(tensors[i]): d for i, d in chosen.items()}
    if len({id(t) for t in tensors}) < len(tensors):
        return False
    apart = keeps_rows(func, args, kwargs, lambda t: (t.to("meta"), row_of.get(id(t))))
    if apart is None:
        return False
    first = apart.num_rows // 2
    parts = []
    plan = CallPlan(operator(func), apart, args, kwargs)
    for start, count in ((0, first), (first, apart.num_rows - first)):
        rows = []
        for position, place, dim in plan.tables:
            given = (args if isinstance(position, int) else kwargs)[position]
            rows.append((given if place is None else given[place]).narrow(dim, start, count))
        new_args, new_kwargs = plan.arguments(args, kwargs, rows, count)
        parts.append(tensors_in(plan.func(*new_args, *plan.more, **new_kwargs)))
    for i, expected in enumerate(tensors_in(func(*args, **kwargs))):
        if apart.rows[i] is None:
            continue
        torch.testing.assert_close(
            torch.cat([part[i] for part in parts], dim=apart.rows[i]), expected,
            equal_nan=True, rtol=1e-4, atol=1e-4, check_stride=False,
            msg=lambda m: f"{func} with rows {chosen}: {m}",
        )  # fmt: skip
    return True


def operations():
    """Return torch's own list, which takes seconds to import."""
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


def compare_samples(operations):
    """Return how often the rule of each operation applied."""
    applied, seen = Counter(), set()
    for op in operations:
        for dtype in DTYPES:
            for func, args, kwargs in (
                calls_of(op, dtype, seen) if op.supports_dtype(dtype, "cpu") else ()
            ):
                for chosen in choices_of_rows(args, kwargs):
                    applied[name_of(func)] += compare(func, args, kwargs, chosen)
    return applied


def row(*shape):
    return torch.arange(1.0, torch.Size(shape).numel() + 1).view(shape).sin()


STATISTICS = (row(3), row(3) ** 2)
TARGET = (row(4, 3) > 0).float()

# What no sample reaches, or only with other arguments.
OWN = [
    (aten.native_batch_norm.default, (row(4, 3), None, None, *STATISTICS, False, 0.1, 1e-5)),
    (aten.squeeze.default, (row(2, 1, 3, 1),)),
    (aten._trilinear.default, (row(4, 2), row(5, 2, 3), row(4, 3), [1, 3], [0], [1, 2], [2, 3])),
    (aten.stack.default, ([row(4, 3), row(4, 3), row(4, 3)], -2)),
    (aten.addmm.default, (row(4, 5), row(4, 3), row(3, 5))),
    (aten.addmm.default, (row(5), row(4, 3), row(3, 5))),
    (aten.view.dtype, (row(4, 3), torch.int32)),
    (aten.scatter.value, (row(4, 3), 1, torch.tensor([[0], [1], [2], [0]]), 1.0)),
    (aten.index.Tensor, (row(4, 3), [None, torch.tensor([2, 0])])),
    (aten._softmax_backward_data.default, (row(4, 3), row(3, 4).t().softmax(1), 1, torch.float32)),
    (aten._log_softmax_backward_data.default, (row(4, 3), -row(4, 3) ** 2, 1, torch.float32)),
    (aten.hardtanh_backward.default, (row(4, 3), 2 * row(3, 4).t(), -1.0, 1.0)),
    (aten.leaky_relu_backward.default, (row(4, 3), row(3, 4).t().clone(), 0.2, False)),
    (aten.log_sigmoid_backward.default, (row(4, 3), -row(4, 3), (-row(4, 3).abs()).exp())),
    (aten.rrelu_with_noise_backward.default,
     (row(4, 3), row(3, 4).t().clone(), row(4, 3) ** 2, 0.1, 0.3, False, False)),
    (aten.softplus_backward.default, (row(4, 3), 2 * row(3, 4).t(), 1.0, 1.5)),
    (aten.softshrink_backward.default, (row(4, 3), row(3, 4).t().clone(), 0.5)),
    (aten.select_backward.default, (row(4, 3), [4, 2, 3], 1, 1)),
    (aten.slice_backward.default, (row(4, 3), [4, 7], 1, 1, 7, 2)),
    (aten.diagonal_backward.default, (row(4, 2), [4, 3, 2], 0, 1, 2)),
    (aten.unfold_backward.default, (row(4, 3, 2), [4, 4], 1, 2, 1)),
    (aten.glu_backward.default, (row(4, 3), 2 * row(4, 6), 1)),
    (aten.elu_backward.default, (row(4, 3), 1.0, 1.5, 1.0, False, row(3, 4).t().clone())),
    *(
        (getattr(aten, f"{name}_backward").default, (row(4, 3), 3 * row(3, 4).t().clone(), *more))
        for name, more in {
            "hardsigmoid": (), "hardswish": (), "mish": (), "hardshrink": (0.5,),
            "_prelu_kernel": (row(1, 3),),
        }.items()
    ),
    *(
        (getattr(aten, f"{name}_backward").default, (row(4, 3), row(4, 3) ** 2, TARGET, *more))
        for name, more in {
            "mse_loss": (0,), "smooth_l1_loss": (0, 1.0), "huber_loss": (0, 1.0),
            "soft_margin_loss": (0,), "binary_cross_entropy": (None, 0),
        }.items()
    ),
    (aten._cdist_backward.default, (row(4, 5), row(4, 3), 2 * row(5, 3), 2.0, row(4, 5) ** 2 + 1)),
    (aten._neg_view.default, (row(4, 3),)),
]  # fmt: skip
ON_CUDA = {"cudnn_batch_norm", "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell", "_fused_rms_norm"}


@pytest.mark.parametrize(("func", "args"), OWN, ids=lambda v: str(v) if callable(v) else "")
def test_our_samples_of_operations_agree_with_their_rules(func, args):
    assert any([compare(func, args, {}, chosen) for chosen in choices_of_rows(args, {})])


@pytest.fixture
def cpu_seeds_alone(monkeypatch):
    """Seed the CPU's generator alone: torch seeds before each sample, all kinds of devices."""
    monkeypatch.setattr(torch, "manual_seed", torch.default_generator.manual_seed)


@WARNINGS
@pytest.mark.usefixtures("cpu_seeds_alone")
def test_a_part_of_the_samples():
    """Every 40th operation of torch's own list."""
    applied = compare_samples(operations()[::40])
    assert len(applied) > 10
    assert sum(applied.values()) > 300


ACTIVATIONS = "celu elu hardshrink hardsigmoid hardtanh leaky_relu mish selu softplus softshrink"


@pytest.mark.parametrize("name", [*ACTIVATIONS.split(), "threshold"])
def test_activations_untagged_in_torch_2_4_have_their_rule(name):
    table, numbers = row(6, 3), ((0.5, 0.1) if name == "threshold" else ())

    class Untagged:
        """The operation, as torch 2.4 has it."""

        tags = ()
        namespace = "aten"

        def __getattr__(self, attribute):
            return getattr(getattr(aten, name).default, attribute)

        def __call__(self, *args):
            return getattr(aten, name)(*args)

    assert compare(Untagged(), (table, *numbers), {}, {0: 0})


@pytest.mark.slow
@pytest.mark.timeout(600)
@WARNINGS
@pytest.mark.usefixtures("cpu_seeds_alone")
def test_all_samples_of_torch():
    applied = compare_samples(operations())
    own = {name_of(func) for func, _ in OWN}
    assert {n for n in RULES if not applied[n]} <= ON_CUDA | own | {"mkldnn_rnn_layer"}
    assert sum(applied.values()) > 10_000


def test_a_recurrent_layer_keeps_sequences_apart():
    lstm, x = torch.nn.LSTM(3, 4, bidirectional=True).eval(), row(2, 5, 3)
    with torch.no_grad(), Calls() as calls:
        lstm(x)
    (found,) = [c for c in calls.found if name_of(c[0]) == "mkldnn_rnn_layer"][:1]
    place = next(i for i, t in enumerate(tensors_in(found[1])) if t.shape == x.shape)
    assert compare(*found, {place: 1})


class TestWholeTables:
    """Calls in which rows do not stay apart."""

    @pytest.mark.parametrize(
        ("func", "args"),
        [
            (aten.sum.dim_IntList, (row(4, 3), [0])),
            (aten.sum.default, (row(4, 3),)),
            (aten._softmax.default, (row(4, 3), 0, False)),
            (aten.view.default, (row(4, 3), [3, 4])),
            (aten.view.default, (row(4, 3), [12])),
            (aten.cat.default, ([row(4, 3), row(4, 3)], 0)),
            (aten.addmv.default, (row(4), row(4, 3), row(3))),
            (aten.rand_like.default, (row(4, 3),)),
            (aten.index_select.default, (row(4, 3), 0, torch.tensor([1, 1, 2, 0]))),
            (aten.flip.default, (row(4, 3), [0])),
            (aten.native_batch_norm.default, (row(4, 3), None, None, None, None, True, 0.1, 1e-5)),
            (aten.bincount.default, (torch.arange(4),)),
        ],
    )
    def test_no_rule_applies(self, func, args):
        table = tensors_in(args)[0]
        seen = lambda t: (t.to("meta"), 0 if t is table else None)  # noqa: E731
        assert keeps_rows(func, args, {}, seen) is None

    def test_tables_of_several_numbers_of_rows(self):
        args = (row(4, 1), row(1, 3))
        seen = lambda t: (t.to("meta"), t.shape.index(max(t.shape)))  # noqa: E731
        assert keeps_rows(aten.add.Tensor, args, {}, seen) is None


WIDENED = {
    "_softmax": lambda call: RowwiseRule(call.only()[1]),
    "view": lambda call: RowwiseRule(0, sizes=(("size", 0),)),
    "transpose": lambda call: RowwiseRule(call.only()[1]),
    "cumsum": lambda call: RowwiseRule(call.only()[1]),
    "flip": lambda call: RowwiseRule(call.only()[1]),
    "index_select": lambda call: RowwiseRule(0),
    "gather": lambda call: RowwiseRule(next(iter(call.rows.values()))),
    "mm": lambda call: RowwiseRule(0),
    "expand": lambda call: RowwiseRule(call.only()[1] + len(call["size"]) - call["self"].dim()),
    "native_group_norm": lambda call: RowwiseRule(0),
}


@WARNINGS
@pytest.mark.parametrize("name", WIDENED)
def test_a_rule_that_is_too_wide_would_be_noticed(name, monkeypatch):
    """A planted fault: rows that mix, or other places, are taken for rows that stay apart."""
    monkeypatch.setitem(RULES, name, WIDENED[name])
    wanted = {"view": "reshape", "native_group_norm": "nn.functional.group_norm", "mm": "mm"}
    wanted = {"_softmax": "softmax", **wanted}.get(name, name)
    with pytest.raises((AssertionError, RuntimeError)):
        compare_samples(op for op in operations() if op.name == wanted)


def test_a_rule_that_is_missing_costs_no_number(monkeypatch):
    monkeypatch.delitem(RULES, "mm")
    args = (row(4, 3), row(3, 2))
    seen = lambda t: (t.to("meta"), 0 if t is args[0] else None)  # noqa: E731
    assert keeps_rows(aten.mm.default, args, {}, seen) is None
    with pytest.raises(NotRowwise):
        row_rules._reduced(row_rules.Call({"self": args[0], "dim": [0]}, seen))
