"""The arguments of the commands, read and checked before torch is imported.

Each function reads the arguments of the subcommand of its name.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..files.choices import DTYPES, FEATURE_DTYPES, IDS, ROOTS, SCALES, SELF_LOOPS, PowerLaw
from .command import count, integers, parser_of, refuse_unused

Asked = tuple[argparse.ArgumentParser, argparse.Namespace]

PLAN = """What batches will hold and where things fit, before there is a GPU.

    pyg-direct plan --nodes 2400000 --edges 62000000 --fanout 15,10,5 --features 100
    pyg-direct plan --graph data.pt --fanout 15,10,5 --machine pcie4-24gb
    pyg-direct plan --graph typed.pt --seed-type paper --fanout 10,5 --cache-dtype int8
    pyg-direct plan --degrees in_degrees.npy --fanout 10,10 --features 768 --dtype float16
    pyg-direct plan --nodes 2400000 --edges 62000000 --plot plan.svg
    pyg-direct plan --graph data.pt --fanout 10,10,10 --ranks 4 --owners hash ldg --link 25

Some batches are sampled on the CPU: of the graph, if it is given (by ``torch.save`` or
`pyg_direct.save`), else of a random graph with its degrees, or with degrees by a power law. So
counts are those of the graph within the spread between batches; of a random graph they are off
where the graph has communities.
Times of PCIe are lower limits, computed from its nominal bandwidth (an H100 read 50.6 of 63 GB/s).
"""

CONVERT = """Convert edge lists and files of attributes to a graph in files.

Edge lists and features in .npz, .npy, .pt, text (CSV, SNAP, KONECT, Matrix Market, also .gz),
parquet or folders of parts become a directory for `pyg_direct.open`, in bounded memory. An
interrupted conversion resumes when it is run again.

    pyg-direct convert graph --edges edges.csv.gz --node x=features.npy --memory 6G
    pyg-direct convert graph --edges cites.tsv --node y=papers.csv:label --key y=paper --ids names
    pyg-direct convert graph --ogb ogbn_papers100M --symmetrise --feature-dtype int8
    pyg-direct convert graph --pyg processed/data.pt
    pyg-direct convert graph --spec graph.json --time-attr year

FILE may be FILE:KEY, where KEY names an array of an .npz or .pt, or columns of a table, as in
edges.csv:a,b. Heterogeneous graphs, other dtypes and values for empty fields take a
JSON file (--spec, see docs/guides/large_graphs.md).
"""

GENERATE = """Generate a random graph in files.

    pyg-direct generate graph --nodes 1M --edges 10M --features 128

A power-law graph with labels that a GNN can learn, for `pyg_direct.open`: to try what a graph of
that size takes on this machine.
"""

AUDIT = """Check on your own data that batches obey their law: no leak, no edge too many.

    pyg-direct audit graph --fanout 15,10 --time-attr time
    pyg-direct audit graph --fanout 10,5 --weight-attr weight --batches 200
    pyg-direct audit graph --fanout 10,5 --time-attr edge_time --seed-time 1700000000

Reads a graph that `pyg_direct.save`, `convert` or `generate` wrote, samples around its nodes, and
looks every edge of the batches up in the graph. Exit code: 0 without a finding, 1 with some, 2 for
wrong arguments. For your own loader, with its links and transforms, call `pyg_direct.audit`.
"""

INFO = """Report what this machine has, which device a loader would use, and what is misconfigured.

    pyg-direct info                 # measures the bandwidth and checks the GPU's batches
    pyg-direct info --no-bandwidth  # creates no CUDA context
    pyg-direct info --compile       # compiles the CPU kernels, as while an image is built

