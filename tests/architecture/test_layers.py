"""The architecture as a test: which module may import which."""

import ast
import functools
import graphlib
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.weight import lines_of_code

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pyg_direct"

# A room is a folder of the package; the face is `__init__` and the shims beside it. Each may import
# what stands behind it and nothing else of ours; floors go from the bottom up, and no room imports
# upwards.
FLOORS: list[dict[str, set[str]]] = [
    {"core": set(), "kernels": set()},
    {"graph": {"core", "kernels"}, "ops": {"core", "kernels"}},
    {
        "sampling": {"core", "graph", "ops"},
        "batch": {"core", "ops"},
        "files": {"core", "kernels", "graph"},
        "ranks": {"core", "graph", "ops"},
    },
    {
        "loading": {"core", "ops", "sampling", "batch", "ranks"},
        "exchange": {"core", "graph", "ops", "files", "sampling", "batch", "ranks"},
    },
    {
        "loaders": {"core", "graph", "ops", "sampling", "batch", "exchange", "loading"},
        "models": {"core", "graph", "ops", "batch", "loading", "ranks"},
        "tools": {"core", "exchange", "files", "graph", "ops", "ranks", "sampling"},
    },
    {
        "face": {
            "core",
            "files",
            "loaders",
            "models",
            "ops",
            "ranks",
            "sampling",
            "tools",
        }
    },
]
ROOMS = {room: allowed for floor in FLOORS for room, allowed in floor.items()}
# Within a room: the backends do not know each other, and only one module knows both; lazy values
# do not know who computes them.
APART = {
    ("ops.cpu", "ops.cuda"),
    ("ops.cuda", "ops.cpu"),
    ("models.lazy", "models.training"),
    ("models.lazy", "models.inference"),
    ("models.lazy", "models.remote"),
}

# What a check counts that every change of the layout has to mind.
MOST_FLOORS, MOST_ARROWS, NUMBER_OF_ROOMS = 6, 55, 14

PYG = {
    "__init__",  # for type checkers alone
    "graph",
    "core.arguments",
    "core.pyg",
    "sampling",
    "batch",
    "loading",
    "models",
    "loaders",
    "tools.audit",
    "tools.audit_checks",
    "tools.plan",
    "tools.plan_orders",
    "tools.plan_cooperative",
    "tools.plan_ranks",
    "tools.compiling",
    "files",
    "ranks",
    "exchange",
    "tools.partition",
}
CUPY = {"ops.cuda.compiler"}
NUMBA = {"kernels"}


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__") or "__init__"


def room_of(module: str) -> str:
    """Return the folder that a module is in; the face for those beside the folders."""
    first = module.split(".")[0]
    return first if (PACKAGE / first).is_dir() else "face"


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imports_of(path: Path) -> set[str]:
    """Return the modules that a file imports, by their full names."""
    package = list(path.relative_to(ROOT).parent.parts)
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module.split(".") if node.module else [])])
            known = ROOT / Path(*module.split("."))
            for alias in node.names:
                submodule = known.joinpath(alias.name)
                is_module = submodule.with_suffix(".py").exists() or submodule.is_dir()
                found.add(f"{module}.{alias.name}" if is_module else module)
    return found


def ours(name: str) -> str | None:
    """Return the name relative to the package of one of its modules, None for others."""
    if name.split(".")[0] != "pyg_direct":
        return None
    return name.removeprefix("pyg_direct").lstrip(".") or "__init__"


