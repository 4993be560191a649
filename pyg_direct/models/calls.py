"""What a convolution's forward does with `propagate` and `edge_updater`, found out by trial.

A forward calls `propagate` once (GraphSAGE), once for each relation (RGCN), or several times, each
on what the one before returned (SGConv, APPNP, TAGConv: several hops). It may call `edge_updater`
before (GAT). Layer-wise, a call can be computed for a block of nodes only when what it reads of the
*sources* is known for all nodes. So calls are sorted into rounds: what the sources give to the
calls of round 0 follows from the inputs of the convolution alone; for round r, also from the
results of calls of earlier rounds. Each round of sources is prepared for all nodes before the next
begins.

Example, SGConv with K = 2, ``x1 = propagate(x); x2 = propagate(x1); return lin(x2)``: call 0 reads
the input x and is of round 0. Call 1 reads x1, so it is of round 1: x1 is prepared for all nodes by
call 0 first. The output needs call 1 only.

What follows from what is measured: the forward is run again with the result of one call changed and
those of all others kept.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

# Takes the original function, edge_index, size and the other arguments of a call.
Replacement: TypeAlias = "Callable[[Any, Tensor, Any, dict[str, Any]], Any]"
FUNCTIONS = ("propagate", "edge_updater")


class Source(NamedTuple):
    """What the sources give to one call of `propagate` or `edge_updater`."""

    table: str  # name of the table with a row for each source
    round: int  # in which it is prepared; -1 for an input of the convolution
    shape: tuple[int, ...]  # of one row
    dtype: torch.dtype
    shared: bool  # whether sources and targets are rows of the same tensor

    @property
    def prepared(self) -> bool:
        """Whether it has to be computed before the layer can run."""
        return self.round >= 0


class Call(NamedTuple):
    """One call of `propagate` or `edge_updater` in a forward."""

    function: str
    round: int
    needs: frozenset[int]  # calls whose results its arguments need, those of the sources apart
    table: str | None  # that holds its result for all nodes, as a later call reads it of sources
    shape: tuple[int, ...]  # of a row of its result
    dtype: torch.dtype


@dataclass(frozen=True)
class Calls:
    """All calls of a forward, in order, and what they read of the sources."""

    calls: tuple[Call, ...]
    sources: dict[tuple[int, str], Source]  # by number of the call and name of the argument
    needed: tuple[frozenset[int], ...]  # calls of `propagate` to compute, by round; then for output

    @property
    def rounds(self) -> int:
        """Number of rounds in which sources are prepared."""
        return 1 + max((s.round for s in self.sources.values()), default=-1)

    def prepared_in(self, round_: int) -> dict[str, Source]:
        """Return the sources that a round prepares, by table."""
        return {s.table: s for s in self.sources.values() if s.round == round_}

    def known(self, number: int, round_: int) -> str | None:
        """Return the table that holds the result of a call in a round, if there is one by then."""
        table = self.calls[number].table
        made = [s.round for s in self.sources.values() if s.table == table]
        return table if made and made[0] < round_ else None

    def computed_in(self, number: int, round_: int) -> bool:
        """Whether a call is computed in a round (the last one is that of the output)."""
        call = self.calls[number]
        if call.function == "edge_updater":
            return call.round < round_ or round_ == self.rounds
        return number in self.needed[round_] and self.known(number, round_) is None

    def last_round(self, table: str) -> int:
        """Return the last round that reads a table of prepared sources."""
        found = 0
        for round_ in range(self.rounds + 1):
            for i in range(len(self.calls)):
                reads = {s.table for (n, _), s in self.sources.items() if n == i}
                own = self.known(i, round_) == table and i in self.needed[round_]
                if own or (table in reads and self.computed_in(i, round_)):
                    found = round_
        return found


class _Record(NamedTuple):
    function: str
    arguments: dict[str, Any]
    result: Any


def lifted(module: Any) -> dict[str, set[str]]:
    """Return the arguments of each function of which messages read the rows of the sources."""
    names = {"propagate": module._user_args, "edge_updater": module._edge_user_args}
    return {
        function: {n[:-2] for n in arguments if n.endswith("_j")}
        for function, arguments in names.items()
    }


def calls_of(
    name: str, module: Any, given: Mapping[str, Tensor], arguments: Mapping[str, Any]
) -> Calls:
    """Find out the calls of a forward, on all nodes of a small graph.

    Args:
        name: of the convolution, for the names of tables.
        module: the message-passing module.
        given: inputs of the convolution that have a row for each node or edge, by name.
        arguments: of the forward.

    Raises:
        NotImplementedError: a forward that returns something else at each run.
    """
    records: list[_Record] = []

    def record(original: Any, edge_index: Tensor, size: Any, kwargs: dict[str, Any]) -> Any:
        result = original(edge_index, size=size, **kwargs)
        records.append(_Record(original.__name__, kwargs, result))
        return result

    out = run_forward(module, arguments, record)
    sources, others, of_output = _needs(module, arguments, records, out)
    rounds = _rounds(sources, others)
    found = _sources(name, records, rounds, given, lifted(module))
    calls = tuple(
        Call(
            r.function, rounds[i], frozenset(others[i]), _table_of(r.result, i, records, found),
            tuple(r.result.shape[1:]), r.result.dtype,
        )
        for i, r in enumerate(records)
    )  # fmt: skip
    last = 1 + max((s.round for s in found.values()), default=-1)
    needed = [
        _closure({j for i in range(len(calls)) if rounds[i] == r for j in sources[i]}, others)
        for r in range(last)
    ]
    return Calls(calls, found, (*needed, _closure(of_output, others)))


def run_forward(
    module: Any,
    arguments: Mapping[str, Any],
    replacement: Replacement,
    names: Mapping[str, Mapping[str, Any]] | None = None,
) -> Tensor:
    """Run a module with `propagate` and `edge_updater` replaced; the module is not changed.

    Args:
        module: a message-passing module.
        arguments: of its forward.
        replacement: called in place of each of the two functions.
        names: for `renamed`.
    """
    clone = renamed(module, names or {})

    def replaced_function(original: Any) -> Any:
        def run(edge_index: Tensor, size: Any = None, **kwargs: Any) -> Any:
            return replacement(original, edge_index, size, kwargs)

        return run

    for function in FUNCTIONS:
        clone.__dict__[function] = replaced_function(getattr(clone, function))
    out: Tensor = clone(**arguments)
    return out


def uses_name(module: Any, method: str, name: str, meaning: Any) -> bool:
    """Whether a method of a module calls `meaning` by a name of the file it stands in."""
    function = getattr(type(module), method)
    known = getattr(function, "__globals__", {}).get(name)
    return known is meaning and name in function.__code__.co_names


def renamed(module: Any, names: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return a copy of a module that shares its parameters, and for which some names differ.

    Args:
        module: is not changed.
        names: method -> names of the file it stands in that mean something else to it.
    """
    clone = object.__new__(type(module))
    clone.__dict__.update(module.__dict__)
    for method, replaced in names.items():
        known = getattr(type(module), method)
        function = types.FunctionType(
            known.__code__, {**known.__globals__, **replaced}, method, known.__defaults__,
            known.__closure__,
        )  # fmt: skip
        function.__kwdefaults__ = known.__kwdefaults__
        clone.__dict__[method] = types.MethodType(function, clone)
    return clone


