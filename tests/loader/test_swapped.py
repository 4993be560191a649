"""`pyg_direct.swapped()`: installed code gets our loaders, and PyG is left as it was."""

import sys
import types
from collections.abc import Iterator

import pytest
import torch_geometric.loader
from graphs import example_graph

import pyg_direct

NAMES = ("NeighborLoader", "LinkNeighborLoader")


@pytest.fixture
def installed(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that builds PyG's loaders in code of its own."""
    (tmp_path / "their_project.py").write_text(
        "import torch_geometric.loader\n"
        "from torch_geometric.loader import LinkNeighborLoader, NeighborLoader\n"
        "def nodes(data):\n"
        "    return NeighborLoader(data, [2], batch_size=5)\n"
        "def links(data):\n"
        "    return LinkNeighborLoader(data, [2], batch_size=5)\n"
        "def by_name(data):\n"
        "    return torch_geometric.loader.NeighborLoader(data, [2], batch_size=5)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("their_project", None)


@pytest.mark.usefixtures("installed")
def test_installed_code_gets_our_loaders() -> None:
    before = [getattr(torch_geometric.loader, name) for name in NAMES]
    with pyg_direct.swapped():
        import their_project

        assert isinstance(their_project, types.ModuleType)
        loaders = [
            getattr(their_project, name)(example_graph()) for name in ("nodes", "links", "by_name")
        ]
    kinds = [pyg_direct.NeighborLoader, pyg_direct.LinkNeighborLoader, pyg_direct.NeighborLoader]
    assert [type(loader) for loader in loaders] == kinds
    assert [len(list(loader)) for loader in loaders] == [3, 4, 3], "they outlive the context"
    assert [getattr(torch_geometric.loader, name) for name in NAMES] == before


def test_nested_and_left_by_an_exception() -> None:
    before = [getattr(torch_geometric.loader, name) for name in NAMES]
    with pyg_direct.swapped():
        with pytest.raises(KeyError), pyg_direct.swapped():
            raise KeyError
        assert torch_geometric.loader.NeighborLoader is pyg_direct.NeighborLoader
    assert [getattr(torch_geometric.loader, name) for name in NAMES] == before


def test_isinstance_holds_in_both_directions() -> None:
    """`BasicGNN.inference` asserts the class by name: ours is a subclass of what it imported."""
    original = torch_geometric.loader.NeighborLoader
    with pyg_direct.swapped():
        loader = torch_geometric.loader.NeighborLoader(example_graph(), [2])
        assert isinstance(loader, torch_geometric.loader.NeighborLoader)
    assert isinstance(loader, original)