def violations(imports: set[str], module: str) -> list[str]:
    problems = []
    for name in sorted(imports):
        other = ours(name)
        if other is not None:
            allowed = room_of(other) in {room_of(module), *ROOMS[room_of(module)]}
            apart = any(
                module.startswith(one) and other.startswith(another) for one, another in APART
            )
            if not allowed or apart:
                problems.append(f"{module} imports {other}")
        for owner, users in (("torch_geometric", PYG), ("cupy", CUPY), ("numba", NUMBA)):
            if name.split(".")[0] == owner and not {module, room_of(module)} & users:
                problems.append(f"{module} imports {owner}")
    return problems


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return circles among modules, each from its first module back to it; [] if there are none."""
    sorter = graphlib.TopologicalSorter(imports)
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        return [error.args[1]]
    return []


SOURCES = sorted(PACKAGE.rglob("*.py"))


@functools.cache
def own_imports() -> dict[str, set[str]]:
    """Return which modules of the package each of them imports."""
    return {
        module_of(path): {o for o in map(ours, imports_of(path)) if o is not None}
        for path in SOURCES
    }


def test_imports_follow_the_table() -> None:
    modules = {module_of(path): imports_of(path) for path in SOURCES}
    homeless = [module for module in modules if room_of(module) not in ROOMS]
    assert homeless == [], "in no room of the table: where do they belong?"
    assert [v for module, imports in modules.items() for v in violations(imports, module)] == []


def test_rooms_import_downwards() -> None:
    below: set[str] = set()
    for floor in FLOORS:
        for room, allowed in floor.items():
            assert allowed <= below, f"{room} imports {allowed - below}, not below it"
        below |= floor.keys()


def test_the_table_has_no_more_than_is_there() -> None:
    used: dict[str, set[str]] = {room: set() for room in ROOMS}
    for module, imports in own_imports().items():
        used[room_of(module)] |= {room_of(other) for other in imports} - {room_of(module)}
    assert used == ROOMS


def test_no_circles_among_modules() -> None:
    assert circles(own_imports()) == []


def test_no_circles_among_benchmarks() -> None:
    folder = ROOT / "benchmarks"
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(folder.rglob("*.py"))
    }
    assert circles({name: imports_of(path) & names.keys() for name, path in names.items()}) == []


def test_the_layout_stays_small() -> None:
    assert len(ROOMS) == NUMBER_OF_ROOMS
    assert sum(map(len, ROOMS.values())) <= MOST_ARROWS
    assert len(FLOORS) <= MOST_FLOORS


def test_the_face_only_passes_on() -> None:
    for path in PACKAGE.glob("*.py"):
        lines = [line for line in path.read_text().splitlines() if line and '"""' not in line]
        assert path.name == "__init__.py" or len(lines) <= 3, path.name


def test_the_check_for_circles_catches() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}}) != []


@pytest.mark.parametrize(
    ("module", "imports", "problem"),
    [
        ("kernels.jit", {"torch_geometric.data"}, "kernels.jit imports torch_geometric"),
        (
            "ops.cpu.backend",
            {"pyg_direct.sampling.keyed"},
            "ops.cpu.backend imports sampling.keyed",
        ),
        (
            "ops.cpu.backend",
            {"pyg_direct.ops.cuda.memory"},
            "ops.cpu.backend imports ops.cuda.memory",
        ),
        ("ops.cuda.backend", {"cupy"}, "ops.cuda.backend imports cupy"),
        ("sampling.sampler", {"numba"}, "sampling.sampler imports numba"),
        ("graph.from_pyg", {"pyg_direct.ops.backend"}, "graph.from_pyg imports ops.backend"),
    ],
)
def test_the_check_catches(module: str, imports: set[str], problem: str) -> None:
    assert violations(imports, module) == [problem]


KINDS_OF_BACKEND = {"CpuBackend", "CudaBackend", "CpuWorkspace", "CudaWorkspace", "Placer"}
CALLS_THAT_ASK = {"isinstance", "issubclass", "type", "hasattr"}


def asks_for_device(expression: ast.expr) -> bool:
    """Whether an expression depends on the kind of a device or of a backend."""
    for node in ast.walk(expression):
        if isinstance(node, ast.Attribute) and node.attr in ("is_cuda", "is_cpu"):
            return True
        if isinstance(node, ast.Attribute) and node.attr == "type":
            return ast.unparse(node.value).endswith("device")
        if isinstance(node, ast.Constant) and node.value in ("cuda", "cpu"):
            return True
        if isinstance(node, ast.Call) and ast.unparse(node.func) in CALLS_THAT_ASK:
            named = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            if named & KINDS_OF_BACKEND or "backend" in ast.unparse(node.args[0]):
                return True
    return False


