"""Run PyG's own tests of the mini-batch methods with our classes in place of PyG's.

    python tests/support/pyg_own_tests.py CHECKOUT/test/loader/test_shadow.py ... --root FOLDER

PyG's tests are not in its wheel: the arguments are files of a checkout of PyG, at the version that
is installed. FOLDER holds planetoid/, for tests on Cora. They run as they are, within
`pyg_direct.swapped()`, with these differences:

* torch_sparse, pyg_lib, torch_cluster and torch_scatter cannot be imported;
* `skipif` marks are lifted, which would skip all of them then;
* `SparseTensor`, of which PyG has only a stub then, is the class below.

Prints a line for each test, and exits with 1 unless all passed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

EXTENSIONS = ("torch_sparse", "pyg_lib", "torch_cluster", "torch_scatter")


class SparseTensor:
    """What PyG's tests use of `torch_sparse.SparseTensor`: entries sorted by row, then column."""

    def __init__(
        self, row: Any, col: Any, value: Any = None, sparse_sizes: Any = None, **_: Any
    ) -> None:
        sizes = sparse_sizes or (int(row.max()) + 1, int(col.max()) + 1)
        order = (row * sizes[1] + col).argsort(stable=True)
        self._row, self._col, self._sizes = row[order], col[order], sizes
        self._value = None if value is None else value[order]

    @property
    def storage(self) -> Any:
        return SimpleNamespace(
            row=lambda: self._row, col=lambda: self._col, value=lambda: self._value
        )

    def size(self, dim: int) -> int:
        return int(self._sizes[dim])

    def sparse_size(self, dim: int) -> int:
        return self.size(dim)

    def device(self) -> Any:
        return self._row.device

    def to(self, device: Any) -> Any:
        return self

    def nnz(self) -> int:
        return len(self._row)

    def coo(self) -> tuple[Any, Any, Any]:
        return self._row, self._col, self._value

    def csr(self) -> tuple[Any, Any, Any]:
        pointers = self._row.bincount(minlength=self._sizes[0]).cumsum(0)
        return pointers.new_tensor([0, *pointers.tolist()]), self._col, self._value

    def t(self) -> Any:
        return type(self)(
            row=self._col, col=self._row, value=self._value, sparse_sizes=self._sizes[::-1]
        )

    def __getitem__(self, index: tuple[Any, Any]) -> Any:
        """Return the rows and columns of two lists of ids, each as often as it is named."""
        rows, cols = index
        row, entry = (rows[:, None] == self._row).nonzero().unbind(1)
        kept, col = (self._col[entry][:, None] == cols).nonzero().unbind(1)
        value = None if self._value is None else self._value[entry[kept]]
        sizes = (len(rows), len(cols))
        return type(self)(row=row[kept], col=col, value=value, sparse_sizes=sizes)


class Plugin:
    """Lifts the marks, gives PyG's fixture, and keeps what came of each test."""

    def __init__(self, root: Path | None) -> None:
        self.root = root
        self.outcomes: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            item.own_markers = [mark for mark in item.own_markers if mark.name != "skipif"]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.nodeid] = report.outcome

    @pytest.fixture
    def get_dataset(self) -> Callable[..., Any]:
        """PyG's fixture, which would load the data set from the network."""
        from examples.support.datasets import load_dataset

        def load(name: str) -> Any:
            data = load_dataset(name.lower(), self.root)

            class Dataset(list[Any]):
                num_features, num_classes = data.num_features, int(data.y.max()) + 1

            return Dataset([data])

        return load


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description="PyG's own tests with our classes.", usage=__doc__.split("\n\n")[1].strip()
    )
    parser.add_argument("files", nargs="+")
    parser.add_argument("--root", type=Path)
    args = parser.parse_args(argv)
    for name in EXTENSIONS:
        sys.modules[name] = None  # type: ignore[assignment]  # an import of it fails
    sys.path.insert(0, str(Path(__file__).parents[2]))
    import torch_geometric.typing

    for name, value in vars(SparseTensor).items():
        if name not in ("__dict__", "__weakref__"):
            setattr(torch_geometric.typing.SparseTensor, name, value)
    import pyg_direct

    plugin = Plugin(args.root)
    plain = ["-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--noconftest"]
    with pyg_direct.swapped():
        status = pytest.main([*plain, "-c", "/dev/null", *args.files], [plugin])
    for name, outcome in plugin.outcomes.items():
        print(f"{outcome:8} {Path(name.split('::')[0]).name}::{name.split('::', 1)[1]}")
    passed = [outcome == "passed" for outcome in plugin.outcomes.values()]
    return int(status != pytest.ExitCode.OK or not passed or not all(passed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
