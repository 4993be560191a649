"""Files of saved graphs, changed as somebody would who knows about their checksums."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyg_direct.files.header import HEADER, checksum_of


def change_header(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads((folder / HEADER).read_text())
    change(content)
    content["crc32"] = checksum_of(content)
    (folder / HEADER).write_text(json.dumps(content))
