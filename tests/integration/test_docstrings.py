"""Every public name has a docstring with an example, and the examples run."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs import citations, papers_and_authors
from torch_geometric.nn import GraphSAGE

import pyg_direct
from pyg_direct.loaders import lightning
from pyg_direct.loading.stats import Stats

PUBLIC = {name: getattr(pyg_direct, name) for name in pyg_direct.__all__ if name != "__version__"}
DOCUMENTED = {**PUBLIC, "Stats": Stats, "LoaderStats": lightning.LoaderStats}


def names() -> dict[str, Any]:
    """Return what examples speak of without making it."""
    torch.manual_seed(0)
    return {
        "data": citations(), "hetero": papers_and_authors(), "torch": torch, "F": F,
        "model": GraphSAGE(16, 32, num_layers=2, out_channels=4), "pyg_direct": pyg_direct,
        "LoaderStats": lightning.LoaderStats,
    }  # fmt: skip


def example_of(name: str) -> doctest.DocTest:
    text = inspect.getdoc(DOCUMENTED[name]) or ""
    return doctest.DocTestParser().get_doctest(text, names(), name, None, None)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_examples_of_docstrings_print_what_they_say(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    example = example_of(name)
    assert example.examples, f"{name} has no example"
    said: list[str] = []
    doctest.DocTestRunner().run(example, out=said.append)
    assert not said, "".join(said)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_docstrings_begin_with_a_sentence(name: str) -> None:
    first = (inspect.getdoc(DOCUMENTED[name]) or "").splitlines()[0]
    assert first.endswith(".")
    assert len(first) <= 96


def test_examples_that_are_wrong_are_found() -> None:
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3", {}, "wrong", None, None)
    said: list[str] = []
    doctest.DocTestRunner().run(wrong, out=said.append)
    assert said
