"""The architecture, executable: who may import whom."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pyg_direct"

# Data flows down this table; a module may import what stands beside it and nothing else of ours.
MAY_IMPORT = {
    "types": set(),
    "config": set(),
    "arguments": set(),
    "pipeline": set(),
    "ops.numba_kernels": set(),
    "ops.parallel": set(),
    "ops.buffers": set(),
    "ops.sorting": {"types", "ops.numba_kernels", "ops.parallel"},
    "ops.weights": {"types", "ops.numba_kernels", "ops.parallel"},
    "ops.source": set(),
    "ops.streams": set(),
    "ops.errors": set(),
    "ops.host_memory": set(),
    "ops.pinning": {"ops.host_memory"},
    "ops.cuda_runtime": {"ops.pinning", "ops.host_memory"},
    "ops.placement": {"ops.pinning"},
    "ops.device_memory": set(),
    "ops.forecast": {"types"},
    "ops.compile": {
        "ops.source", "ops.streams", "ops.pinning", "ops.placement", "ops.cuda_runtime",
    },
    "ops": {"types", "ops.cpu", "ops.cuda", "ops.compile", "ops.placement", "ops.streams"},
    "ops.cpu": {
        "types", "ops.buffers", "ops.numba_kernels", "ops.parallel", "ops.placement", "ops.streams",
        "ops.errors",
    },
    "ops.cuda": {
        "types", "ops.compile", "ops.cuda_workspace", "ops.device_memory", "ops.placement",
        "ops.errors",
    },
    "ops.cuda_arrays": {"types", "ops.device_memory"},
    "ops.link": {"ops.cuda", "ops.device_memory"},
    "ops.cuda_emit": {"types", "ops.compile", "ops.cuda_arrays", "ops.device_memory"},
    "ops.cuda_workspace": {
        "types", "ops.compile", "ops.cuda_arrays", "ops.cuda_emit", "ops.forecast",
        "ops.device_memory",
        "ops.cuda",  # for its type
    },
    "rng": {"types", "ops.numba_kernels"},
    "attributes": {"ops.sorting"},
    "remote": {"ops.sorting"},
    "storage": {"types", "attributes", "remote", "ops.sorting", "ops.weights"},
    "negatives": {"types", "arguments", "rng"},
    "fanouts": set(),
    "sampler": {
        "types", "arguments", "config", "ops", "ops.placement", "rng", "storage", "negatives",
        "fanouts",
    },
    "seeds": {"arguments", "sampler"},
    "gather": {"ops"},
    "assemble": {"types", "gather", "ops"},
    "schedule": {"ops.streams"},
    "tensors": set(),
    "epoch": {
        "types", "rng", "ops.streams", "pipeline", "schedule", "tensors",
        "base",  # for its type
    },
    "base": {
        "types", "arguments", "config", "rng", "ops", "ops.parallel", "ops.placement", "sampler",
        "assemble", "epoch", "schedule", "tensors",
    },
    "loader": {"types", "arguments", "base", "sampler", "seeds", "assemble"},
    "link_loader": {
        "types", "arguments", "base", "sampler", "seeds", "negatives", "assemble",
    },
    "facts": {
        "config", "ops", "ops.compile", "ops.cuda", "ops.link", "ops.numba_kernels",
        "ops.placement", "ops.host_memory",
    },
    "info": {"config", "facts", "ops.link"},
    "__init__": {"loader", "link_loader", "sampler"},
}  # fmt: skip

PYG = {
    "storage",
    "attributes",
    "remote",
    "arguments",
    "negatives",
    "fanouts",
    "sampler",
    "seeds",
    "gather",
    "assemble",
    "base",
    "loader",
    "link_loader",
}
CUPY = {"ops.compile"}
NUMBA = {"ops.numba_kernels"}


def module_of(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    if parts[:2] == ("ops", "numba_kernels"):
        return "ops.numba_kernels"
    return ".".join(parts).removesuffix(".__init__") or "__init__"


def imports_of(path):
    """Return what a file imports, ours as names relative to the package."""
    package = ["pyg_direct", *path.relative_to(PACKAGE).parent.parts]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module.split(".") if node.module else [])])
            known = PACKAGE.parent / Path(*module.split("."))
            for alias in node.names:
                submodule = known.joinpath(alias.name)
                is_module = submodule.with_suffix(".py").exists() or submodule.is_dir()
                found.add(f"{module}.{alias.name}" if is_module else module)
    return found


def violations(path, imports, module):
    problems = []
    for name in sorted(imports):
        top = name.split(".")[0]
        if top == "pyg_direct":
            ours = name.removeprefix("pyg_direct").lstrip(".") or "__init__"
            if ours.startswith("ops.numba_kernels"):
                ours = "ops.numba_kernels"
            if ours != module and ours not in MAY_IMPORT[module]:
                problems.append(f"{module} imports {ours}")
        for owner, allowed in (("torch_geometric", PYG), ("cupy", CUPY), ("numba", NUMBA)):
            if top == owner and module not in allowed:
                problems.append(f"{module} imports {owner}")
    return problems


SOURCES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_table(path):
    module = module_of(path)
    assert module in MAY_IMPORT, f"{module} is not in the table: where does it belong?"
    assert violations(path, imports_of(path), module) == []


@pytest.mark.parametrize(
    ("module", "imports", "problem"),
    [
        ("pipeline", {"torch_geometric.data"}, "pipeline imports torch_geometric"),
        ("ops.cpu", {"pyg_direct.sampler"}, "ops.cpu imports sampler"),
        ("ops.cuda", {"cupy"}, "ops.cuda imports cupy"),
        ("sampler", {"numba"}, "sampler imports numba"),
        ("gather", {"pyg_direct.ops.cpu"}, "gather imports ops.cpu"),
    ],
)
def test_the_check_catches(module, imports, problem):
    assert violations(None, imports, module) == [problem]


def branches_on_device(path):
    """Return the lines with an `if` that asks for a kind of device."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.If, ast.IfExp, ast.While)):
            text = ast.unparse(node.test)
            if "device.type" in text or "'cuda'" in text or "Backend)" in text:
                found.append(f"{path.name}:{node.lineno}: {text}")
    return found


