"""What others have published of reading host memory from the GPU, beside what a run measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.gpu.marks import NotMeasuredError, Stages, need

PYTORCH_DIRECT = "PyTorch-Direct, arXiv 2101.07956, abstract"
MIN_ET_AL = "Min et al., arXiv 2103.03330, abstract"


class Claim(NamedTuple):
    """One published number."""

    what: str
    theirs: str
    source: str
    ours: Callable[[Stages], str]  # of the stages of a run; raises where they do not have it


def transfer(stages: Stages) -> str:
    """Rows of a batch, gathered by the CPU and copied, against the gather over the link."""
    found = need(stages, "conventional", "transfer")
    before, now = (found[name]["ms"]["median"] for name in ("conventional", "ours"))
    times = f"{before:.3f} to {now:.3f} ms for {found['rows']:,.0f} rows"
    return f"{100 * (1 - now / before):.1f} % ({times})"


def training(stages: Stages) -> str:
    """A training step with its batch, all data in host memory."""
    before = need(stages, "conventional", "trained")["ms"]["median"]
    now = need(stages, "ours", "host", "trained")["ms"]["median"]
    return f"{before / now:.2f} x ({before:.2f} to {now:.2f} ms a batch)"


def power(stages: Stages) -> str:
    """Watts of processor and GPU while training."""
    found = []
    for stage, keys in (("conventional", ("trained",)), ("ours", ("host", "trained"))):
        record = need(stages, stage, *keys)
        if record["energy_not_readable"]:
            raise NotMeasuredError(f"not readable: {record['energy_not_readable']}")
        found.append(sum(record["watts"].values()))
    before, now = found
    return f"{100 * (1 - now / before):.1f} % ({before:.0f} to {now:.0f} W)"


def as_in_memory(stages: Stages) -> str:
    """Training from host memory against all data in GPU memory."""
    host = need(stages, "ours", "host", "trained")["ms"]["median"]
    memory = need(stages, "in_memory", "loader", "trained")["ms"]["median"]
    return f"{host / memory:.2f} x the time ({host:.2f}, {memory:.2f} ms a batch)"


def several_gpus(stages: Stages) -> str:
    """Needs more than this call has."""
    raise NotMeasuredError("the call uses one GPU")


CLAIMS = (
    Claim("less time for the transfer of rows", "47.1 % on average", PYTORCH_DIRECT, transfer),
    Claim("faster training", "up to 1.6 x", PYTORCH_DIRECT, training),
    Claim("less power of the system in training", "12.4 to 17.5 %", PYTORCH_DIRECT, power),
    Claim("faster training on several GPUs", "65 to 92 %", MIN_ET_AL, several_gpus),
    Claim(
        "training against all data in GPU memory",
        "the same, for some graphs",
        MIN_ET_AL,
        as_in_memory,
    ),
)


def rows(stages: Stages) -> list[list[str]]:
    """Return the claims with what was measured; "-" and a reason where nothing was."""
    found = []
    for claim in CLAIMS:
        try:
            ours = claim.ours(stages)
        except NotMeasuredError as missing:
            ours = f"- ({missing})"
        except (KeyError, TypeError, ZeroDivisionError) as error:  # of a stage that was stopped
            ours = f"- (a part is missing: {type(error).__name__}: {error})"
        found.append([claim.what, f"{claim.theirs} ({claim.source})", ours])
    return found
