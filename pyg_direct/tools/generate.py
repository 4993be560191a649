"""The command `pyg-direct generate`; `arguments.py` says what it is for."""

from __future__ import annotations

import argparse

from ..files.choices import PowerLaw
from ..files.generate import generate
from ..files.progress import progress_bar
from . import arguments
from .command import refuse
from .made import made


def main(argv: list[str] | None = None) -> None:
    """Write a graph."""
    run(*arguments.generate(argv))


def run(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Write a graph, and print what was made."""
    options = {name: name.removeprefix("num_") for name in PowerLaw._fields}
    try:
        with progress_bar() as begin:
            advance = begin(args.nodes + args.edges)
            graph = PowerLaw(*(getattr(args, option) for option in options.values()))
            generate(graph, args.path, overwrite=args.overwrite, progress=advance)
    except (ValueError, OSError) as error:
        refuse(parser, error, options)
    print(made(args.path))


if __name__ == "__main__":
    main()
