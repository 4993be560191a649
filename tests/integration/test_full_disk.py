"""Results that do not fit their disk: an error in words, and the process lives on."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from pyg_direct import inference, quantize

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "support" / "full_disk.py"
MOUNT = 'mount -t tmpfs -o size=2m tmpfs "$0" && exec "$@"'

WRITERS = [
    "inference",
    "resumable inference",
    "inference by nodes",
    "inference with layers in files",
    "quantize",
    "save",
    "generate",
    "convert",
]


def on_a_small_disk(folder: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in a name space of its own, where `folder` is a disk of 2 MB."""
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", MOUNT, str(folder), *command],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYG_DIRECT_DEVICE": "cpu"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.slow  # what an error leaves is looked at below, without a process for each
@pytest.mark.parametrize("what", WRITERS)
def test_a_full_disk(tmp_path, what) -> None:
    disk, inputs = tmp_path / "disk", tmp_path / "inputs"
    disk.mkdir()
    inputs.mkdir()
    if shutil.which("unshare") is None or on_a_small_disk(disk, "true").returncode != 0:
        pytest.skip("this process cannot mount a small disk")
    done = on_a_small_disk(disk, sys.executable, str(PROGRAM), what, str(disk), str(inputs))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    if what == "inference with layers in files" and found["errno"] is None:
        return  # its layers fitted the memory
    assert found["errno"] == errno.ENOSPC
    assert "No space left on device" in found["message"] or what == "convert"
    if what == "resumable inference":
        assert "out.npy.partial" in found["left"]
    elif what != "convert":  # which goes on when it is run again
        assert found["left"] == []


@pytest.fixture(params=[errno.ENOSPC, errno.EDQUOT])
def full(monkeypatch, request):
    """Let no file get blocks on the disk."""

    def posix_fallocate(*_: object) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(os, "posix_fallocate", posix_fallocate, raising=False)
    return request.param


GRAPH = Data(x=torch.randn(50, 6), edge_index=torch.randint(50, (2, 200)))


def test_the_error_names_the_file_and_its_size(tmp_path, full) -> None:
    with pytest.raises(OSError, match=r"600 bytes are needed for.*narrow\.npy") as caught:
        quantize(GRAPH.x, torch.float16, out=tmp_path / "narrow.npy")
    assert caught.value.errno == full
    assert caught.value.filename == str(tmp_path / "narrow.npy")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("full")
def test_inference_leaves_nothing(tmp_path) -> None:
    with pytest.raises(OSError, match="bytes are needed for"):
        inference(GraphSAGE(6, 8, 2, 4), GRAPH, out=tmp_path / "out.npy")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP, None])
def test_files_are_written_where_the_system_cannot_allocate_them(
    tmp_path, monkeypatch, number
) -> None:
    """Some file systems, and macOS."""
    if number is None:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    else:

        def posix_fallocate(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "posix_fallocate", posix_fallocate, raising=False)
    narrow = quantize(GRAPH.x, torch.bfloat16, out=tmp_path / "narrow.npy")
    assert torch.equal(narrow.stored, GRAPH.x.bfloat16())
    model = GraphSAGE(6, 8, 2, 4)
    assert torch.equal(inference(model, GRAPH, out=tmp_path / "o.npy"), inference(model, GRAPH))
