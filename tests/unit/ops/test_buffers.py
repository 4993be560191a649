"""Recycled memory is never memory that somebody can still see."""

import gc
import threading
import weakref

import pytest
import torch
from torch_geometric.data import Data

from pyg_direct import NeighborLoader
from pyg_direct.ops import buffers
from pyg_direct.ops.buffers import MIN_BYTES, BufferPool
from pyg_direct.ops.cpu.backend import CpuBackend

SIZE = 1 << 20


def tensor_of(pool, value=1.0):
    tensor = pool.empty((SIZE // 4,), torch.float32)
    tensor.fill_(value)
    return tensor


HOLDERS = {
    "tensor": lambda t: t,
    "view": lambda t: t[10:20],
    "reshaped": lambda t: t.view(2, -1)[1],
    "detached": lambda t: t.detach(),
    "numpy": lambda t: t[:8].numpy(),
    "storage": lambda t: t.untyped_storage(),
    "another dtype": lambda t: t.view(torch.int32)[:5],
    "dlpack": lambda t: torch.from_dlpack(t)[3:],
    "autograd": lambda t: (t[:4] * torch.ones(4, requires_grad=True)).sum(),
    "memoryview": lambda t: memoryview(t.numpy())[:16],
}


class Forgetful(BufferPool):
    """The fault to catch: takes a block back although its tensor is alive."""

    def empty(self, shape, dtype):
        tensor = super().empty(shape, dtype)
        self._idle.extend(lease.block for lease in self._leases.values())
        return tensor


def is_overwritten(pool, holder):
    """Hold a part of a tensor, let the tensor go, ask for more memory: is it the same memory?"""
    tensor = tensor_of(pool)
    address = tensor.data_ptr()
    kept = HOLDERS[holder](tensor)
    del tensor
    others = [tensor_of(pool, 2.0) for _ in range(4)]
    result = address in [other.data_ptr() for other in others]
    del kept
    return result


@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_that_somebody_can_see_is_not_used_again(holder):
    assert not is_overwritten(BufferPool(), holder)
    assert is_overwritten(Forgetful(), holder), "the check can fail"


@pytest.mark.parametrize("holder", HOLDERS)
def test_it_is_used_again_when_the_last_holder_is_gone(holder):
    pool = BufferPool()
    tensor = tensor_of(pool)
    address = tensor.data_ptr()
    kept = HOLDERS[holder](tensor)
    del tensor, kept
    gc.collect()
    assert pool.in_use_bytes == 0
    assert tensor_of(pool).data_ptr() == address


def test_a_block_is_used_again():
    pool = BufferPool()
    address = tensor_of(pool).data_ptr()
    assert [tensor_of(pool).data_ptr() for _ in range(5)] == [address] * 5


def test_each_tensor_has_a_storage_of_its_own_size(tmp_path):
    tensor = BufferPool().empty((3, 50_001), torch.int64)
    assert tensor.untyped_storage().nbytes() == tensor.nbytes
    torch.save(tensor, tmp_path / "saved.pt")
    assert (tmp_path / "saved.pt").stat().st_size < tensor.nbytes + 4096


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.uint8, torch.int16],
)
@pytest.mark.parametrize("shape", [(MIN_BYTES,), (0,), (3, 0, 2), (), (70_000, 2), (5,)])
def test_shapes_and_dtypes(shape, dtype):
    tensor = BufferPool().empty(shape, dtype)
    assert tensor.shape == shape
    assert tensor.dtype == dtype
    assert tensor.is_contiguous()


def test_idle_memory_is_bounded_by_what_was_in_use():
    pool = BufferPool()
    kept = [tensor_of(pool) for _ in range(8)]
    peak = pool.in_use_bytes
    del kept
    gc.collect()
    for size in range(1, 40):  # sizes that fit no block
        del [pool.empty((size * 100_000,), torch.uint8)][:]
        assert pool.idle_bytes <= max(peak, size * 112_500)


