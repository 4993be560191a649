"""Plant faults one at a time in a copy of the tree, and tell by room what noticed each.

    python -m tests.planted                      # all; takes hours
    python -m tests.planted --room sampling      # those of one room
    python -m tests.planted --share 10 --seed 7  # one in ten, drawn at random
    python -m tests.planted --name "two words"   # those whose name has these words
    python -m tests.planted --since HEAD~3       # made in the lines that were changed since
    python -m tests.planted --measure FOLDER     # once: which tests execute a line, for --measured

The tests nearest to a fault run first, then those of its room, then the slow ones among both; with
`--measured` the default tests that execute its lines, the nearest and the cheapest first, and the
other nearest ones. Exits with 1 if a fault was noticed by none of them and is not known to change
no result.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from .copies import Copy
from .fault import FAULTS, Fault, is_of
from .generated import generated, since
from .measured import Measured, measure
from .rooms import ROOMS
from .runs import Outcome, in_session, prepare, run
from .swaps import swaps_of

COMPILED = ("kernels", "cuda")  # rooms whose faults take seconds of a compiler
STAGES = ("near", "room", "slow")


class Finding(NamedTuple):
    """What noticed a fault."""

    fault: Fault
    stage: str  # one of `STAGES`, "" where nothing did
    outcome: Outcome


def tests_of(fault: Fault, stage: str) -> tuple[list[str], str]:
    """Return the tests of a stage of a fault, and which marks they have."""
    near, room = fault.near.split(), list(ROOMS[fault.room])
    if stage == "near":
        return near, "slow or not slow" if fault.slow else "not slow"
    if stage == "room":
        return room, "not slow"
    return [*near, *(path for path in room if path not in near)], "slow"


def find(fault: Fault, copy: Copy, stages: Sequence[str], wrong: Sequence[str] = ()) -> Finding:
    """Plant a fault, and run tests until one notices it, each stage in a run of its own.

    Args:
        fault, copy, stages: what is planted where, and which tests run.
        wrong: tests that failed without the fault, too, for the report.
    """
    left_out, seconds = list[str](), 0.0
    while True:
        stage, outcome = _first(fault, copy, stages, left_out)
        seconds += outcome.seconds
        function = outcome.by[0].partition("[")[0] if outcome.by else ""
        if "::" in function and run(copy.root, [function], "slow or not slow", None).by:
            left_out.append(function)
            continue
        wrong = tuple(dict.fromkeys([*wrong, *left_out]))
        return Finding(fault, stage, outcome._replace(seconds=seconds, wrong=wrong))


def _first(
    fault: Fault, copy: Copy, stages: Sequence[str], left_out: Sequence[str]
) -> tuple[str, Outcome]:
    """Return in which stage a test fails first with a fault, "" if none does, and which it is."""
    seconds = 0.0
    with copy.planted(fault) as stamp:
        for stage in stages:
            outcome = run(copy.root, *tests_of(fault, stage), stamp, left_out)
            seconds += outcome.seconds
            if outcome.by:
                stage = "slow" if stage == "near" and fault.slow else stage
                return stage, outcome._replace(seconds=seconds)
    return "", Outcome([], 0, seconds)


def find_all(
    faults: Sequence[Fault], copy: Copy, stages: Sequence[str], measured: Measured | None
) -> Iterator[Finding]:
    """Plant faults one by one: those first that can be swapped into functions.

    These share a session, in which the `measured` tests of a line come in place of a room's. What
    it does not notice gets a process of its own, as faults do that cannot be swapped.
    """
    apart = [f for f in faults if f.slow or not swaps_of(f, copy.root)]
    shared = [f for f in faults if f not in apart]
    wrong = dict[str, Sequence[str]]()
    early = [stage for stage in stages if stage != "slow"]
    chosen = {f.name: [t for stage in early for t in tests_of(f, stage)[0]] for f in shared}

    def choose(fault: Fault, names: Sequence[str]) -> list[str]:
        if measured is not None:
            return measured.tests_of(fault, copy.root, names)
        return [name for test in chosen[fault.name] for name in names if is_of(name, test)]

    given = [test for tests in chosen.values() for test in tests]
    files = {test.partition("::")[0] for test in given} if measured is None else {"tests"}
    for fault, outcome in in_session(copy, shared, sorted(files), choose):
        if outcome is None or not (outcome.by or fault.equivalent):
            apart.append(fault)
            wrong[fault.name] = outcome.wrong if outcome is not None else ()
        else:
            near = any(is_of(by, test) for by in outcome.by for test in fault.near.split())
            yield Finding(fault, ("near" if near else "room") if outcome.by else "", outcome)
    for fault in apart:
        yield find(fault, copy, stages, wrong.get(fault.name, ()))


def report(findings: Sequence[Finding]) -> str:
    """Return how many faults of each room were noticed by what, and which were not."""
    lines = [f"{'room':12}{'planted':>9}{'near':>6}{'room':>6}{'slow':>6}{'equal':>7}{'missed':>8}"]
    for room in dict.fromkeys(finding.fault.room for finding in findings):
        mine = [finding for finding in findings if finding.fault.room == room]
        count = Counter(finding.stage for finding in mine)
        equal = sum(f.stage == "" and f.fault.equivalent != "" for f in mine)
        numbers = [len(mine), *(count[s] for s in STAGES), equal, count[""] - equal]
        widths = (9, 6, 6, 6, 7, 8)
        lines.append(f"{room:12}" + "".join(map("{:>{}}".format, numbers, widths)))
    for finding in missed(findings):
        lines.append(f"not noticed: {finding.fault.name} ({finding.fault.file})")
    return "\n".join(lines)


def missed(findings: Sequence[Finding]) -> list[Finding]:
    """Return the faults that nothing noticed and that somebody could."""
    return [f for f in findings if f.stage == "" and f.fault.equivalent == ""]


def chosen(share: int, seed: int, cheap: bool = False) -> list[Fault]:
    """Return one in `share` of the faults, drawn at random, those of a file together.

    Those are `cheap` whose nearest tests are named one by one, and that compile no kernel.
    """
    faults = [f for f in FAULTS if not cheap or ("::" in f.near and f.room not in COMPILED)]
    drawn = random.Random(seed).sample(range(len(faults)), -(-len(faults) // share))
    return [faults[i] for i in sorted(drawn)]


def main(argv: Sequence[str] | None = None) -> int:
    """Plant the faults that are asked for."""
    parser = argparse.ArgumentParser(
        "python -m tests.planted", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--room", action="append", choices=sorted(ROOMS), help="may be repeated")
    parser.add_argument("--name", default="", help="words in the names of the faults")
    parser.add_argument("--since", metavar="COMMIT", help="make faults in what changed since then")
    parser.add_argument("--share", type=int, default=1, metavar="N", help="one in so many faults")
    parser.add_argument("--cheap", action="store_true", help="only those that take seconds")
    parser.add_argument("--seed", type=int, help="of the choice; drawn and told if left out")
    parser.add_argument("--stages", default=",".join(STAGES), help=f"of {', '.join(STAGES)}")
    parser.add_argument("--measure", type=Path, metavar="FOLDER", help="which tests execute a line")
    parser.add_argument("--measured", type=Path, metavar="FOLDER", help="run those; see --measure")
    parser.add_argument("--tests", type=int, default=300, help="for a fault, of the measured ones")
    parser.add_argument("--work", type=Path, help="folder of the copy, to be used again")
    parser.add_argument(
        "--json", type=Path, help="file of results, a line for each; goes on with it"
    )
    args = parser.parse_args(argv)
    if args.measure is not None:
        measure(args.measure)
        return 0
    measured = None if args.measured is None else Measured(args.measured, args.tests)
    seed = random.SystemRandom().randrange(10**6) if args.seed is None else args.seed
    if args.share > 1:
        print(f"one fault in {args.share}, seed {seed}")
    if args.since is None:
        faults = chosen(args.share, seed, args.cheap)
    else:
        faults = generated(since(args.since), args.share, seed)
    faults = [f for f in faults if not args.room or f.room in args.room]
    faults = [f for f in faults if args.name in f.name]
    if args.json is not None and args.json.exists():
        done = {json.loads(line)["name"] for line in args.json.read_text("utf-8").splitlines()}
        faults = [f for f in faults if f.name not in done]
    prepare()
    with tempfile.TemporaryDirectory() as folder:
        copy, findings = Copy(args.work or Path(folder) / "copy"), []
        for finding in find_all(faults, copy, args.stages.split(","), measured):
            findings.append(finding)
            print(line_of(finding), flush=True)
            if args.json is not None:
                with args.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(as_dict(finding)) + "\n")
    print(report(findings))
    return 1 if missed(findings) else 0


def line_of(finding: Finding) -> str:
    """Return one line about a fault."""
    fault, outcome = finding.fault, finding.outcome
    how = (
        f"{finding.stage}: {outcome.by[0]} ({len(outcome.by)} of {outcome.ran})"
        if finding.stage
        else "NOT NOTICED"
    )
    if not finding.stage and fault.equivalent:
        how = f"equivalent: {fault.equivalent}"
    if outcome.wrong:
        how += f"; failed without the fault as well: {', '.join(outcome.wrong)}"
    return f"{outcome.seconds:6.1f} s  {fault.room}: {fault.name}: {how}"


def as_dict(finding: Finding) -> dict[str, object]:
    """Return a finding for JSON."""
    return {
        "name": finding.fault.name,
        "file": finding.fault.file,
        "room": finding.fault.room,
        "stage": finding.stage,
        "by": finding.outcome.by,
        "ran": finding.outcome.ran,
        "wrong": [*finding.outcome.wrong],
        "seconds": round(finding.outcome.seconds, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
