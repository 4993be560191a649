"""`Placement`: what lies where."""

from pathlib import Path

import torch

from pyg_direct.ops import placement
from pyg_direct.ops.placement import ON_DEVICE, STAGED, Placement, Row


def test_the_guide_lists_every_place() -> None:
    page = Path(__file__).parents[3] / "docs" / "guides" / "gpu.md"
    text = page.read_text(encoding="utf-8")
    table = text.split("| `place` |")[1].split("\n\n")[0].splitlines()[2:]
    listed = {line.split("|")[1].strip() for line in table}
    names = ("ON_DEVICE", "REGISTERED", "PINNED_COPY", "STAGED")
    assert listed == {getattr(placement, name) for name in names}


def test_a_table_of_arrays() -> None:
    where = Placement(torch.device("cuda", 1), budget_bytes=2_000_000, reason="device= names it")
    where.add(Row("indptr", 1_500_000, ON_DEVICE))
    where.add(Row("data.x", 12, STAGED))
    assert str(where).splitlines() == [
        "batches on cuda:1 (device= names it), at most 2.0 MB of it",
        "  indptr        1.5 MB  GPU memory",
        "  data.x      12 bytes  host memory, selected by the CPU and copied for each batch",
    ]
