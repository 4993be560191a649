"""Quantized features: what is stored, how far it is off, and that batches get float32."""

from __future__ import annotations

import copy
import errno
import os
import pickle
from typing import Any

import numba
import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import (
    GATConv,
    GCNConv,
    GraphSAGE,
    SAGEConv,
    TransformerConv,
)

import pyg_direct
from pyg_direct import NeighborLoader, QuantizedTensor, quantize
from pyg_direct.core.quantized import magnitudes, open_table
from pyg_direct.core.types import Table
from pyg_direct.kernels import decode
from pyg_direct.models.inference.executor import checksum_of
from pyg_direct.ops.cpu.backend import CpuBackend

KINDS: list[dict[str, Any]] = [
    {"dtype": torch.int8},
    {"dtype": torch.int8, "scale": "row"},
    {"dtype": torch.float16},
    {"dtype": torch.bfloat16},
]


def features(rows: int = 300, width: int = 33) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, width, generator=generator) * torch.logspace(-3, 3, width)
    x[:, 5] = 0
    x[7] = 0
    return x


@pytest.mark.parametrize("kind", KINDS)
def test_the_error_is_within_its_bound(kind: dict[str, Any]) -> None:
    x = features()
    stored = quantize(x, **kind)
    error = (stored.dense().double() - x.double()).abs()
    if kind["dtype"] == torch.int8:
        largest = x.abs().amax(dim=1 if "scale" in kind else 0, keepdim=True).double()
        assert bool((error <= largest / 254 * (1 + 2**-22)).all())
        assert bool((error.amax() > 0).all())
    else:
        relative, least = (2**-11, 2**-25) if kind["dtype"] == torch.float16 else (2**-8, 0)
        assert bool((error <= torch.clamp(x.abs().double() * relative, min=least)).all())
    assert stored.stored.dtype == kind["dtype"]
    assert stored.stored.nbytes < x.nbytes


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("kind", KINDS)
def test_batches_hold_the_decoded_rows(kind: dict[str, Any]) -> None:
    x = features()
    edges = torch.randint(300, (2, 2000), generator=torch.Generator().manual_seed(1))
    data = Data(x=quantize(x, **kind), edge_index=edges, edge_attr=torch.randn(2000, 3))
    data.edge_attr = quantize(data.edge_attr, **kind)
    plain = Data(x=data.x.dense(), edge_index=edges, edge_attr=data.edge_attr.dense())
    options: dict[str, Any] = {"num_neighbors": [3, 3], "batch_size": 50, "seed": 0}
    for ours, theirs in zip(
        NeighborLoader(data, **options), NeighborLoader(plain, **options), strict=True
    ):
        for name in ("x", "edge_attr"):
            assert type(ours[name]) is Tensor
            assert ours[name].dtype == torch.float32
            assert torch.equal(ours[name].cpu(), theirs[name].cpu())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_threads_share_a_gather(kind: dict[str, Any], threads: int, dtype: torch.dtype) -> None:
    stored = quantize(features(1000, 300), **kind)
    index = torch.randint(1000, (5000,), generator=torch.Generator().manual_seed(0))
    table = Table(stored.stored, dtype, stored.scale)
    (found,) = CpuBackend(threads).gather([table], index)
    assert torch.equal(found, stored.dense()[index].to(dtype))


