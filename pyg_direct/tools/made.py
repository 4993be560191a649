"""The line that commands print about the graph that they wrote."""

from __future__ import annotations

from pathlib import Path

from ..core.units import size_text
from ..files.open import open_graph


def made(path: Path) -> str:
    """Return a line with the size of a saved graph, and how it is opened."""
    data = open_graph(path)
    num_bytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    kinds = [len(getattr(data, f"{what}_types", ())) for what in ("node", "edge")]
    types = f" of {kinds[0]} node and {kinds[1]} edge types" if kinds[0] else ""
    return (
        f"{path}: {data.num_nodes or 0:,} nodes, {data.num_edges:,} edges{types}, "
        f"{size_text(num_bytes)}; data = pyg_direct.open({str(path)!r})"
    )
