"""The scripts of `examples/` run, and say what their arguments are."""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from examples.support import common

ROOT = Path(__file__).parents[2]
SMALL = {
    "hetero": ["--num-seeds", "500", "--batch-size", "256"],
    "link_prediction": ["--num-nodes", "800", "--batch-size", "256"],
    "database": ["--num-orders", "3000", "--batch-size", "64"],
    "temporal": ["--num-purchases", "4000", "--batch-size", "256"],
    "lightning_module": ["--num-nodes", "1000", "--batch-size", "100"],
    "ddp": ["--num-nodes", "1000", "--batch-size", "100"],
    "large_graph": [
        "--nodes", "2000", "--edges", "20000", "--features", "8", "--steps", "5",
        "--batch-size", "64",
    ],
}  # fmt: skip


# Of Lightning, and of TorchScript in PyG; a first import is part of the run.
QUIET = pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"
)


def script(name: str) -> ModuleType:
    return importlib.import_module(f"examples.{name}")


@dataclass(frozen=True)
class Watched:
    """A function of a spawned process, which prints its stacks and ends when it takes too long."""

    function: Callable[..., None]
    seconds: float = 120.0

    def __call__(self, *args: Any) -> None:
        faulthandler.dump_traceback_later(self.seconds, exit=True)
        self.function(*args)


def spawn_watched(spawn: Callable[..., Any], function: Callable[..., None], **options: Any) -> None:
    spawn(Watched(function), **options)


@pytest.mark.slow
@QUIET
@pytest.mark.parametrize("name", SMALL)
def test_example_scripts_run_for_an_epoch_and_print_their_score(
    name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mp, "spawn", partial(spawn_watched, mp.spawn))
    result = script(name).main([*SMALL[name], "--epochs", "1"])
    assert result is None or 0 <= result <= 1
    out, err = capfd.readouterr()
    assert "accuracy" in out or "AUC" in out
    assert "batch/s" not in err, "a bar, though there is no terminal"


@pytest.mark.slow
@QUIET
@pytest.mark.parametrize("name", SMALL)
def test_scripts_have_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        script(name).main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert f"python examples/{name}.py" in text
    assert "--batch-size" in text


@pytest.mark.slow
@QUIET
@pytest.mark.parametrize("name", sorted(SMALL.keys() - {"ddp", "lightning_module"}))
def test_programs_take_a_device_and_train_there(name: str) -> None:
    with pytest.raises(RuntimeError, match="nowhere"):  # what torch says of a device it lacks
        script(name).main([*SMALL[name], "--epochs", "1", "--device", "nowhere"])


@pytest.mark.parametrize(
    ("name", "module", "command"),
    [
        ("relational", "relbench", '".[relbench]"'),
        ("lightning_module", "pytorch_lightning", "pytorch_lightning"),
        ("ray_train", "ray", '".[ray]"'),
    ],
)
def test_a_package_that_is_missing_is_named_with_what_installs_it(
    name: str, module: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"examples.{name}", raising=False)
    with pytest.raises(SystemExit, match=re.escape(f"pip install {command}")):
        script(name).main([])


def test_a_program_of_ranks_says_how_it_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        script("restarted").main([])
    assert "start it by torchrun" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("train_graphsage", ["--num-nodes", "300", "--num-edges", "2000", "--epochs", "1"]),
        ("link_prediction", ["--num-nodes", "300", "--epochs", "1"]),
        ("captured_step", ["--num-nodes", "900", "--num-edges", "3000", "--epochs", "1"]),
    ],
)
def test_a_copy_of_a_program_runs_by_itself(
    name: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It imports nothing of `examples`."""
    copy = tmp_path / f"{name}.py"
    copy.write_text((ROOT / "examples" / f"{name}.py").read_text())
    for imported in [key for key in sys.modules if key.split(".")[0] == "examples"]:
        monkeypatch.delitem(sys.modules, imported)
    monkeypatch.setitem(sys.modules, "examples", None)
    spec = importlib.util.spec_from_file_location(name, copy)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(arguments)


def test_replayed_steps_have_the_losses_of_the_ordinary_loop(
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = ["--num-nodes", "900", "--num-edges", "3000", "--epochs", "2", "--device", "cpu"]
    script("captured_step").main(small)
    losses = re.findall(r"epoch \d: loss ([\d.]+)", capsys.readouterr().out)
    assert len(losses) == 4
    assert losses[:2] == losses[2:]
    assert losses[0] != losses[1]


def test_the_table_of_examples_has_every_program() -> None:
    text = (ROOT / "examples" / "README.md").read_text()
    listed = re.findall(r"^\| \[`?([\w.]+)`?\]\(\1\) \|", text, re.MULTILINE)
    programs = [*(ROOT / "examples").glob("*.py"), *(ROOT / "examples").glob("*.ipynb")]
    assert sorted(listed) == sorted(p.name for p in programs if p.name != "__init__.py")


@pytest.mark.slow
@QUIET
@pytest.mark.parametrize(("task", "least"), [("customers", 0.75), ("products", 0.03)])
def test_tables_of_relbench(task: str, least: float, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("relbench")
    assert script("relational").main(["--task", task]) > least
    if task == "customers":
        assert "ok   no edge is later than its seed: 0 of " in capsys.readouterr().out


def test_auc_counts_pairs_in_which_the_positive_scores_higher() -> None:
    label = torch.tensor([1.0, 0, 1, 0, 0])
    # Of the 6 pairs (positive, negative) the positive scores higher in 5.
    assert common.auc(torch.tensor([0.9, 0.1, 0.4, 0.5, 0.2]), label) == pytest.approx(5 / 6)
    assert common.auc(label, label) == 1


def test_purchases_follow_the_fashion() -> None:
    data = common.purchases(50, 20, 1000, seed=1)
    again, other = (common.purchases(50, 20, 1000, seed=seed) for seed in (1, 2))
    buys = data["user", "buys", "item"]
    assert torch.equal(buys.edge_index, again["buys"].edge_index)
    assert not torch.equal(buys.edge_index, other["buys"].edge_index)
    user, item = buys.edge_index
    moment = user * common.SEASONS + buys.day * common.SEASONS // common.DAYS
    for found in moment.unique():
        assert len((item[moment == found] // 4).unique()) == 1
