"""`python -m benchmarks all --quick` runs: one test for each subcommand, here or elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.result import COMMANDS, QUICK_NOTE

pytestmark = pytest.mark.usefixtures("one_thread")

TESTS = Path(__file__).parents[1]
# Those whose results other tests look at, too.
ELSEWHERE = {
    "cpu": "integration/test_benchmarks.py",
    "others": "integration/test_benchmarks_tasks.py",
    "accuracy": "integration/test_benchmarks.py",
    "narrow_accuracy": "integration/test_benchmarks_files.py",
    "tasks": "integration/test_benchmarks_tasks.py",
    "end_to_end": "integration/test_benchmarks_training.py",
    "accelerated_training": "integration/test_benchmarks_training.py",
    "stats_cost": "integration/test_benchmarks_training.py",
    "plan_accuracy": "integration/test_benchmarks_training.py",
    "launch_overhead": "integration/test_launch_overhead.py",
    "large_graphs": "integration/test_benchmarks_files.py",
    "beyond_memory": "integration/test_benchmarks_files.py",
    "row_order": "integration/test_benchmarks_files.py",
    "requests": "kernels/test_gather_requests.py",
    "gpu": "integration/test_benchmarks_gpu.py",
}
HERE = [name for name in COMMANDS if name not in ELSEWHERE]


def test_each_is_run() -> None:
    assert ELSEWHERE.keys() < COMMANDS.keys()
    for name, path in ELSEWHERE.items():
        text = (TESTS / path).read_text(encoding="utf-8")
        module = COMMANDS[name].module.rpartition(".")[2]
        assert f"{module}.main([" in text, name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", HERE)
def test_each_benchmark_runs_at_toy_sizes_and_writes_its_result(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = COMMANDS[name].load()
    module.main(["--quick", "--out", str(tmp_path)])
    if name == "family_accuracy":  # it takes real graphs alone
        assert list(tmp_path.iterdir()) == []
        assert "no toy graphs: pass --root" in capsys.readouterr().out
        return
    result = json.loads((tmp_path / f"{name}.json").read_text())
    assert result["quick"] is True
    if hasattr(module, "sections"):
        assert QUICK_NOTE in (tmp_path / f"{name}.md").read_text()
    if name == "inference":
        assert (result["large"]["kills"], result["large"]["same"]) == (1, True)
        assert all(set(found["ways"]) == set(module.WAYS) for found in result["contests"])
