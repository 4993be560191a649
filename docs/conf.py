"""The documentation: `python -m sphinx -W --keep-going docs docs/_build/html`."""

import importlib.util
import shutil
import sys
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
GENERATED = HERE / "_generated"  # copies of what lies elsewhere in the repository
sys.path[:0] = [str(ROOT), str(HERE)]

from rooms import draw_rooms  # noqa: E402

project = "pyg_direct"
author = "The pyg_direct developers"
copyright = author
release = metadata.version("pyg-direct")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_design",
]
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]
html_theme = "furo"
html_title = f"pyg_direct {release}"
pygments_style = "default"  # readable, and colours both kinds of lines of a diff, as the dark one
html_static_path = ["_static"]
html_css_files = ["page.css"]
templates_path: list[str] = []

# Single backticks in docstrings name code.
default_role = "code"
autodoc_typehints = "none"  # the text says what is meant; signatures of loaders are long enough
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 88
napoleon_use_rtype = False
# Needed by `pyg_direct.lightning` alone.
autodoc_mock_imports = [
    name for name in ("pytorch_lightning",) if importlib.util.find_spec(name) is None
]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
# Notebooks are committed with their outputs; a test runs them.
nb_execution_mode = "off"
suppress_warnings = ["mystnb.unknown_mime_type"]

# What is copied beside the pages, which may link to nothing else there.
COPIED = {"benchmarks/results": (".md", ".json", ".png"), "examples": (".ipynb",)}
# Links as they hold in the repository -> as they hold in the documentation.
MOVED = {
    "../../benchmarks/results/": "../_generated/results/",
    "../benchmarks/results/": "_generated/results/",
    "../../examples/": "../_generated/examples/",
    "../examples/": "_generated/examples/",
}


def collect(*_: object) -> None:
    """Copy notebooks and reports beside the pages, and draw the rooms."""
    shutil.rmtree(GENERATED, ignore_errors=True)
    for source, endings in COPIED.items():
        target = GENERATED / Path(source).name
        target.mkdir(parents=True)
        for path in sorted((ROOT / source).iterdir()):
            if path.suffix in endings:
                shutil.copy(path, target)
    (GENERATED / "rooms.svg").write_text(draw_rooms(ROOT))


def move_links(app: object, page: str, source: list[str]) -> None:
    """Let links into the repository lead to the copies."""
    if not page.startswith("_generated"):
        for old, new in MOVED.items():
            source[0] = source[0].replace(f"({old}", f"({new}")


def setup(app: object) -> None:
    """Connect the functions above."""
    app.connect("config-inited", collect)  # type: ignore[attr-defined]
    app.connect("source-read", move_links)  # type: ignore[attr-defined]
