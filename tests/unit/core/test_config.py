"""What the environment decides."""

from __future__ import annotations

import pytest
import torch

from pyg_direct.core.config import resolve_device


@pytest.mark.parametrize(("named", "device"), [("", None), (None, None), ("cpu", "cpu")])
def test_an_empty_device_is_none(
    named: str | None, device: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named is None:
        monkeypatch.delenv("PYG_DIRECT_DEVICE")
    else:
        monkeypatch.setenv("PYG_DIRECT_DEVICE", named)
    assert resolve_device(None) == (None if device is None else torch.device(device))
