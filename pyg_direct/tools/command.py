"""The command ``pyg-direct``, whose subcommands also run as ``python -m pyg_direct.NAME``."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from string import ascii_lowercase
from typing import NoReturn

from ..core.units import count_of

SUBCOMMANDS = {
    "info": "what this machine has, and what is misconfigured",
    "plan": "what batches will hold and where things fit, before there is a GPU",
    "convert": "edge lists and feature files to a graph in files",
    "generate": "a random graph in files",
    "audit": "whether batches over a saved graph leak the future or break their law",
}
PROGRAM = "pyg-direct"


def main(argv: Sequence[str] | None = None) -> None:
    """Run a subcommand with the arguments that follow its name."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Commands of pyg_direct, the data loader for PyTorch Geometric.",
        epilog="Example: pyg-direct info --no-bandwidth. `pyg-direct NAME --help` lists the "
        "arguments of a subcommand; `python -m pyg_direct.NAME` is the same.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = parser.add_subparsers(title="subcommands", dest="name", required=True, metavar="NAME")
    for name, what in SUBCOMMANDS.items():
        names.add_parser(name, help=what, add_help=False)
    given = list(sys.argv[1:] if argv is None else argv)
    chosen = parser.parse_args(given[:1]).name
    # Before the subcommand itself, which imports torch: wrong arguments are reported at once.
    arguments = importlib.import_module(".arguments", __package__)
    parsed = getattr(arguments, chosen)(given[1:])
    importlib.import_module(f".{chosen}", __package__).run(*parsed)


def run_as(name: str) -> None:
    """Run a subcommand with the arguments of the process, as of ``python -m``."""
    main([name, *sys.argv[1:]])


def report(bandwidth: bool = True) -> str:
    """Return what ``pyg-direct info`` prints.

    Args:
        bandwidth: measure the bandwidth to host memory, if there is a GPU that can be used.
    """
    text: str = importlib.import_module(".info", __package__).report(bandwidth=bandwidth)
    return text


def parser_of(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a subcommand, whose help keeps the lines of the description."""
    return argparse.ArgumentParser(
        prog=f"{PROGRAM} {name}",
        usage="%(prog)s ... (--help lists the arguments)",  # errors would repeat all of them
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def refuse_unused(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None, names: Iterable[str], why: str
) -> None:
    """End with an error if options without effect were given, with any value.

    Args:
        parser: of the arguments.
        argv: the arguments; None for those of the process.
        names: of the options, as attributes of the parsed arguments.
        why: they have no effect.
    """
    unset = object()
    known = vars(parser.parse_args(argv))
    found = parser.parse_args(argv, argparse.Namespace(**dict.fromkeys(known, unset)))
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(found, name) is not unset]
    if given:
        parser.error(f"{', '.join(given)} would have no effect {why}")


def refuse(
    parser: argparse.ArgumentParser, error: Exception, options: Mapping[str, str] | None = None
) -> NoReturn:
    """End with the error of a function; where it begins with an argument, name the option.

    Args:
        parser: of the arguments.
        error: such as "num_nodes must be an int of 1 or more, got 0."
        options: by arguments of the function, where the two are called differently.
    """
    text = str(error)
    argument = text[: len(text) - len(text.lstrip(ascii_lowercase + "_"))]
    option = f"--{(options or {}).get(argument, argument).replace('_', '-')}"
    if argument and f" {option} " in parser.format_help():
        text = option + text[len(argument) :]
    parser.error(text)


def count(text: str) -> int:
    """Return the number of an argument such as "1000" or "24K"; a type of argparse.

    Raises:
        ArgumentTypeError: it is not a number; the message names the accepted forms.
    """
    try:
        return count_of(text)
    except ValueError as error:
        # argparse hides the message of any other error.
        raise argparse.ArgumentTypeError(str(error).rstrip(".")) from error


def integers(text: str) -> list[int]:
    """Return the numbers of an argument such as "15,10,5"; a type of argparse.

    Raises:
        ArgumentTypeError: an entry between commas is not a whole number.
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"must be whole numbers between commas, as 15,10, got {text!r}"
        ) from error
