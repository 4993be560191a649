"""Generate a random graph in files.

    pyg-direct generate graph --nodes 1M --edges 10M --features 128

A power-law graph with labels that a GNN can learn, for `pyg_direct.open`: to try what a graph of
that size takes on this machine.
"""

from __future__ import annotations

from pathlib import Path

from ..files.generate import DTYPES, ROOTS, PowerLaw, generate
from ..files.progress import progress_bar
from .command import count, parser_of

DEFAULTS = PowerLaw(0, 0)


def main(argv: list[str] | None = None) -> None:
    """Write a graph."""
    parser = parser_of("generate", __doc__)
    parser.add_argument("path", type=Path, help="the new directory")
    parser.add_argument("--nodes", type=count, default="1M", help="such as 111M (default 1M)")
    parser.add_argument("--edges", type=count, default="10M", help="such as 1.6B (default 10M)")
    parser.add_argument("--features", type=count, default=DEFAULTS.num_features)
    parser.add_argument("--dtype", choices=DTYPES, default=DEFAULTS.dtype, help="of the features")
    parser.add_argument("--classes", type=count, default=DEFAULTS.num_classes)
    parser.add_argument("--groups", type=count, help="communities; as many as classes if left out")
    parser.add_argument("--skew", type=int, choices=list(ROOTS), default=DEFAULTS.skew)
    parser.add_argument("--homophily", type=float, default=DEFAULTS.homophily)
    parser.add_argument("--signal", type=float, default=DEFAULTS.signal)
    parser.add_argument("--train-share", type=float, default=DEFAULTS.train_share)
    parser.add_argument("--seed", type=int, default=DEFAULTS.seed)
    parser.add_argument("--overwrite", action="store_true", help="replace a saved graph at PATH")
    args = parser.parse_args(argv)
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


if __name__ == "__main__":
    main()