def first_of(value: Any) -> Any:
    """Return the rows of the sources."""
    return value[0] if isinstance(value, (tuple, list)) else value


def last_of(value: Any) -> Any:
    """Return the rows of the targets."""
    return value[1] if isinstance(value, (tuple, list)) else value


def _needs(
    module: Any, arguments: Mapping[str, Any], records: list[_Record], out: Any
) -> tuple[list[set[int]], list[set[int]], set[int]]:
    """Return on which results of `propagate` each call and the output depend directly.

    Returns:
        For each call what its sources depend on, and its other arguments; and for the output.
    """
    rows = lifted(module)
    several = [i for i, r in enumerate(records) if r.function == "propagate"]
    sources: list[set[int]] = [set() for _ in records]
    others: list[set[int]] = [set() for _ in records]
    if len(several) == 1:
        return sources, others, set(several)
    of_output = set()
    for j in several:
        seen: list[dict[str, Any]] = []

        def answer(
            original: Any, edge_index: Tensor, size: Any, kwargs: dict[str, Any], j: int = j,
            seen: list[dict[str, Any]] = seen,
        ) -> Any:  # fmt: skip
            i = len(seen)
            seen.append(kwargs)
            if original.__name__ == "edge_updater":
                return original(edge_index, size=size, **kwargs)
            return 2 * records[i].result + 1 if i == j else records[i].result

        found = run_forward(module, arguments, answer)
        if len(seen) != len(records):
            raise NotImplementedError("it calls propagate now and then")
        for i, kwargs in enumerate(seen):
            for key, value in kwargs.items():
                known = records[i].arguments[key]
                if key in rows[records[i].function]:
                    if not _equal(first_of(value), first_of(known)):
                        sources[i].add(j)
                    if first_of(value) is last_of(value):
                        continue  # the rows of the targets are those of the sources
                    value, known = last_of(value), last_of(known)
                if not _equal(value, known):
                    others[i].add(j)
        if not _equal(found, out):
            of_output.add(j)
    return sources, others, of_output


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, (tuple, list)):
        return all(map(_equal, first, second))
    if isinstance(first, Tensor):
        return torch.equal(first, second)
    return bool(first == second)


def _rounds(sources: list[set[int]], others: list[set[int]]) -> list[int]:
    rounds: list[int] = []
    for of_sources, of_others in zip(sources, others, strict=True):
        after = [rounds[j] + 1 for j in of_sources]
        rounds.append(max([0, *after, *(rounds[j] for j in of_others)]))
    return rounds


def _sources(
    name: str,
    records: list[_Record],
    rounds: list[int],
    given: Mapping[str, Tensor],
    rows: Mapping[str, set[str]],
) -> dict[tuple[int, str], Source]:
    found: dict[tuple[int, str], Source] = {}
    for i, record in enumerate(records):
        for key in sorted(rows[record.function] & record.arguments.keys()):
            value = record.arguments[key]
            first = first_of(value)
            if isinstance(first, Tensor):
                same = [n for n, v in given.items() if v is first]
                table, round_ = (same[0], -1) if same else (f"{name}.{i}.{key}", rounds[i])
                shape, shared = tuple(first.shape[1:]), first is last_of(value)
                found[i, key] = Source(table, round_, shape, first.dtype, shared)
    return found


def _table_of(
    result: Any, number: int, records: list[_Record], sources: Mapping[tuple[int, str], Source]
) -> str | None:
    """Return the table of sources that is the result of a call."""
    for (i, key), source in sources.items():
        if i > number and source.prepared and first_of(records[i].arguments[key]) is result:
            return source.table
    return None


def _closure(calls: set[int], others: list[set[int]]) -> frozenset[int]:
    found, todo = set(calls), list(calls)
    while todo:
        for j in others[todo.pop()] - found:
            found.add(j)
            todo.append(j)
    return frozenset(found)
