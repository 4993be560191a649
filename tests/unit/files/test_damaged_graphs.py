"""Directories that are not a saved graph, or no longer the one that was saved."""

from __future__ import annotations

import errno
import os
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from children import in_child
from saved_files import change_header
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import pyg_direct
from pyg_direct import InvalidGraphFileError, NeighborLoader, inference
from pyg_direct.files import arrays
from pyg_direct.files.header import HEADER, checksum_of


def weighted_graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(100, 3, generator=generator),
        edge_index=torch.randint(100, (2, 1000), generator=generator),
        weight=torch.rand(1000, generator=generator),
        time=torch.randint(20, (100,), generator=generator),
    )


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    pyg_direct.save(weighted_graph(), tmp_path / "graph", weight_attr="weight", time_attr="time")
    return tmp_path / "graph"


def file_of(folder: Path, name: str) -> Path:
    (found,) = folder.glob(f"*_{name}.bin")
    return found


def test_no_graph_at_all(tmp_path: Path) -> None:
    with pytest.raises(InvalidGraphFileError, match="is not a saved graph: it has no graph"):
        pyg_direct.open(tmp_path)
    with pytest.raises(InvalidGraphFileError, match="is not a saved graph"):
        pyg_direct.open(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, '{"format": "other"}', "\x00" * 9])
def test_text_that_is_no_header_is_refused(saved: Path, text: str) -> None:
    (saved / HEADER).write_text(text)
    with pytest.raises(InvalidGraphFileError, match=HEADER):
        pyg_direct.open(saved)


def test_a_graph_of_another_version_is_refused(saved: Path) -> None:
    change_header(saved, lambda content: content.update(version=3))
    with pytest.raises(
        InvalidGraphFileError, match="version 3; this pyg_direct reads versions 1 and 2"
    ):
        pyg_direct.open(saved)


def test_a_header_of_the_first_release(saved: Path) -> None:
    """It knows no order of rows; what its checksum is of never changes."""
    change_header(saved, lambda content: content["nodes"][0].pop("order"))
    assert torch.equal(pyg_direct.open(saved).x, weighted_graph().x)
    content = {"b": {"d": 1, "c": [None, "\xe9"]}, "crc32": 7, "a": 2}
    text = b'{"a": 2, "b": {"c": [null, "\\u00e9"], "d": 1}}'
    assert checksum_of(content) == zlib.crc32(text)


def test_a_changed_header(saved: Path) -> None:
    text = (saved / HEADER).read_text()
    (saved / HEADER).write_text(text.replace('"num_edges": 1000', '"num_edges": 1001'))
    with pytest.raises(InvalidGraphFileError, match="its checksum is wrong"):
        pyg_direct.open(saved)


HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "absolute": (lambda h: h["indices"].update(file="/etc/passwd"), "is not the name of a file"),
    "header_as_array": (lambda h: h["indices"].update(file=HEADER), "is not the name of a file"),
    "more_nodes": (lambda h: h["nodes"][0].update(num_nodes=101), r"indptr is int32 \[101\]"),
    "fewer_edges": (
        lambda h: h["edges"][0].update(num_edges=999), r"must be int32 or int64 \[999\]"
    ),
    "negative": (lambda h: h["edges"][0].update(num_edges=-1), "-1 is not a count"),
    "boolean_count": (lambda h: h["edges"][0].update(num_edges=True), "True is not a count"),
    "float_count": (lambda h: h["nodes"][0].update(num_nodes=100.0), r"100\.0 is not a count"),
    "object_dtype": (lambda h: h["indptr"].update(dtype="object"), "unknown dtype 'object'"),
    "wider_ids": (lambda h: h["indices"].update(dtype="int64"), "takes 8000: it was cut off"),
    "float_ids": (lambda h: h["indices"].update(dtype="float32"), "indices is float32"),
    "huge_shape": (lambda h: h["indices"].update(shape=[1 << 40, 1 << 40]), "impossible shape"),
    "short_attribute": (
        lambda h: h["edges"][0]["attributes"]["weight"].update(shape=[10]),
        "edge attribute weight has the shape"
    ),
    "longer_x": (
        lambda h: h["nodes"][0]["attributes"]["x"].update(shape=[101, 3]),
        "takes 1212: it was cut off"
    ),
    "more_rows": (
        lambda h: h["nodes"][0]["attributes"]["x"].update(shape=[300, 1]),
        "attributes have another number of nodes"
    ),
    "no_nodes": (lambda h: h.update(nodes=[]), "None is not an edge type"),
    "no_times": (lambda h: h.pop("times"), "not valid: 'times'"),
    "one_more_relation": (
        lambda h: h["weights"].update(relations=[True, True]), "says which edge types have weights"
    ),
    "edges_of_a_type": (
        lambda h: h["edges"][0].update(type=["a", "b", "c"]), "without node types has edge types"
    ),
    "scale_of_floats": (
        lambda h: h["nodes"][0]["attributes"]["x"].update(quantized=True),
        "must be contiguous int8"
    ),
    "scale_without_need": (
        lambda h: h["nodes"][0]["attributes"]["x"].update(scale=h["indptr"]),
        "has a scale of its own"
    ),
    "text_in_place_of_a_group": (lambda h: h.update(nodes="abc"), "is not valid"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_are_refused_with_their_complaint(saved: Path, name: str) -> None:
    change, complaint = HOSTILE[name]
    change_header(saved, change)
    with pytest.raises(InvalidGraphFileError, match=complaint):
        pyg_direct.open(saved)


def test_links_out_of_the_directory_are_not_followed(saved: Path, tmp_path: Path) -> None:
    path = file_of(saved, "x")
    path.rename(tmp_path / "elsewhere.bin")
    path.symlink_to(tmp_path / "elsewhere.bin")
    with pytest.raises((InvalidGraphFileError, OSError), match=path.name):
        pyg_direct.open(saved)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="takes a system with named pipes")
