"""The documentation names everything that is public, and its picture shows every room."""

from __future__ import annotations

import importlib.util
import inspect
import re
import runpy
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


def test_no_attribute_of_the_api_page_has_a_sentence_for_a_type() -> None:
    """Sphinx takes what stands before a colon in the first line of an attribute for its type."""
    public = [getattr(pyg_direct, name) for name in pyg_direct.__all__]
    found = [
        (one.__name__, name)
        for one in public
        if inspect.isclass(one)
        for name, value in inspect.getmembers(one, lambda value: isinstance(value, property))
        if one.__module__.startswith("pyg_direct")
        if re.match(r"[^`\n]*\w:\s", (value.__doc__ or "").strip())
        if (value.fget.__module__ or "").startswith("pyg_direct")
    ]
    assert found == []


def test_the_api_page_begins_with_a_class_that_is_public() -> None:
    text = (ROOT / "docs" / "reference" / "api.md").read_text()
    assert (
        re.findall(r"^\.\. auto\w+:: (\S+)$", text, re.MULTILINE)[0] == "pyg_direct.NeighborLoader"
    )


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    """By the anchors of the documentation and of a code host, which differ for other characters."""
    lost, copied = [], runpy.run_path(str(ROOT / "docs" / "conf.py"))["COPIED"]
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = re.sub("```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", text):
            path, _, anchor = target.partition("#")
            there = page if not path else page.parent / path
            headings = there.suffix == ".md" and there.exists() and anchors(there)
            folder = str(there.parent.resolve().relative_to(ROOT))
            if "_generated" not in target and (
                not there.exists()
                or (anchor and headings is not False and anchor not in headings)
                or (page.parent != ROOT and there.suffix not in copied.get(folder, there.suffix))
            ):
                lost.append(f"{page.relative_to(ROOT)}: {target}")
    assert lost == []


def anchors(page: Path) -> set[str]:
    text = re.sub("```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = [re.sub("[`*]", "", line).lower() for line in re.findall("^#+ (.*)$", text, re.M)]
    on_a_host = {re.sub(r"[^\w\- ]", "", line).strip().replace(" ", "-") for line in headings}
    return on_a_host & {re.sub(r"[^a-z0-9_]+", "-", line).strip("-") for line in headings}


def test_every_guide_stands_in_one_group() -> None:
    text = (ROOT / "docs" / "index.md").read_text()
    listed = re.findall(r"^guides/(\w+)$", text, re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in (ROOT / "docs" / "guides").glob("*.md"))


def test_no_picture_takes_its_colours_from_the_system() -> None:
    """The page, and GitHub, have a switch of their own for light and dark."""
    for path in (ROOT / "docs" / "images").glob("*.svg"):
        assert "prefers-color-scheme" not in path.read_text(), path.name


def test_code_keeps_its_lines_on_a_phone() -> None:
    style = (ROOT / "docs" / "_static" / "page.css").read_text()
    assert "pre { white-space: pre; overflow-x: auto; }" in style
