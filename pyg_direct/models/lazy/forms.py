"""Statistics of a step or an inference: its sums, and the operations that ran on all rows."""

from __future__ import annotations

from ...core.private_torch import in_backward
from .rules import Operator


class Forms:
    """How a step ran.

    Attributes:
        sums: how messages were summed.
        whole_calls: how often operations ran on all rows, by name.
        by_blocks: operations that read all rows, block by block.
        gradients: likewise operations of the backward, and those after which it is not known that
            rows of a gradient are zero.
    """

    def __init__(self) -> None:
        self.sums: set[str] = set()
        self.whole_calls: dict[str, int] = {}
        self.by_blocks: set[str] = set()
        self.gradients: dict[str, int] = {}

    def texts(self) -> dict[str, str]:
        """Return what there is to tell."""
        found = {
            "sums": ", ".join(sorted(self.sums)),
            "all rows": ", ".join(self.whole_calls),
            "all rows of gradients": ", ".join(self.gradients),
        }
        return {kind: text for kind, text in found.items() if text}

    def count(self, known: Operator) -> None:
        """Count an operation that runs on all rows."""
        calls, name = self.gradients if in_backward() else self.whole_calls, str(known.func)
        calls[name] = calls.get(name, 0) + 1
