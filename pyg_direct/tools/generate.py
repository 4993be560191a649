"""The command `pyg-direct generate`; `arguments.py` says what it is for."""

from __future__ import annotations

import argparse

from ..files.choices import PowerLaw
from ..files.generate import generate
from ..files.progress import progress_bar
from . import arguments
from .made import made


def main(argv: list[str] | None = None) -> None:
    """Write a graph."""
    run(*arguments.generate(argv))


def run(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Write a graph, and print what was made."""
    graph = PowerLaw(
        num_nodes=args.nodes,
        num_edges=args.edges,
        num_features=args.features,
        num_classes=args.classes,
        num_groups=args.groups,
        skew=args.skew,
        homophily=args.homophily,
        signal=args.signal,
        train_share=args.train_share,
        dtype=args.dtype,
        seed=args.seed,
    )
    try:
        with progress_bar() as begin:
            advance = begin(args.nodes + args.edges)
            generate(graph, args.path, overwrite=args.overwrite, progress=advance)
    except (ValueError, FileExistsError) as error:
        parser.error(str(error))
    print(made(args.path))


if __name__ == "__main__":
    main()
