"""A file system whose reads fail from some moment on, as those of a disk that breaks.

Run as a program, which takes root on Linux: the files of a folder appear at a mount point, by the
FUSE protocol of the kernel, until stdin ends. Reads fail with EIO once a line was read from stdin.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import stat
import struct
import sys
from pathlib import Path

LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, FLUSH = 1, 2, 3, 14, 15, 18, 25
INIT, OPENDIR, READDIR, RELEASEDIR, DESTROY, BATCH_FORGET = 26, 27, 28, 29, 38, 42
UNANSWERED = {FORGET, BATCH_FORGET}
HEADER, LONG = struct.Struct("<IIQQIIII"), 3600  # seconds for which the kernel keeps answers
ROOT = 1


def attributes(node: int, path: Path) -> bytes:
    """Return what the kernel wants to know of a file."""
    found = path.stat()
    times = (int(found.st_mtime),) * 3
    nanoseconds = (found.st_mtime_ns % 10**9,) * 3
    rest = (found.st_mode, 1, found.st_uid, found.st_gid, 0, 4096, 0)
    blocks = -(-found.st_size // 512)
    return struct.pack("<6Q10I", node, found.st_size, blocks, *times, *nanoseconds, *rest)


class Disk:
    """Answers the kernel's questions about the files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.paths = [folder, *sorted(path for path in folder.iterdir() if path.is_file())]
        self.nodes = {path.name: i + ROOT for i, path in enumerate(self.paths)}
        self.is_broken = False

    def answer(self, opcode: int, node: int, body: bytes) -> bytes:
        """Return the answer to a question.

        Raises:
            OSError: the answer is an error.
        """
        if opcode == INIT:
            return struct.pack("<4I2H2I2H8I", 7, 31, 1 << 17, 0, 16, 8, 1 << 17, 1, 0, 0, *[0] * 8)
        if opcode == LOOKUP:
            found = self.nodes.get(body.rstrip(b"\0").decode())
            if found is None:
                raise OSError(errno.ENOENT, "")
            about = attributes(found, self.paths[found - ROOT])
            return struct.pack("<4Q2I", found, 0, LONG, LONG, 0, 0) + about
        if opcode == GETATTR:
            return struct.pack("<Q2I", LONG, 0, 0) + attributes(node, self.paths[node - ROOT])
        if opcode in (OPEN, OPENDIR):
            return struct.pack("<Q2I", 0, 0, 0)
        if opcode == READ:
            if self.is_broken:
                raise OSError(errno.EIO, "")
            _, offset, size = struct.unpack_from("<QQI", body)
            with self.paths[node - ROOT].open("rb") as file:
                return os.pread(file.fileno(), size, offset)
        if opcode in (READDIR, RELEASE, RELEASEDIR, FLUSH, DESTROY):
            return b""
        raise OSError(errno.ENOSYS, "")


def serve(device: int, disk: Disk) -> None:
    """Answer questions until stdin ends."""
    while True:
        ready, _, _ = select.select([device, sys.stdin], [], [])
        if sys.stdin in ready:
            if not sys.stdin.readline():
                return
            disk.is_broken = True
            print("broken", flush=True)
        if device in ready:
            question = os.read(device, 1 << 18)
            _, opcode, unique, node, *_ = HEADER.unpack_from(question)
            if opcode in UNANSWERED:
                continue
            error, answer = 0, b""
            try:
                answer = disk.answer(opcode, node, question[HEADER.size :])
            except OSError as caught:
                error = -(caught.errno or errno.EIO)
            os.write(device, struct.pack("<IiQ", 16 + len(answer), error, unique) + answer)


def main() -> None:
    folder, mount_point = Path(sys.argv[1]), os.fsencode(sys.argv[2])
    library = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode={stat.S_IFDIR:o},user_id=0,group_id=0".encode()
    if library.mount(b"failing_disk", mount_point, b"fuse", 0, options) != 0:
        raise OSError(ctypes.get_errno(), "mount")
    print("mounted", flush=True)
    try:
        serve(device, Disk(folder))
    finally:
        library.umount2(mount_point, 2)  # MNT_DETACH


if __name__ == "__main__":
    main()
