"""Convert edge lists and files of attributes to a graph in files.

Edge lists and features in .npz, .npy, .pt, CSV (also .gz) or parquet become a directory for
`pyg_direct.open`, in bounded memory. An interrupted conversion goes on when run again.

    pyg-direct convert graph --edges edges.csv.gz --node x=features.npy --memory 6G
    pyg-direct convert graph --ogb ogbn_papers100M --symmetrise --feature-dtype int8
    pyg-direct convert graph --spec graph.json --time-attr year

FILE may be FILE:KEY, where KEY names an array of an .npz or .pt, or columns of a table, as in
edges.csv:a,b. Heterogeneous graphs, other dtypes and values for empty fields take a
JSON file (--spec, see docs/guides/large_graphs.md).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..files.convert.convert import convert
from ..files.convert.spec import (
    FEATURE_DTYPES,
    SCALES,
    SELF_LOOPS,
    ArraySource,
    EdgeSpec,
    GraphSpec,
    NodeSpec,
    ogb_spec,
    spec_of,
)
from ..files.progress import progress_bar
from .command import count, parser_of

STORED = ("feature_dtype", "feature_scale", "time_attr", "weight_attr")
TABLES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")


def main(argv: list[str] | None = None) -> None:
    """Convert a graph."""
    parser = parser_of("convert", __doc__)
    parser.add_argument("out", type=Path, help="the new directory")
    inputs = parser.add_mutually_exclusive_group(required=True)
    inputs.add_argument("--edges", metavar="FILE", help="ends of edges: [2, E], [E, 2] or columns")
    inputs.add_argument("--ogb", type=Path, metavar="FOLDER", help="as ogbn-papers100M's unpacked")
    inputs.add_argument("--spec", type=Path, metavar="JSON", help="what to convert, in full")
    files = parser.add_argument_group("with --edges")
    files.add_argument("--num-nodes", type=count, help="if no attribute shows it; such as 111M")
    files.add_argument("--node", action="append", default=[], metavar="NAME=FILE")
    files.add_argument("--edge", action="append", default=[], metavar="NAME=FILE")
    files.add_argument(
        "--mask", action="append", default=[], metavar="NAME=FILE", help="true for the ids in FILE"
    )
    changes = parser.add_argument_group("with --edges or --ogb")
    changes.add_argument("--symmetrise", action="store_true", help="add the reverse of every edge")
    changes.add_argument("--deduplicate", action="store_true", help="keep the first of equal edges")
    changes.add_argument("--self-loops", choices=SELF_LOOPS, default="keep")
    stored = parser.add_argument_group("what is stored")
    stored.add_argument("--feature-dtype", choices=FEATURE_DTYPES, help="store x in fewer bits")
    stored.add_argument(
        "--feature-scale", choices=SCALES, default="column", help="one factor of int8 for each"
    )
    stored.add_argument("--time-attr", metavar="NAME", help="sort neighbours by this attribute")
    stored.add_argument("--weight-attr", metavar="NAME", help="make tables for weighted draws")
    parser.add_argument("--memory", type=count, default="4G", help="to use (default 4G)")
    parser.add_argument("--overwrite", action="store_true", help="replace a saved graph at OUT")
    args = parser.parse_args(argv)
    try:
        with progress_bar() as begin:
            convert(
                replace(_spec(args), **{name: getattr(args, name) for name in STORED}),
                args.out,
                memory_bytes=args.memory,
                overwrite=args.overwrite,
                progress=begin,
            )
    except (ValueError, ImportError, OSError) as error:
        parser.error(str(error))


def _spec(args: argparse.Namespace) -> GraphSpec:
    """Return what the arguments say is to be converted, to be stored as it is."""
    changes = {name: getattr(args, name) for name in ("symmetrise", "deduplicate", "self_loops")}
    given = args.num_nodes is not None or args.node or args.edge or args.mask
    if given and not args.edges:
        raise ValueError("--num-nodes, --node, --edge and --mask go with --edges.")
    if args.spec is not None:
        if any((args.symmetrise, args.deduplicate, args.self_loops != "keep")):
            raise ValueError("With --spec, the changes of edges are in the JSON file.")
        return spec_of(Path(os.path.abspath(args.spec)))
    if args.ogb is not None:
        spec = ogb_spec(Path(os.path.abspath(args.ogb)))
        edges = [replace(edge, **changes) for edge in spec.edges]
        return replace(spec, edges=edges)
    masks = {k: replace(v, lists_ids=True) for k, v in _attributes(args.mask).items()}
    nodes = NodeSpec(None, args.num_nodes, {**_attributes(args.node), **masks})
    edges = [EdgeSpec(None, _source(args.edges), _attributes(args.edge), **changes)]
    return GraphSpec([nodes], edges)


def _attributes(arguments: Sequence[str]) -> dict[str, ArraySource]:
    """Return the sources of arguments such as "x=features.npz:node_feat"."""
    found = {}
    for argument in arguments:
        name, equals, file = argument.partition("=")
        if not (name.isidentifier() and equals and file):
            raise ValueError(f"An attribute is given as NAME=FILE or NAME=FILE:KEY: {argument!r}.")
        if name in found:
            raise ValueError(f"The attribute {name} is given twice.")
        found[name] = _source(file)
    return found


def _source(text: str) -> ArraySource:
    """Return the source of a text such as "edges.csv:from,to"."""
    file, colon, key = text.rpartition(":")
    if not colon or os.path.exists(text):
        return ArraySource(os.path.abspath(text))
    path = os.path.abspath(file)
    if path.lower().endswith(TABLES):
        return ArraySource(path, columns=tuple(key.split(",")))
    return ArraySource(path, key)


if __name__ == "__main__":
    main()