def branches_on_device(path: Path) -> list[str]:
    """Return the lines whose course depends on the kind of a device or of a backend."""
    found = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Match):
            tests = [node.subject]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in CALLS_THAT_ASK:
            tests = [node]
        elif isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Assert)):
            tests = [node.test]
        elif isinstance(node, ast.comprehension):
            tests = node.ifs
        else:
            tests = [node] if isinstance(node, (ast.BoolOp, ast.Compare)) else []
        found += [
            f"{path.name}:{test.lineno}: {ast.unparse(test)}"
            for test in tests
            if asks_for_device(test)
        ]
    return found


# One reads the setting, the other reports on it.
ABOUT_DEVICES = {"config.py", "info.py"}
ABOVE_OPS = [p for p in SOURCES if "ops" not in p.parts and p.name not in ABOUT_DEVICES]


def test_no_if_device_above_ops() -> None:
    found = {path.name: branches_on_device(path) for path in ABOVE_OPS}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "if x.device.type == 'cuda': pass",
        "y = 1 if x.is_cuda else 2",
        "assert isinstance(backend, CudaBackend)",
        "fast = isinstance(work, CpuWorkspace)",
        "z = hasattr(self._backend, 'pin')",
        "on_gpu = device.type != 'cpu'",
        "match device.type:\n    case 'cuda': pass",
        "a = [t for t in tensors if t.is_cuda]",
    ],
)
def test_the_device_check_catches(tmp_path: Path, line: str) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text(f"{line}\n")
    assert branches_on_device(planted) != []


def test_cuda_folder_is_no_package():
    """With an __init__.py it would hide NVIDIA's `cuda` namespace from the repository's root."""
    assert not list((ROOT / "cuda").rglob("__init__.py"))


def test_files_classes_and_functions_stay_small() -> None:
    assert [path for path in SOURCES if len(path.read_text().splitlines()) > 500] == []
    assert [(path, name) for path in SOURCES for name, n in classes_of(path) if n > 263] == []
    functions = [
        (path, node)
        for path in SOURCES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef)
    ]
    assert [(path, node.name) for path, node in functions if length_of(node) > 65] == []


def classes_of(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the classes of a file, and how many lines of code they have."""
    text = path.read_text()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ClassDef):
            lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
            yield node.name, lines_of_code(textwrap.dedent("\n".join(lines)))


def length_of(node: ast.FunctionDef) -> int:
    """Return how many lines the body of a function has below its docstring."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return node.end_lineno - body[0].lineno + 1 if body else 0


def test_a_class_has_its_name_to_itself() -> None:
    """The face's modules pass classes on; no two rooms define one of the same name."""
    trees = [tree_of(path) for path in SOURCES]
    names = Counter(n.name for tree in trees for n in tree.body if isinstance(n, ast.ClassDef))
    assert len(names) > 200
    assert [name for name, count in names.items() if count > 1] == []


HEAVY = ("cupy", "matplotlib", "ogb", "tqdm", "duckdb")
IMPORTS = """
import sys, torch

def report():
    print(sorted(m for m in {heavy!r} if m in sys.modules), torch.cuda.is_initialized())

import torch_geometric.loader  # which itself imports tqdm
report()
from pyg_direct import LinkNeighborLoader, NeighborLoader
import pyg_direct.ops.cuda.backend
report()
sys.path.insert(0, {folder!r})
import cupy
report()
"""


def test_import_is_light(tmp_path: Path) -> None:
    """No CuPy, no CUDA context: in a fresh process, where nothing else has imported them."""
    (tmp_path / "cupy.py").write_text("")  # shows that an import of it is noticed
    program = IMPORTS.format(heavy=HEAVY, folder=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    of_pyg, of_ours, with_cupy = done.stdout.splitlines()
    assert of_ours == of_pyg
    assert of_pyg.endswith("False")
    assert "cupy" not in of_pyg
    assert "cupy" in with_cupy
