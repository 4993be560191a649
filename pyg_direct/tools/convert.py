"""The command `pyg-direct convert`; `arguments.py` says what it is for."""

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
from ..files.convert.spec import ArraySource, EdgeSpec, GraphSpec, NodeSpec, spec_of
from ..files.progress import progress_bar
from ..files.save import save
from . import arguments
from .command import refuse
from .made import made

STORED = ("feature_dtype", "feature_scale", "time_attr", "weight_attr")
WITH_EDGES = ("num_nodes", "node", "edge", "mask", "key", "header")


def main(argv: list[str] | None = None) -> None:
    """Convert a graph."""
    run(*arguments.convert(argv))


def run(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Convert a graph, and print what was made."""
    try:
        _check_with_edges(args)
        if args.pyg is not None:
            _save(args)
        else:
            with progress_bar() as begin:
                convert(
                    replace(_spec(args), **{name: getattr(args, name) for name in STORED}),
                    args.out,
                    memory_bytes=args.memory,
                    overwrite=args.overwrite,
                    progress=begin,
                )
    except (ValueError, ImportError, OSError) as error:
        refuse(parser, error)
    print(made(args.out))


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


def _check_changes(args: argparse.Namespace, option: str, reason: str) -> None:
    """Raise a ValueError if changes of edges are given beside `option`, which allows none."""
    if args.symmetrise is not None or args.deduplicate or args.self_loops != "keep":
        raise ValueError(f"Edges are not changed with {option}: {reason}.")


def _spec(args: argparse.Namespace) -> GraphSpec:
    """Return the specification that the arguments give.

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
