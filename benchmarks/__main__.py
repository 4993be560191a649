"""Run the benchmarks.

    python -m benchmarks cpu             # one benchmark; `--help` after it lists its arguments
    python -m benchmarks all             # all of them, but those that this code has measured
    python -m benchmarks all --quick     # all of them at toy sizes, to see that they run
    python -m benchmarks report          # write reports and the README's tables again

Results go to `benchmarks/results/`, as NAME.json and NAME.md.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Sequence

import torch

from benchmarks import child, report, result


def usage() -> str:
    """Return what there is to run."""
    rows = [(command.name, command.what) for command in result.COMMANDS.values()]
    rows += [
        ("all", "all of these whose results are not of this code, one after another"),
        ("report", "the reports of all results, and the tables of the README"),
    ]
    return f"{__doc__}\nCommands:\n" + "\n".join(f"    {name:<22}{what}" for name, what in rows)


def run_all(rest: Sequence[str]) -> list[str]:
    """Run all benchmarks with the same arguments; return the names of those that failed.

    Those whose results are complete and of the same sources are left out, so that a call goes on
    where one before it was stopped. Those of a GPU need one.
    """
    args, _ = result.parser(__doc__).parse_known_args(rest)
    if args.quick:
        child.server()  # its imports take as long as those of the first benchmark
    failed = []
    for command in result.COMMANDS.values():
        if command.name == "gpu" and not (torch.cuda.is_available() or args.quick):
            continue
        if not args.quick and result.is_complete(command.name, args.out):
            print(f"== {command.name}: measured by these sources")
            continue
        print(f"== {command.name}", flush=True)
        begin = time.monotonic()
        try:
            command.load().main(list(rest))
        except Exception:  # the others have results to give
            traceback.print_exc()
            failed.append(command.name)
        else:
            result.complete(command.name, args.out, (time.monotonic() - begin) / 60)
    return failed


def main(argv: list[str]) -> int:
    """Run what the first argument names with the others; return the exit status."""
    name, rest = (argv[0], argv[1:]) if argv else ("--help", [])
    if name in ("-h", "--help"):
        print(usage())
    elif name == "report":
        report.main(rest)
    elif name == "all":
        failed = run_all(rest)
        if failed:
            print(f"These failed: {', '.join(failed)}.", file=sys.stderr)
            return 1
    elif name in result.COMMANDS:
        result.COMMANDS[name].load().main(rest)
    else:
        print(f"There is no benchmark {name!r}.\n{usage()}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
