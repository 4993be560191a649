"""Run the benchmarks.

    python -m benchmarks cpu             # one benchmark; `--help` behind it lists its arguments
    python -m benchmarks all --quick     # all of them at toy sizes, to see that they run
    python -m benchmarks report          # write reports and the README's tables again

Results go to `benchmarks/results/`, as NAME.json and NAME.md.
"""

from __future__ import annotations

import sys

import torch

from benchmarks import child, report, result


def usage() -> str:
    """Return what there is to run."""
    rows = [(command.name, command.what) for command in result.COMMANDS.values()]
    rows += [
        ("all", "all of these, one after another"),
        ("report", "the reports of all results, and the tables of the README"),
    ]
    return f"{__doc__}\nCommands:\n" + "\n".join(f"    {name:<22}{what}" for name, what in rows)


def main(argv: list[str]) -> int:
    """Run what the first argument names with the others; return the exit status."""
    name, rest = (argv[0], argv[1:]) if argv else ("--help", [])
    if name in ("-h", "--help"):
        print(usage())
    elif name == "report":
        report.main(rest)
    elif name == "all":
        if "--quick" in rest:
            child.server()  # its imports take as long as those of the first benchmark
        for command in result.COMMANDS.values():
            if command.name != "gpu" or torch.cuda.is_available() or "--quick" in rest:
                print(f"== {command.name}", flush=True)
                command.load().main(rest)
    elif name in result.COMMANDS:
        result.COMMANDS[name].load().main(rest)
    else:
        print(f"There is no benchmark {name!r}.\n{usage()}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