def test_threads_never_share_a_block():
    pool, errors = BufferPool(), []

    def work(number):
        for _ in range(300):
            tensor = tensor_of(pool, float(number))
            if not bool((tensor == number).all()):
                errors.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    gc.collect()
    assert pool.in_use_bytes == 0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_that_are_kept_are_not_overwritten(num_workers):
    generator = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn(20_000, 16, generator=generator),
        y=torch.arange(20_000),
        edge_index=torch.randint(20_000, (2, 200_000), generator=generator),
    )
    loader = NeighborLoader(
        data, [10, 5], batch_size=500, seed=1, num_workers=num_workers, shuffle=True
    )
    kept = []
    for number, batch in enumerate(loader):
        if number % 3 == 0:
            part = batch.x[5:], batch.edge_index[1], batch.e_id, batch.n_id
            kept.append((part, [tensor.clone() for tensor in part]))
    assert all(batch_x.nbytes >= MIN_BYTES for (batch_x, *_), _ in kept)
    for part, copies in kept:
        for tensor, copy in zip(part, copies, strict=True):
            assert torch.equal(tensor, copy)


def test_a_dropped_batch_gives_its_memory_to_the_next():
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(20_000, (2, 200_000), generator=generator)
    data = Data(x=torch.randn(20_000, 16, generator=generator), edge_index=edge_index)
    loader = NeighborLoader(data, [10, 5], batch_size=500, seed=1)
    addresses = set()
    for batch in loader:
        addresses.add(batch.x.data_ptr())
        del batch
    assert len(addresses) <= 4, "40 batches in a few blocks"


def test_backends_share_one_pool_that_goes_with_the_last_of_them(monkeypatch):
    monkeypatch.setattr(buffers, "_pool", None)
    first, second = CpuBackend(), CpuBackend(threads=2)
    pool = weakref.ref(first._resources.pool)
    assert second._resources.pool is pool()
    assert (first.threads, second.threads) == (1, 2)
    del first
    gc.collect()
    assert pool() is second._resources.pool
    del second
    gc.collect()
    assert pool() is None
    assert CpuBackend()._resources.pool.idle_bytes == 0


def test_the_smallest_block_that_is_not_much_too_large_is_used():
    """Blocks have room for an eighth more; one of twice the size is too large."""
    pool = BufferPool(idle_factor=2.0)
    sizes = [SIZE, 4 * SIZE, 2 * SIZE]
    held = [pool.empty((size,), torch.uint8) for size in sizes]
    places = {tensor.numel(): tensor.data_ptr() for tensor in held}
    held.clear()
    gc.collect()
    two = pool.empty((2 * SIZE - SIZE // 4,), torch.uint8)
    assert two.data_ptr() == places[2 * SIZE]
    one = pool.empty((SIZE,), torch.uint8)
    assert one.data_ptr() == places[SIZE]
    other = pool.empty((SIZE,), torch.uint8)  # only the largest is left
    assert other.data_ptr() not in places.values()


class Clock:
    """A clock that only moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_blocks_are_freed_with_their_tensors_while_the_loop_pauses_for_long(monkeypatch) -> None:
    clock = Clock()
    monkeypatch.setattr(buffers, "time", clock)
    pool = BufferPool()

    def batch(pause: float) -> list[torch.Tensor]:
        clock.now += pause
        return [pool.empty((1 << 21,), torch.float32) for _ in range(3)]  # 28 MB with their room

    def idle_after(pauses: list[float]) -> int:
        held: list[torch.Tensor] = []
        for pause in pauses:
            held = batch(pause)
        del held
        return pool.idle_bytes

    assert idle_after([0.0, 0.01, 0.01]) > 0  # 28 MB are touched in 7 ms: 20 times that is 140 ms
    assert idle_after([1.0, 1.0]) == 0
    assert pool.in_use_bytes == 0
    assert idle_after([0.01] * 30) > 0  # a fast loop again
    kept = batch(1.0)
    kept[0].fill_(7)
    batch(1.0)
    assert bool((kept[0] == 7).all())
    assert pool.in_use_bytes == 3 * kept[0].nbytes * 9 // 8