`report` gives the same text. It never raises: what cannot be found out is "unknown (why)".
"""

COLUMNS = 100  # of features, where nothing tells
DTYPE = "float32"  # of features, likewise
WIDTHS = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
PICTURES = (".svg", ".png", ".pdf")
MAX_EDGES = 200_000_000  # of a random graph; larger ones need more memory than a plan is worth
HASH, LDG = "hash", "ldg"  # who owns nodes
OF_RANKS = ("owners", "widths", "tflops", "link")  # options that need several ranks
DEFAULT = "(default: %(default)s)"


class GpuModel(NamedTuple):
    """What a GPU has; nominal figures."""

    gpu_bytes: int
    link_bytes_per_s: float
    source: str


# Bandwidth of 16 lanes in one direction: 8, 16 and 32 GT/s with 128b/130b encoding.
_PCIE = "PCI Express Base Specification, revision {}.0, 16 lanes in one direction"
MACHINES = {
    "pcie3-16gb": GpuModel(16 << 30, 15.75e9, _PCIE.format(3)),
    "pcie4-24gb": GpuModel(24 << 30, 31.5e9, _PCIE.format(4)),
    "pcie4-80gb": GpuModel(80 << 30, 31.5e9, _PCIE.format(4)),
    "pcie5-80gb": GpuModel(80 << 30, 63.0e9, _PCIE.format(5)),
}


def plan(argv: Sequence[str] | None) -> Asked:
    """Return the arguments of a plan."""
    parser = parser_of("plan", PLAN)
    add = parser.add_argument
    add("--graph", type=Path, help="a Data or HeteroData, by torch.save or pyg_direct.save")
    add("--degrees", type=Path, help=".npy with the in-degree of each node, of a random graph")
    add("--nodes", type=count, help="of a random graph; such as 2.4M")
    add("--edges", type=count, help="of a random graph; such as 62M")
    skew = "of a random graph: 1 for equal degrees, more for larger hubs; 3 gives a power law of"
    add("--skew", type=float, default=3.0, help=f"{skew} exponent 2.5 {DEFAULT}")
    add("--fanout", type=integers, default="15,10,5", help=f"neighbours, hop by hop {DEFAULT}")
    add("--batch-size", type=count, default=1024, help=f"seeds of a batch {DEFAULT}")
    add("--sampling", choices=("uniform", "labor"), default="uniform", help=DEFAULT)
    add("--features", type=count, help=f"columns, if the graph has no x (default: {COLUMNS})")
    add(
        "--dtype", choices=WIDTHS, help=f"of the features, if the graph has no x (default: {DTYPE})"
    )
    add("--cache-dtype", choices=WIDTHS, help="of cached rows (default: as the features)")
    add("--seed-type", help="node type of the seeds, of a graph with types")
    cores = os.cpu_count() or 1
    add("--cores", type=int, default=cores, help="that sample at a time (default: all of this CPU)")
    add("--seeds", type=count, help="of an epoch (default: all nodes)")
    add("--machine", choices=MACHINES, default="pcie4-24gb", help=f"with which GPU {DEFAULT}")
    add("--gpu-bytes", type=count, help="GPU memory, such as 16G (default: the machine's)")
    add("--link-bytes-per-s", type=float, help="of PCIe, such as 25e9 (default: the machine's)")
    add("--plot", type=Path, metavar="FILE", help="write a picture, too (.svg, .png, .pdf)")
    ranks = parser.add_argument_group("ranks that take a step together")
    add = ranks.add_argument
    add("--ranks", type=int, default=1, help=f"how many, with --batch-size each {DEFAULT}")
    owners = f"of nodes: {HASH}, {LDG} (parts by greedy passes), or a file with the part of each"
    add("--owners", nargs="+", default=[HASH], help=f"{owners} (default: {HASH})")
    add("--widths", type=integers, default="128", help=f"columns of layers: one or each {DEFAULT}")
    add("--tflops", type=float, default=10.0, help=f"of a rank, for its layers {DEFAULT}")
    add("--link", type=float, metavar="GB/S", help="at which a rank sends to others")
    args = parser.parse_args(argv)
    _check_plan(parser, args, argv)
    return parser, args


def _check_plan(
    parser: argparse.ArgumentParser, args: argparse.Namespace, argv: Sequence[str] | None
) -> None:
    """End with an error if arguments of a plan do not go together."""
    if args.plot is not None and args.plot.suffix not in PICTURES:
        parser.error(f"--plot must end in one of {', '.join(PICTURES)}, got {args.plot}")
    for name in ("batch_size", "cores", "ranks", "seeds"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            option = name.replace("_", "-")
            parser.error(f"--{option} must be at least 1, got {getattr(args, name)}")
    random = ("skew", "nodes", "edges")
    if args.graph is not None:
        refuse_unused(parser, argv, (*random, "degrees"), "with --graph, which has its own edges")
    elif args.degrees is not None:
        refuse_unused(parser, argv, random, "with --degrees, which says what the edges are")
    elif not (args.nodes and args.edges):
        parser.error("Give --graph, --degrees, or --nodes and --edges")
    elif args.edges > MAX_EDGES:
        parser.error(f"A random graph has {MAX_EDGES:,} edges at most here, got {args.edges:,}")
    if args.graph is None and args.seed_type is not None:
        parser.error("--seed-type needs --graph with node types")
    if args.ranks == 1:
        refuse_unused(parser, argv, OF_RANKS, "without --ranks of at least 2")
    for name in ("link", "tflops"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            parser.error(f"--{name} must be above 0, got {value}")
    given, hops = args.widths, len(args.fanout)
    args.widths = given * hops if len(given) == 1 else given
    if len(args.widths) != hops or min(args.widths) < 1:
        parser.error(f"--widths must be one number above 0, or {hops} for as many hops: {given}")


def convert(argv: Sequence[str] | None) -> Asked:
    """Return what a conversion is asked for."""
    parser = parser_of("convert", CONVERT)
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
    files.add_argument("--ids", choices=IDS, default="numbers", help=f"of nodes {DEFAULT}")
    files.add_argument("--first-id", type=count, default=0, help=f"of nodes, 0 or 1 {DEFAULT}")
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
    changes.add_argument("--self-loops", choices=SELF_LOOPS, default="keep", help=DEFAULT)
    stored = parser.add_argument_group("what is stored")
    stored.add_argument("--feature-dtype", choices=FEATURE_DTYPES, help="store x in fewer bits")
    stored.add_argument(
        "--feature-scale",
        choices=SCALES,
        default="column",
        help=f"of int8 {DEFAULT}",
    )
    stored.add_argument("--time-attr", metavar="NAME", help="sort neighbours by this attribute")
    stored.add_argument("--weight-attr", metavar="NAME", help="make tables for weighted draws")
    parser.add_argument("--memory", type=count, default="4G", help=f"to use {DEFAULT}")
    parser.add_argument("--overwrite", action="store_true", help="replace a saved graph at OUT")
    args = parser.parse_args(argv)
    return parser, args


def generate(argv: Sequence[str] | None) -> Asked:
    """Return the arguments of a generated graph."""
    parser, defaults = parser_of("generate", GENERATE), PowerLaw(0, 0)
    add = parser.add_argument
    add("path", type=Path, help="the new directory")
    add("--nodes", type=count, default="1M", help=f"such as 111M {DEFAULT}")
    add("--edges", type=count, default="10M", help=f"such as 1.6B {DEFAULT}")
    add("--features", type=count, default=defaults.num_features, help=f"columns of x {DEFAULT}")
    add("--dtype", choices=DTYPES, default=defaults.dtype, help=f"of the features {DEFAULT}")
    add("--classes", type=count, default=defaults.num_classes, help=f"of the labels {DEFAULT}")
    add("--groups", type=count, help="communities (default: as many as classes)")
    skew = "1 for equal degrees, 2 or 4 for power laws of exponent 3 and 2.33"
    add("--skew", type=int, choices=list(ROOTS), default=defaults.skew, help=f"{skew} {DEFAULT}")
    homophily = "share of the edges that are drawn within a community"
    add("--homophily", type=float, default=defaults.homophily, help=f"{homophily} {DEFAULT}")
    signal = "how much features tell of the class, from 0 to 1"
    add("--signal", type=float, default=defaults.signal, help=f"{signal} {DEFAULT}")
    share = "share of the nodes in train_mask"
    add("--train-share", type=float, default=defaults.train_share, help=f"{share} {DEFAULT}")
    add("--seed", type=int, default=defaults.seed, help=f"of the draws {DEFAULT}")
    add("--overwrite", action="store_true", help="replace a saved graph at PATH")
    return parser, parser.parse_args(argv)


def audit(argv: Sequence[str] | None) -> Asked:
    """Return the arguments of an audit."""
    parser = parser_of("audit", AUDIT)
    add = parser.add_argument
    add("path", help="of the saved graph")
    add("--fanout", type=integers, default="15,10", help=f"hop by hop, -1 for all {DEFAULT}")
    add("--batches", type=count, default=100, help=f"how many are looked at {DEFAULT}")
    add("--batch-size", type=count, default=512, help=f"seeds of a batch {DEFAULT}")
    add("--seed-type", help="node type of the seeds, of a graph with types")
    add("--seed-time", type=int, help="of all seeds (default: their own)")
    add("--time-attr", help="attribute with the times, which no batch may be ahead of")
    add("--time-window", type=int, help="oldest time before that of the seed (default: none)")
    add("--weight-attr", help="attribute of edges that draws go by")
    add("--strategy", choices=("uniform", "last"), default="uniform", help=DEFAULT)
    add("--seed", type=int, default=0, help=f"of the draws {DEFAULT}")
    args = parser.parse_args(argv)
    if args.time_attr is None:
        refuse_unused(parser, argv, ("seed_time", "strategy"), "without --time-attr")
    return parser, args


def info(argv: Sequence[str] | None) -> Asked:
    """Return the arguments of a report."""
    parser = parser_of("info", INFO)
    parser.add_argument("--no-bandwidth", action="store_true", help="do not measure: use no GPU")
    parser.add_argument(
        "--compile", action="store_true", help="compile the CPU kernels and keep them, then report"
    )
    return parser, parser.parse_args(argv)