@pytest.mark.parametrize("verify", [False, True])
def test_pipes_and_folders_are_refused(saved: Path, verify: bool) -> None:
    path = file_of(saved, "x")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InvalidGraphFileError, match=f"{path.name} is not a regular file"):
        pyg_direct.open(saved, verify=verify)
    path.unlink()
    path.mkdir()
    with pytest.raises(InvalidGraphFileError, match=f"{path.name} is not a regular file"):
        pyg_direct.open(saved, verify=verify)


@pytest.mark.parametrize("name", ["x", "indptr", "indices", "weight", "sorted_times"])
@pytest.mark.parametrize("length", [0, -1, 1])
def test_files_of_another_length(saved: Path, name: str, length: int) -> None:
    path = sorted(saved.glob(f"*_{name}.bin"))[0]
    content = path.read_bytes()
    path.write_bytes(b"" if length == 0 else content[:-1] if length < 0 else content + b"1")
    with pytest.raises(InvalidGraphFileError, match=f"{path.name} has .* was cut off or replaced"):
        pyg_direct.open(saved)
    path.unlink()
    with pytest.raises(InvalidGraphFileError, match=f"{path.name} is missing"):
        pyg_direct.open(saved)


@pytest.fixture
def several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read and write files in several steps."""
    monkeypatch.setattr(arrays, "STEP_BYTES", 1000)


@pytest.mark.usefixtures("several_steps")
def test_every_flipped_bit_is_found_by_verify(saved: Path) -> None:
    for path in sorted(saved.glob("*.bin")):
        content = path.read_bytes()
        flip_bits(path, 1, random.Random(path.name))
        with pytest.raises(InvalidGraphFileError, match=f"{path.name} is damaged"):
            pyg_direct.open(saved, verify=True)
        path.write_bytes(content)
    pyg_direct.open(saved, verify=True)


def flip_bits(path: Path, count: int, source: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(count):
        content[source.randrange(len(content))] ^= 1 << source.randrange(8)
    path.write_bytes(bytes(content))


def test_files_elsewhere_are_not_read_though_they_fit(saved: Path) -> None:
    """What the header names outside of the directory is refused by name, whatever is there."""
    path = file_of(saved, "indices")
    path.rename(saved.parent / "secret.bin")
    change_header(saved, lambda content: content["indices"].update(file="../secret.bin"))
    with pytest.raises(InvalidGraphFileError, match="is not the name of a file in the directory"):
        pyg_direct.open(saved)


@pytest.mark.parametrize("at", [0, -1])
def test_lists_that_begin_or_end_elsewhere_are_found_when_opening(saved: Path, at: int) -> None:
    path = file_of(saved, "indptr")
    indptr = np.fromfile(path, np.int32)
    indptr[at] = 500
    indptr.tofile(path)
    with pytest.raises(InvalidGraphFileError, match=f"{path.name} is damaged: the lists of edge"):
        pyg_direct.open(saved)


def test_verify_reads_scales_and_tables(tmp_path: Path) -> None:
    data = weighted_graph()
    data.x = pyg_direct.quantize(data.x, scale="row")
    pyg_direct.save(data, tmp_path / "graph", weight_attr="weight")
    assert [*tmp_path.glob("graph/*_alias.bin")]
    test_every_flipped_bit_is_found_by_verify(tmp_path / "graph")
    assert data.x.scale.nbytes in [path.stat().st_size for path in tmp_path.glob("graph/*.bin")]


USES: dict[str, dict[str, Any]] = {
    "plain": {},
    "all_neighbours": {"num_neighbors": [-1, -1]},
    "disjoint": {"disjoint": True},
    "replace": {"replace": True},
    "induced": {"subgraph_type": "induced"},
    "bidirectional": {"subgraph_type": "bidirectional"},
    "weighted": {"weight_attr": "weight"},
    "temporal": {"time_attr": "time"},
    "both": {"time_attr": "time", "weight_attr": "weight"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["indptr", "indices", "alias", "cumulative", "sorted_times"])
def test_damaged_arrays_crash_nothing(tmp_path: Path, name: str) -> None:
    """Any bytes may stand in an array: a batch, a ValueError, never a crash or a hang."""
    pyg_direct.save(weighted_graph(), tmp_path / "weights", weight_attr="weight")
    pyg_direct.save(weighted_graph(), tmp_path / "both", weight_attr="weight", time_attr="time")
    for folder in (tmp_path / "weights", tmp_path / "both"):
        for path in folder.glob(f"*_{name}.bin"):
            content = path.read_bytes()
            for seed in range(6):
                random_bytes = np.random.default_rng(seed).bytes(len(content))
                path.write_bytes(random_bytes if seed == 0 else content)
                flip_bits(path, 1 + seed, random.Random(seed))
                in_child(lambda folder=folder: use_everything(folder))
            path.write_bytes(content)


def use_everything(folder: Path) -> None:
    for options in USES.values():
        try:
            data = pyg_direct.open(folder)
            arguments = {"num_neighbors": [3, 3], "batch_size": 10, "seed": 0, **options}
            for batch in NeighborLoader(data, **arguments):
                assert batch.edge_index.min() >= 0
                assert batch.edge_index.max() < batch.num_nodes
                assert batch.n_id.max() < 100
        except ValueError:
            pass


def test_the_error_names_the_file_and_the_remedy(saved: Path) -> None:
    path = file_of(saved, "indices")
    ids = np.fromfile(path, np.int32)
    ids[500] = 100
    ids.tofile(path)
    data = pyg_direct.open(saved)
    with pytest.raises(ValueError, match=r"refers to node 100.*open\(path, verify=True\)"):
        list(NeighborLoader(data, [-1], batch_size=100))
    with pytest.raises(ValueError, match=f"{saved}.* refers to node 100"):
        NeighborLoader(data, [2], weight_attr="weight")
    model = GraphSAGE(3, 4, 2).eval()
    with pytest.raises(ValueError, match="refers to node 100"):
        inference(model, data)
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(ValueError, match=r"must be in \[0, 100\)"):
        pyg_direct.RandomWalker(data)


class FullDisk:
    """A raw file that takes `room` bytes, a few at a time, and then fails."""

    def __init__(self, path: Path, mode: str, room: int, code: int) -> None:
        self._file = open(path, mode, buffering=0)  # noqa: SIM115
        self._room, self._code = room, code

    def write(self, content: Any) -> int:
        if self._room == 0:
            raise OSError(self._code, os.strerror(self._code))
        count = min(len(content), self._room, 1000)
        self._room -= count
        return int(self._file.write(content[:count]) or 0)

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(
        arrays, "open", lambda path, mode, **_: FullDisk(path, mode, 1500, code), raising=False
    )
    with pytest.raises(OSError, match=os.strerror(code)):
        pyg_direct.save(weighted_graph(), tmp_path / "graph")
    assert os.listdir(tmp_path) == []


def test_short_writes_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        arrays, "open", lambda path, mode, **_: FullDisk(path, mode, 1 << 40, 0), raising=False
    )
    pyg_direct.save(weighted_graph(), tmp_path / "graph")
    monkeypatch.undo()
    assert torch.equal(pyg_direct.open(tmp_path / "graph", verify=True).x, weighted_graph().x)