# Reading the setting is not a branch on it.
ABOVE_OPS = [path for path in SOURCES if "ops" not in path.parts and path.name != "config.py"]


@pytest.mark.parametrize("path", ABOVE_OPS, ids=lambda path: path.name)
def test_no_if_device_above_ops(path):
    assert branches_on_device(path) == []


def test_the_device_check_catches(tmp_path):
    planted = tmp_path / "planted.py"
    planted.write_text("if x.device.type == 'cuda':\n    pass\n")
    assert len(branches_on_device(planted)) == 1


def test_cuda_folder_is_no_package():
    """With an __init__.py it would hide NVIDIA's `cuda` namespace from the repository's root."""
    assert not list((ROOT / "cuda").rglob("__init__.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_functions_stay_small(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 420
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            docstring = node.body[0].end_lineno - node.body[0].lineno + 1
            has_docstring = ast.get_docstring(node) is not None
            signature = node.body[0].lineno - node.lineno
            length = node.end_lineno - node.lineno + 1 - signature
            assert length - (docstring if has_docstring else 0) <= 65, node.name


HEAVY = ("cupy", "matplotlib", "ogb", "tqdm")


def loaded_by(statement):
    program = (
        f"import sys, torch\n{statement}\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], torch.cuda.is_initialized())"
    )
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_import_is_light():
    """No CuPy, no CUDA context: in a fresh process, where nothing else has imported them."""
    before = loaded_by("import torch_geometric.loader")  # PyG itself imports tqdm
    assert loaded_by("import pyg_direct") == before
    assert "cupy" not in before


def test_the_import_check_catches(tmp_path):
    (tmp_path / "cupy.py").write_text("")
    assert "cupy" in loaded_by(f"sys.path.insert(0, {str(tmp_path)!r}); import cupy")
