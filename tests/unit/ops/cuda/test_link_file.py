"""What was measured of a link is kept for later processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pyg_direct.ops.cuda.cache_file import cache_file
from pyg_direct.ops.cuda.link_file import NAME, read_link, write_link
from pyg_direct.tools.doctor.bandwidth import HostBandwidth, Rate


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_each_gpu_has_an_entry() -> None:
    assert read_link("a") is None
    assert write_link("a", 100_000)
    assert write_link("b", 50_000)
    assert write_link("a", 90_000)
    assert (read_link("a"), read_link("b"), read_link("c")) == (90_000, 50_000, None)


@pytest.mark.parametrize("text", ["[1]", '{"a": "1"}', '{"a": 0}', '{"a": true}'])
def test_entries_of_another_kind_count_as_none(text: str) -> None:
    assert write_link("b", 1)
    cache_file(NAME).write_text(text)
    assert read_link("a") is None
    assert write_link("a", 5)
    assert read_link("a") == 5


def test_bytes_under_way_of_a_measurement() -> None:
    """512 threads with four words of 16 bytes were enough, though 1,024 were a little faster."""
    slow, fast, best = (Rate(n, 100, (s,)) for n, s in ((256, 2.0), (512, 1.0), (1024, 0.99)))
    speed = HostBandwidth((slow, fast, best), Rate(0, 100, (1.0,)), 0.03)
    assert speed.bytes_under_way == 512 * 4 * 16


def test_the_name_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from pyg_direct.ops.cuda import link_file as module

    device = torch.device("cuda", 0)
    properties = SimpleNamespace(name="GPU", uuid="1234")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    assert module.gpu_key(device) == "1234"
    del properties.uuid
    assert module.gpu_key(device) == "GPU"
