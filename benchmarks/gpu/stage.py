"""One stage of `benchmarks.gpu`, in a process of its own, so that no failure spoils another stage.

python -m benchmarks.gpu.stage CONFIG.json
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from benchmarks.gpu.device import Context
from benchmarks.gpu.needs import MissingError
from benchmarks.gpu.plan import STAGES, Plan


def main(argv: list[str] | None = None) -> None:
    """Run the stage that the file names."""
    (path,) = sys.argv[1:] if argv is None else argv
    config = json.loads(Path(path).read_text())
    stage = next(stage for stage in STAGES if stage.name == config["stage"])
    module, _, function = stage.function.partition(":")
    context = Context(
        config["dry"], Plan(*config["plan"]), Path(config["folder"]), Path(config["out"]),
        Path(config["logs"]), config["deadline"], config.get("archives", ()),
    )  # fmt: skip
    try:
        getattr(importlib.import_module(module), function)(context)
    except MissingError as missing:
        context.keep("not_run", str(missing))


if __name__ == "__main__":
    main()
