"""Tensors on their way between a device and the host. With a GPU: `python -m tests.driver`."""

from __future__ import annotations

import torch

from pyg_direct.ops.staging import empty_for, lists_on, to_device, to_host

CPU = torch.device("cpu")


def test_nothing_is_copied_on_the_cpu() -> None:
    rows = torch.ones(3, 2, requires_grad=True)
    (there,) = to_host([rows])
    assert there.data_ptr() == rows.data_ptr()
    assert not there.requires_grad
    assert to_device(there, CPU) is there
    lists = [torch.arange(3), torch.arange(2)]
    assert lists_on(CPU, lists) is lists


def test_lists_go_to_a_device_by_one_copy() -> None:
    meta = torch.device("meta")
    first, none, last = lists_on(meta, [torch.arange(3), torch.arange(0), torch.arange(2)])
    assert [len(first), len(none), len(last)] == [3, 0, 2]
    assert first.device == meta
    assert first.untyped_storage()._cdata == last.untyped_storage()._cdata
    assert empty_for(meta, (4, 2), torch.float16).shape == (4, 2)
