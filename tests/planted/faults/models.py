"""Faults in users' models on batches and on whole graphs."""

from __future__ import annotations

from ..fault import Fault

RANKING = "pyg_direct/models/ranking.py"
OF_RANKING = "tests/unit/models/test_ranking.py"

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
]
