"""The command `pyg-direct`."""

import runpy
import sys
from importlib import import_module
from pathlib import Path

import pytest

from pyg_direct.tools import command

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
def test_what_is_no_subcommand_is_refused(
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
