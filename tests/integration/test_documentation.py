"""The documentation names everything that is public, and its picture shows every room."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pyg_direct

ROOT = Path(__file__).parents[2]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_lists_every_public_name() -> None:
    text = (ROOT / "docs" / "reference" / "api.md").read_text()
    listed = re.findall(r"^\.\. auto\w+:: pyg_direct\.(\w+)$", text, re.MULTILINE)
    assert sorted(listed) == sorted(pyg_direct.__all__)


def test_the_picture_shows_every_room() -> None:
    picture = load(ROOT / "docs" / "rooms.py").draw_rooms(ROOT)
    rooms = {path.parent.name for path in (ROOT / "pyg_direct").glob("*/__init__.py")}
    assert len(rooms) > 10
    for room in rooms:
        assert f">{room}</text>" in picture


def test_every_argument_of_the_loaders_is_explained() -> None:
    text = (ROOT / "docs" / "reference" / "arguments.md").read_text()
    for loader in (pyg_direct.NeighborLoader, pyg_direct.LinkNeighborLoader):
        for name in list(inspect.signature(loader.__init__).parameters)[2:]:
            assert name == "kwargs" or f"`{name}`" in text, name


def test_the_readme_has_one_test_command() -> None:
    """CI takes it from there."""
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^To run the tests:\n\n```bash\n(.*)\n```$", text, re.MULTILINE)
    assert blocks == ['pip install ".[test]" && python -m pytest -n auto']


def test_the_version_after_a_release_is_not_the_version_of_the_release() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    unreleased = text.partition("## [Unreleased]")[2].partition("\n## [")[0].strip()
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", text, re.MULTILINE)[0]
    found = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    if unreleased:
        number, development = found[1].split(".dev")
        assert tuple(map(int, number.split("."))) > tuple(map(int, released.split(".")))
        assert development.isdecimal()
    else:
        assert found[1] == released
    assert f"\nversion: {released}\n" in (ROOT / "CITATION.cff").read_text()
