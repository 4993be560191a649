"""What is read of the CUDA kernels' text, and where it lies."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyg_direct.ops.cuda import source
from pyg_direct.ops.cuda.descriptor import resolved
from pyg_direct.ops.cuda.source import (
    FILES,
    declarations,
    instance_names,
    instance_options,
    instances,
    read_source,
)


def test_all_kernels_and_their_parameters_are_read() -> None:
    found = {d.name: d for file in FILES for d in declarations(read_source(file))}
    for file in source.source_folder().glob("*.cu*"):
        text = file.read_text()
        kernels = re.findall(r"^KERNEL.* (\w+)\(", text, re.MULTILINE)
        assert set(kernels) <= set(found)
        assert "__global__" not in text or file.name == "common.cuh"
    gather = found["gather_rows"]
    assert [(p.kind, p.type, p.name) for p in gather.parameters[:4]] == [
        ("In", "u8", "table"), ("In", "i64", "index"), ("In", "i64", "place"),
        ("value", "i64", "rows"),
    ]  # fmt: skip


def test_instances_of_a_source_have_their_types_and_options() -> None:
    text = read_source("relabel.cu")
    assert instance_names(text) == ("I", "P", "kHashed")
    assert len(list(instances(text))) == 8
    types = {"I": "i64", "P": "i32", "kHashed": "true"}
    assert instance_options(text, types) == (
        "-DINSTANCE_I=i64", "-DINSTANCE_P=i32", "-DINSTANCE_kHashed=true",
    )  # fmt: skip
    with pytest.raises(ValueError, match="I must be one of i32, i64, got 'u8'"):
        instance_options(text, {**types, "I": "u8"})
    with pytest.raises(ValueError, match="P must be one of i32, i64, got None"):
        instance_options(text, {"I": "i64", "kHashed": "true"})
    with pytest.raises(ValueError, match="M must be one of left out, got 'i32'"):
        instance_options(text, {**types, "M": "i32"})


def test_headers_are_part_of_the_text(tmp_path: Path) -> None:
    """CuPy's cache does not look into included files, so a changed header must change the text."""
    for file in source.source_folder().glob("*.cu*"):
        (tmp_path / file.name).write_text(file.read_text())
    before = read_source("sample.cu", tmp_path)
    assert "#include" not in before
    assert before == read_source("sample.cu")
    header = tmp_path / "philox.cuh"
    header.write_text(header.read_text() + "// changed\n")
    assert read_source("sample.cu", tmp_path) != before


def test_sources_are_found_in_a_wheel_and_in_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not (source.source_folder() / "__init__.py").exists()  # NVIDIA's `cuda` is a namespace
    package = tmp_path / "pyg_direct"
    monkeypatch.setattr(source, "__file__", str(package / "ops" / "cuda" / "source.py"))
    with pytest.raises(FileNotFoundError, match="Install pyg-direct again"):
        source.source_folder()
    for folder in (tmp_path / "cuda", package / "cuda"):  # a checkout; a wheel
        folder.mkdir(parents=True)
        (folder / FILES[0]).write_text("")
        assert source.source_folder() == folder


def test_text_and_parameters_are_read_once() -> None:
    """A sampler is made without parsing kernels again."""
    assert read_source("sample.cu") is read_source("sample.cu")
    fields = declarations(read_source("sample.cu"))[0].parameters[0].fields
    types = {"I": "i64", "P": "i32", "M": "i32", "O": "i64"}
    assert len(fields) > 10
    assert resolved(fields, types) is resolved(list(fields), {**types, "other": "i64"})
    assert resolved(fields, types) != resolved(fields, {**types, "I": "i32"})