@pytest.mark.parametrize("kind", KINDS)
def test_another_default_dtype_changes_nothing(
    kind: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    x, index = torch.randn(20, 3), torch.tensor([7, 0, 7])
    expected = quantize(x, **kind)
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    torch.set_default_dtype(torch.float64)
    found = quantize(x, **kind)
    assert torch.equal(found.stored, expected.stored)
    (rows,) = CpuBackend().gather([Table(found.stored, torch.float32, found.scale)], index)
    assert torch.equal(rows, expected.dense()[index])


def test_every_float16_is_decoded_as_by_torch() -> None:
    bits = torch.arange(1 << 16).to(torch.int16).view(256, 256)
    backend, everything = CpuBackend(), torch.arange(256)
    for dtype in (torch.float16, torch.bfloat16):
        table = bits.view(dtype)
        (found,) = backend.gather([Table(table, torch.float32)], everything)
        expected = table.float()
        assert torch.equal(found.isnan(), expected.isnan())
        same = found.view(torch.int32) == expected.view(torch.int32)
        assert bool((same | expected.isnan()).all())


def all_sizes() -> Tensor:
    """Return float32 numbers [256, n]: of every size, and around all halves of float16 and bf16."""
    spread = torch.arange(0, 1 << 32, 65521)
    half = torch.arange(1 << 16).to(torch.int16)
    wide = [half.view(dtype).float().view(torch.int32).long() for dtype in DTYPES]
    near = [bits + step for bits in wide for step in (-1, 0, 1, 1 << 12, (1 << 12) - 1, 1 << 15)]
    bits = torch.cat([spread[: len(spread) // 256 * 256], *near])
    return bits.to(torch.int32).view(torch.float32).view(256, -1)


DTYPES = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_are_rounded_as_by_torch(dtype: torch.dtype) -> None:
    x = all_sizes()
    rows = torch.arange(1)
    for scale in x:
        ones = torch.ones(1, len(scale), dtype=torch.int8)
        (found,) = CpuBackend().gather([Table(ones, dtype, scale)], rows)
        expected = scale.view(1, -1).to(dtype)
        assert torch.equal(found.isnan(), expected.isnan())
        same = found.view(torch.int16) == expected.view(torch.int16)
        assert bool((same | expected.isnan()).all())


def test_denormal_operands_may_be_flushed() -> None:
    """A process may have told its cores to take denormal float32 for 0."""
    table = torch.arange(1, 1024, dtype=torch.int16).view(torch.float16).view(1, -1)
    expected = torch.arange(1, 1024).double() * 2.0**-24
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormal numbers")
    try:
        (found,) = CpuBackend().gather([Table(table, torch.float32)], torch.tensor([0]))
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(found.double(), expected.view(1, -1))


def test_a_product_is_rounded_once() -> None:
    """No multiplication is fused with an addition: the code of the kernel has none."""
    compiled: Any = numba.njit(nogil=True, error_model="numpy")(decode.gather_decoded.py_func)
    stored = quantize(features())
    out = np.empty((1, 33), np.float32)
    factors = stored.scale.numpy() if stored.scale is not None else out[0]
    compiled(stored.stored.numpy(), factors, 0, np.zeros(1, np.int64), 0, 1, out)
    for code in compiled.inspect_llvm().values():
        assert "fmul" in code
        assert "fadd" not in code
        assert "llvm.fma" not in code
        assert "llvm.fmuladd" not in code
        assert "fmul fast" not in code
        assert "fmul contract" not in code


@pytest.mark.parametrize("dtype", [torch.float32, *DTYPES])
@pytest.mark.parametrize("bad", [-1, 300])
def test_ids_are_checked(bad: int, dtype: torch.dtype) -> None:
    """Also behind the rows that are rounded at once."""
    stored = quantize(features())
    table, index = Table(stored.stored, dtype, stored.scale), torch.zeros(500, dtype=torch.int64)
    for at in (1, 499):
        index[at] = bad
        with pytest.raises(IndexError, match=f"row {bad} of a tensor with 300 rows"):
            CpuBackend().gather([table], index)
        index[at] = 7


def test_it_is_an_ordinary_tensor_for_others() -> None:
    stored = quantize(features())
    dense = stored.dense()
    assert stored.shape == (300, 33)
    assert stored.dtype == torch.float32
    assert "QuantizedTensor(size=(300, 33), values=torch.int8)" in repr(stored)
    ids = torch.tensor([3, 1, 3])
    mask = torch.arange(300) % 7 == 0
    everything = (..., slice(None), (slice(None), slice(None)), slice(0, 999))
    for index in (ids, mask, slice(5, 50, 3), 4, (slice(None), 2), [1, 2], (ids, ids), *everything):
        assert torch.equal(stored[index], dense[index]), index
    assert torch.equal(stored.index_select(0, ids), dense[ids])
    assert torch.equal(stored.index_select(1, ids), dense[:, ids])
    assert torch.equal(stored @ torch.ones(33, 2), dense @ torch.ones(33, 2))
    assert torch.equal(torch.cat([stored, stored]), torch.cat([dense, dense]))
    assert np.array_equal(stored.numpy(), dense.numpy())
    back = pickle.loads(pickle.dumps(stored))
    assert isinstance(back, QuantizedTensor)
    assert torch.equal(back.stored, stored.stored)
    assert copy.deepcopy(stored).stored is not stored.stored


def test_selected_rows_alone_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = quantize(features())
    monkeypatch.setattr(QuantizedTensor, "dense", lambda self: pytest.fail("all were decoded"))
    assert len(stored[torch.tensor([1, 2])]) == 2
    assert len(stored[10:20]) == 10
    for dim in (0, -2):
        assert len(stored.index_select(dim, torch.tensor([1]))) == 1


def test_inference_takes_it() -> None:
    torch.manual_seed(0)
    data = Data(x=torch.randn(50, 4), edge_index=torch.randint(50, (2, 300)))
    model = GraphSAGE(4, 8, 2).eval()
    data.x = quantize(data.x)
    with torch.no_grad():
        expected = model(data.x.dense(), data.edge_index)
    assert torch.allclose(pyg_direct.inference(model, data), expected, atol=1e-5)


class OneConvolution(torch.nn.Module):
    def __init__(self, conv: torch.nn.Module) -> None:
        super().__init__()
        self.conv, self.head = conv, torch.nn.Linear(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return self.head(self.conv(x, edge_index))


@pytest.mark.parametrize("conv", [SAGEConv, GATConv, GCNConv, TransformerConv])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float16])
def test_inference_decodes_the_rows_of_a_block_alone(
    monkeypatch: pytest.MonkeyPatch, conv: Any, dtype: torch.dtype, each_backend: str
) -> None:
    torch.manual_seed(0)
    model = OneConvolution(conv(4, 8)).eval()
    data = Data(x=torch.randn(500, 4), edge_index=torch.randint(500, (2, 3000)))
    data.x = quantize(data.x, dtype)
    with torch.no_grad():
        expected = model(data.x.dense(), data.edge_index)
    dense = QuantizedTensor.dense

    def of_the_example(table: QuantizedTensor) -> torch.Tensor:
        assert len(table) < 500, "all rows were decoded"
        return dense(table)

    monkeypatch.setattr(QuantizedTensor, "dense", of_the_example)
    assert torch.allclose(
        pyg_direct.inference(model, data, inputs=("x", "edge_index")), expected, atol=1e-5
    )


def test_inference_goes_on_with_the_same_rows_only(tmp_path: Any) -> None:
    data = Data(x=quantize(torch.randn(50, 4)), edge_index=torch.randint(50, (2, 300)))
    first = checksum_of({"x": data.x})
    assert checksum_of({"x": quantize(data.x.dense() * 2)}) != first  # the scale alone differs
    assert checksum_of({"x": quantize(data.x.dense(), torch.float16)}) != first
    assert checksum_of({"x": data.x.clone()}) != first
    assert checksum_of({"x": QuantizedTensor(data.x.stored.clone(), data.x.scale)}) == first


def test_in_a_file(tmp_path: Any) -> None:
    x = features()
    for kind in KINDS:
        stored = quantize(x, **kind, out=tmp_path / f"{kind['dtype']}{len(kind)}.npy")
        assert torch.equal(stored.dense(), quantize(x, **kind).dense())
    array = np.load(tmp_path / "torch.float161.npy")
    assert np.array_equal(array, x.to(torch.float16).numpy())


def test_a_file_that_was_cut_off_stays_what_it_is(tmp_path: Any) -> None:
    quantize(features(), torch.float16, out=tmp_path / "x.npy")
    os.truncate(tmp_path / "x.npy", 1000)
    with pytest.raises(ValueError, match="mmap length is greater than file size"):
        open_table(tmp_path / "x.npy", torch.float16)
    assert (tmp_path / "x.npy").stat().st_size == 1000


def test_a_full_disk_leaves_no_file_and_missing_allocation_is_no_error(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is full leaves nothing; a file system that cannot is written to all the same."""

    def failing(code: int) -> None:
        def allocate(*_: Any) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "posix_fallocate", allocate, raising=False)

    failing(errno.ENOSPC)
    with pytest.raises(OSError, match="No space left on device; 9900 bytes are needed for"):
        quantize(features(), out=tmp_path / "x.npy")
    assert os.listdir(tmp_path) == []
    failing(errno.EOPNOTSUPP)
    assert torch.equal(
        quantize(features(), out=tmp_path / "x.npy").stored, quantize(features()).stored
    )


def test_steps_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    x = features()
    whole = [quantize(x, **kind) for kind in KINDS]
    monkeypatch.setattr(pyg_direct.core.quantized, "STEP_ELEMENTS", 100)
    for kind, one in zip(KINDS, whole, strict=True):
        assert torch.equal(quantize(x, **kind).stored, one.stored)
    assert torch.equal(quantize(x.numpy()).stored, whole[0].stored)
    assert quantize(x[:0]).shape == (0, 33)
    # A hundred times the least float32, whose 127th part is rounded: some elements are above it.
    assert quantize(torch.tensor([[2e-43], [-2e-43]])).stored.tolist() == [[127], [-127]]
    assert quantize(x[:, :0], scale="row").shape == (300, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": torch.zeros(3)}, r"floating-point of shape \[N, F\], got torch.float32 \[3\]"),
        ({"x": torch.zeros(3, 2, dtype=torch.int64)}, "torch.int64"),
        ({"x": [[1.0]]}, "list"),
        ({"dtype": torch.int16}, "dtype must be torch.int8, float16 or bfloat16"),
        ({"scale": "both"}, "scale must be one of 'column', 'row'"),
        ({"x": torch.tensor([[1.0], [float("nan")]])}, "Row 1 of x .* not finite"),
        ({"x": torch.tensor([[1.0], [float("inf")]])}, "Row 1 of x"),
        ({"x": torch.tensor([[1e5]]), "dtype": torch.float16}, "above 65504"),
    ],
)
def test_wrong_arguments_of_quantize_are_refused(
    arguments: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyg_direct.core.quantized, "STEP_ELEMENTS", 1)  # a row at a time
    with pytest.raises(ValueError, match=message):
        quantize(**{"x": torch.zeros(3, 2), **arguments})


def test_values_and_scales_that_do_not_fit_are_refused() -> None:
    values, scale = torch.zeros(3, 2, dtype=torch.int8), torch.ones(2)
    for parts, message in (
        ((values, None), "int8 needs a scale"),
        ((values.half(), scale), "nothing else has one"),
        ((values, torch.ones(3)), r"float32 of shape \[2\] or \[3, 1\]"),
        ((values, scale.double()), "float32"),
        ((values.float(), None), "int8, float16 or bfloat16"),
        ((values.t(), scale), "contiguous"),
    ):
        with pytest.raises(ValueError, match=message):
            QuantizedTensor(*parts)


def test_the_first_of_several_rows_that_are_not_finite_is_named() -> None:
    rows = torch.tensor([[1.0], [2.0], [float("nan")], [float("inf")]])
    with pytest.raises(ValueError, match="Row 7 of x"):
        magnitudes(rows, torch.int8, 5)


@pytest.mark.parametrize("scale", ["column", "row"])
def test_a_table_of_one_row_is_decoded_within_its_bound(scale: str) -> None:
    row = torch.tensor([[-3.0, 0.5, 200.0]])
    decoded = quantize(row, torch.int8, scale=scale).dense()
    assert torch.allclose(decoded, row, atol=200 / 254 if scale == "row" else 0, rtol=1e-6)
