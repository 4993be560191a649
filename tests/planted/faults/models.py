"""Faults in users' models on batches and on whole graphs."""

from __future__ import annotations

from ..fault import Fault

RANKING = "pyg_direct/models/ranking.py"
OF_RANKING = "tests/unit/models/test_ranking.py"
ACCELERATE = "pyg_direct/models/accelerate.py"
LISTS = "pyg_direct/models/message_lists.py"
MOVES = "pyg_direct/models/batch_moves.py"
NEEDED = "pyg_direct/models/needed.py"
RULES = "pyg_direct/models/row_rules.py"
RUN = "pyg_direct/models/batch_run.py"
SIZES = "pyg_direct/models/batch_sizes.py"
STEP_CALLS = "pyg_direct/models/step_calls.py"
SUMS = "pyg_direct/models/needed_sums.py"

VALUES = "tests/unit/models/test_needed.py"
MATRIX = "tests/unit/models/test_accelerate_matrix.py"
LAZY = "tests/unit/models/test_accelerating_lazy_models.py"

FAULTS: list[Fault] = [
    Fault(
        "ranks: a link that is known is no candidate itself",
        RANKING,
        "kept = other != col[link]",
        "kept = other >= 0",
        OF_RANKING,
    ),
    Fault(
        "ranks: equal scores are all behind the link",
        RANKING,
        "equal.to(torch.float64) / 2, candidates",
        "equal.to(torch.float64) * 0, candidates",
        OF_RANKING,
    ),
    Fault(
        "ranks: known links count once for each time they are given",
        RANKING,
        "codes = torch.unique(known[0] * num_dst + known[1])",
        "codes = (known[0] * num_dst + known[1]).sort().values",
        OF_RANKING,
    ),
    Fault(
        "a gradient plus a number is taken for zero outside of the gradient's rows",
        STEP_CALLS,
        'return "all" if len(self.tables) == 2 else ""',
        'return "all"',
        VALUES,
    ),
    Fault(
        "a number by a gradient is taken for zero where the gradient is",
        STEP_CALLS,
        "first = bool(self.tables) and self.tables[0][:2] == (0, None)",
        "first = bool(self.tables)",
        VALUES,
    ),
    Fault(
        "rows are overwritten that a view shows",
        STEP_CALLS,
        "like = not box.shared and box.have == rows and value.kind == self.kind",
        "like = box.have == rows and value.kind == self.kind",
        VALUES,
    ),
    Fault(
        "rows are overwritten that somebody else reads",
        STEP_CALLS,
        "return like and references(boxes, place) == ONE_REFERENCE",
        "return like",
        VALUES,
    ),
    Fault(
        "rows that were computed change when more are asked for",
        NEEDED,
        "        parts = [known.narrow(self.dim, 0, first), data",
        "        parts = [data.narrow(self.dim, 0, first), data",
        "tests/unit/models/test_accelerate.py",
    ),
    Fault(
        "a gradient's rows in another order are taken for the first ones",
        NEEDED,
        "if first.order is second.order or first.count == 0 or second.count == 0:",
        "if True:",
        VALUES,
    ),
    Fault(
        "messages are summed up once that count twice",
        MOVES,
        'if given.get("alpha", 1) != 1 or base.size(dim) < 2',
        "if base.size(dim) < 2",
        VALUES,
    ),
    Fault(
        "a list that was written to is read",
        LISTS,
        "if _writes_to(index) != self._versions[id(index)]:",
        "if False:",
        VALUES,
    ),
    Fault(
        "extremes are taken with the rows that they are to replace",
        SUMS,
        'or (kind == "sum") != self.include:',
        "or False:",
        VALUES,
    ),
    Fault(
        "a model that draws certain numbers gets others",
        RUN,
        "seeded = torch.initial_seed() != self._seed or",
        "seeded =",
        MATRIX,
    ),
    Fault(
        "parameters without a shape are given that of some of the rows",
        ACCELERATE,
        "self._may_be_lazy = any(map(is_lazy, tensors))",
        "self._may_be_lazy = False",
        LAZY,
    ),
    Fault(
        "outputs of a node type are taken for those of another with as many nodes",
        SIZES,
        "found[key] = take(value, seeds) if known else self.seeds_of(value, take)",
        "found[key] = self.seeds_of(value, take)",
        "tests/unit/models/test_batch_sizes.py",
    ),
    Fault(
        "softmax along the rows is computed on some of them",
        RULES,
        '    if rows or row == call["dim"] % call.first.dim():\n        raise Mixes\n    return Verdict(row, {"grad',
        '    if rows:\n        raise Mixes\n    return Verdict(row, {"grad',
        VALUES,
    ),
    Fault(
        "gradients are weighted in the order of the destinations",
        SUMS,
        "values = None if values is None else values[position]",
        "values = None if values is None else values",
        "tests/unit/models/test_accelerate_matrix.py",
    ),
]
