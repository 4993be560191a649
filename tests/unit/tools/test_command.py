"""The command `pyg-direct`."""

import argparse
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from pyg_direct import save
from pyg_direct.tools import arguments, command

ROOT = Path(__file__).parents[3]


def test_it_is_installed_as_a_script() -> None:
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, function = scripts[command.PROGRAM].split(":")
    assert getattr(import_module(module), function) is command.main


@pytest.mark.parametrize("name", command.SUBCOMMANDS)
def test_each_subcommand_explains_itself_by_an_example(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main([name, "--help"])
    shown = capsys.readouterr().out
    assert stopped.value.code == 0
    assert f"usage: pyg-direct {name}" in shown
    assert f"\n    pyg-direct {name}" in shown


def test_the_help_lists_all_subcommands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--help"])
    shown = capsys.readouterr().out
    assert all(f"    {name} " in shown for name in command.SUBCOMMANDS)


@pytest.mark.parametrize("given", [[], ["tell"]])
def test_an_unknown_subcommand_is_refused(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main(given)
    assert stopped.value.code == 2
    assert "NAME" in capsys.readouterr().err


def test_arguments_reach_the_subcommand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["generate", str(tmp_path / "graph"), "--nodes", "20", "--edges", "40"]
    command.main(arguments)
    assert (tmp_path / "graph").is_dir()
    monkeypatch.setattr(sys, "argv", ["generate", str(tmp_path / "graph")])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module("pyg_direct.generate", run_name="__main__")
    assert stopped.value.code == 2
    assert "usage: pyg-direct generate" in capsys.readouterr().err


@pytest.mark.parametrize("name", command.SUBCOMMANDS)
def test_an_error_is_not_hidden_by_a_list_of_arguments(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        command.main([name, "--no-such-option"])
    told = capsys.readouterr().err.splitlines()
    assert told[0] == f"usage: pyg-direct {name} ... (--help lists the arguments)"
    assert len(told) == 2
    assert told[1].startswith(f"pyg-direct {name}: error: ")


def test_a_graph_that_cannot_be_written_is_told_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match=r"^2$"):
        command.main(["generate", str(tmp_path / "file" / "g"), "--nodes", "2", "--edges", "4"])
    assert "pyg-direct generate: error: " in capsys.readouterr().err


@pytest.mark.parametrize("name", command.SUBCOMMANDS)
def test_the_help_states_every_default(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = []

    def keep(parser: argparse.ArgumentParser, *_: object) -> argparse.Namespace:
        known.append(parser)
        raise SystemExit

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", keep)
    with pytest.raises(SystemExit):
        getattr(arguments, name)([])
    silent = [
        action.option_strings
        for action in known[0]._actions
        if action.option_strings
        and action.default not in (None, False, [], argparse.SUPPRESS)
        and "default" not in (action.help or "")
    ]
    assert silent == []


@pytest.mark.parametrize("name", ["plan", "convert", "generate", "audit"])
def test_wrong_arguments_are_told_before_torch_is_imported(name: str) -> None:
    code = (
        "import sys\nfrom pyg_direct.tools import arguments, command\n"
        f"try: command.main([{name!r}, '--no-such-option'])\n"
        "except SystemExit: sys.exit(10 + ('torch' in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 10


def test_commands_end_with_the_graph_made_and_how_to_open_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command.main(["generate", str(tmp_path / "graph"), "--nodes", "20", "--edges", "40"])
    told = capsys.readouterr().out.splitlines()[-1]
    assert told.startswith(f"{tmp_path / 'graph'}: 20 nodes, 40 edges, ")
    assert told.endswith(f"data = pyg_direct.open({str(tmp_path / 'graph')!r})")
    (tmp_path / "edges.csv").write_text("0,1\n1,2\n")
    command.main(
        [
            "convert",
            str(tmp_path / "other"),
            "--edges",
            str(tmp_path / "edges.csv"),
            "--num-nodes",
            "3",
        ]
    )
    assert ": 3 nodes, 2 edges, " in capsys.readouterr().out.splitlines()[-1]
    hetero = HeteroData()
    hetero["a"].num_nodes = hetero["b"].num_nodes = 3
    hetero["a", "to", "b"].edge_index = torch.tensor([[0], [1]])
    torch.save(hetero, tmp_path / "typed.pt")
    command.main(["convert", str(tmp_path / "typed"), "--pyg", str(tmp_path / "typed.pt")])
    assert ": 6 nodes, 1 edges of 2 node and 1 edge types, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        (["generate", "{path}", "--nodes", "0"], "--nodes must be an int of 1 or more, got 0"),
        (["generate", "{path}", "--train-share", "2"], "--train-share must be"),
        (["convert", "{path}", "--edges", "{edges}", "--time-attr", "t"], "--time-attr='t' is not"),
        (["convert", "{path}", "--edges", "{edges}", "--memory", "1"], "A conversion needs"),
        (["audit", "{graph}", "--fanout", "2", "--weight-attr", "w"], "--weight-attr='w' is not"),
        (["audit", "{graph}", "--batch-size", "0"], "--batch-size should be"),
    ],
)
def test_an_error_of_a_function_names_the_option(
    given: list[str], refusal: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edges, graph = tmp_path / "edges.npy", tmp_path / "graph"
    np.save(edges, np.array([[0, 1], [1, 0]]))
    save(Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2), graph)
    with pytest.raises(SystemExit):
        command.main([g.format(path=tmp_path / "out", edges=edges, graph=graph) for g in given])
    assert f"error: {refusal}" in capsys.readouterr().err
