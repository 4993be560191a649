"""Two threads that meet at every line of some files, one after the other: no chance is needed.

Of what two producers share, such as a buffer or a counter, the one sees what the other left there
in the middle of its work.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Iterator
from types import CodeType, FrameType
from typing import Any

Place = tuple[CodeType, int]  # a line, or an instruction
LONGEST_WAIT_SECONDS = 0.3  # for one that waits for a lock of the other


class Meeting:
    """A call that is broken off where it comes to its first new place, while another one runs.

    Args:
        files: ends of the names of files whose places count.
        by_instruction: break off at each instruction, or at each line.
    """

    def __init__(self, files: Collection[str], by_instruction: bool = False) -> None:
        self._files, self._event = tuple(files), "opcode" if by_instruction else "line"
        self.known: set[Place] = set()

    def run(self, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any] | None:
        """Return what both give; None if `first` came to no new place, and `second` did not run."""
        found: list[Any] = []
        other = threading.Thread(target=lambda: found.append(second()))

        def at(frame: FrameType, event: str, _: Any) -> Any:
            place = frame.f_code, frame.f_lasti if self._event == "opcode" else frame.f_lineno
            if event == self._event and other.ident is None and place not in self.known:
                self.known.add(place)
                other.start()
                other.join(LONGEST_WAIT_SECONDS)
            return at

        def called(frame: FrameType, event: str, argument: Any) -> Any:
            if not frame.f_code.co_filename.endswith(self._files):
                return None
            frame.f_trace_opcodes = self._event == "opcode"
            return at

        before = sys.gettrace()
        sys.settrace(called)
        try:
            result = first()
        finally:
            sys.settrace(before)
        if other.ident is None:
            return None
        other.join()
        return result, found[0] if found else None

    def all(self, first: Callable[[], Any], second: Callable[[], Any]) -> Iterator[tuple[Any, Any]]:
        """Yield what both give, for each place at which `first` can be broken off."""
        while (results := self.run(first, second)) is not None:
            yield results
