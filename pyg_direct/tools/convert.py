"""Convert edge lists and files of attributes to a graph in files.

Edge lists and features in .npz, .npy, .pt, text (CSV, SNAP, KONECT, Matrix Market, also .gz),
parquet or folders of parts become a directory for `pyg_direct.open`, in bounded memory. An
interrupted conversion goes on when run again.

    pyg-direct convert graph --edges edges.csv.gz --node x=features.npy --memory 6G
    pyg-direct convert graph --edges cites.tsv --node y=papers.csv:label --key y=paper --ids names
    pyg-direct convert graph --ogb ogbn_papers100M --symmetrise --feature-dtype int8
    pyg-direct convert graph --pyg processed/data.pt
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

from ..files.convert.array_rows import graph_of_file, load
from ..files.convert.convert import convert
from ..files.convert.ogb import ogb_spec
from ..files.convert.opening import holds_arrays
from ..files.convert.spec import (
    FEATURE_DTYPES,
    IDS,
    SCALES,
    SELF_LOOPS,
    ArraySource,
    EdgeSpec,
    GraphSpec,
    NodeSpec,
    spec_of,
)
from ..files.progress import progress_bar
from ..files.save import save
from .command import count, parser_of

STORED = ("feature_dtype", "feature_scale", "time_attr", "weight_attr")
WITH_EDGES = ("num_nodes", "node", "edge", "mask", "key", "header")


def main(argv: list[str] | None = None) -> None:
    """Convert a graph."""
    parser = parser_of("convert", __doc__)
    parser.add_argument("out", type=Path, help="the new directory")
    inputs = parser.add_mutually_exclusive_group(required=True)
    inputs.add_argument("--edges", metavar="FILE", help="ends of edges: [2, E], [E, 2] or columns")
    inputs.add_argument("--ogb", type=Path, metavar="FOLDER", help="a node data set, unpacked")
    inputs.add_argument("--pyg", type=Path, metavar="FILE", help="a Data, HeteroData or data.pt")
    inputs.add_argument("--spec", type=Path, metavar="JSON", help="what to convert, in full")
    files = parser.add_argument_group("with --edges")
    files.add_argument("--num-nodes", type=count, help="if no attribute shows it; such as 111M")
    files.add_argument("--node", action="append", default=[], metavar="NAME=FILE")
    files.add_argument("--edge", action="append", default=[], metavar="NAME=FILE")
    files.add_argument(
        "--mask", action="append", default=[], metavar="NAME=FILE", help="true for the ids in FILE"
    )
    files.add_argument(
        "--key",
        action="append",
        default=[],
        metavar="NAME=COLUMN",
        help="the column of an attribute's table that has the ids of the nodes",
    )
    files.add_argument("--ids", choices=IDS, default="numbers", help="names are numbered")
    files.add_argument("--first-id", type=count, default=0, help="number of the first node: 0 or 1")
    files.add_argument(
        "--header",
        action=argparse.BooleanOptionalAction,
        help="text begins with names of columns, or not (default: find out)",
    )
    changes = parser.add_argument_group("with --edges or --ogb")
    changes.add_argument(
        "--symmetrise",
        action=argparse.BooleanOptionalAction,
        help="add the reverse of every edge (default: for symmetric matrices)",
    )
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
        _check_with_edges(args)
        if args.pyg is not None:
            _save(args)
            return
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


def _check_with_edges(args: argparse.Namespace) -> None:
    """Raise a ValueError for an option that says nothing without --edges."""
    given = any(getattr(args, name) not in (None, []) for name in WITH_EDGES)
    if not args.edges and (given or args.ids != "numbers" or args.first_id):
        raise ValueError(
            "--num-nodes, --node, --edge, --mask, --key, --ids, --first-id and --header go with "
            "--edges."
        )


def _save(args: argparse.Namespace) -> None:
    """Save a graph of PyG that is in a file, with all that it has.

    Raises:
        ValueError: no such graph, or options that change one.
    """
    _check_changes(args, "--pyg", "the graph is saved as it is. Its edges alone: --edges FILE")
    if args.feature_dtype is not None:
        raise ValueError("--feature-dtype does not go with --pyg: quantize data.x, and save it.")
    path = Path(os.path.abspath(args.pyg))
    try:
        data = graph_of_file(load(path))
    except ValueError as error:
        raise ValueError(f"{path} cannot be converted: {error}") from None
    save(
        data,
        args.out,
        overwrite=args.overwrite,
        time_attr=args.time_attr,
        weight_attr=args.weight_attr,
    )


def _check_changes(args: argparse.Namespace, option: str, told: str) -> None:
    """Raise a ValueError if edges are to be changed, where `option` says what is converted."""
    if args.symmetrise is not None or args.deduplicate or args.self_loops != "keep":
        raise ValueError(f"Edges are not changed with {option}: {told}.")


def _spec(args: argparse.Namespace) -> GraphSpec:
    """Return what the arguments say is to be converted, to be stored as it is.

    Raises:
        ValueError: arguments that do not go together.
    """
    changes = {name: getattr(args, name) for name in ("symmetrise", "deduplicate", "self_loops")}
    if args.spec is not None:
        _check_changes(args, "--spec", "the changes of edges are in the JSON file")
        return spec_of(Path(os.path.abspath(args.spec)))
    if args.ogb is not None:
        spec = ogb_spec(Path(os.path.abspath(args.ogb)), args.symmetrise)
        edges = [replace(edge, **changes) for edge in spec.edges]
        return replace(spec, edges=edges)
    masks = {k: replace(v, lists_ids=True) for k, v in _attributes(args.mask).items()}
    attributes = {**_attributes(args.node), **masks}
    for argument in args.key:
        name, equals, column = argument.partition("=")
        if not equals or name not in attributes:
            raise ValueError(
                f"--key is NAME=COLUMN, where --node or --mask has the NAME, got {argument!r}."
            )
        attributes[name] = replace(attributes[name], key=column)
    nodes = NodeSpec(
        None,
        args.num_nodes,
        {k: replace(v, header=args.header) for k, v in attributes.items()},
        args.ids,
        args.first_id,
    )
    of_edges = {k: replace(v, header=args.header) for k, v in _attributes(args.edge).items()}
    ends = replace(_source(args.edges), header=args.header)
    return GraphSpec([nodes], [EdgeSpec(None, ends, of_edges, **changes)])


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
    if holds_arrays(file):
        return ArraySource(os.path.abspath(file), key)
    return ArraySource(os.path.abspath(file), columns=tuple(key.split(",")))


if __name__ == "__main__":
    main()
