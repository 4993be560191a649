"""What the laws other than uniform draws cannot be combined with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.types import Csc
from ..graph.verify import parallel_edges

WHY_NOT: Mapping[str, Mapping[str, str]] = {
    "uniform": {},
    "labor": {
        "replace=True": "its lists give the sources of smallest variates, each once",
        "disjoint=True": "subgraphs of their own share no nodes, which is all that LABOR is for",
        "time_attr": "it makes subgraphs disjoint, which share no nodes, and that is all LABOR is "
        "for",
        "weight_attr": "its variates know no weights",
    },
    "adaptive": {
        "replace=True": "a list would never be too short, so that nothing is left to hand on",
        "weight_attr": "how many edges of positive weight a list has is not counted",
        "negative fan-outs": "all neighbours are no number that a budget could be made of",
    },
}


def check_law(law: str, given: Mapping[str, bool]) -> None:
    """Raise a ValueError if a law is asked for beside what it cannot honour.

    Args:
        law: `sampling=`.
        given: of the names in `WHY_NOT`, whether they are asked for.
    """
    for name, reason in WHY_NOT[law].items():
        if given[name]:
            raise ValueError(
                f"sampling={law!r} cannot be combined with {name}: {reason}. Use "
                f"sampling='uniform', or leave {name} out."
            )


def check_simple(csc: Csc, edge_types: Sequence[Any]) -> None:
    """Raise a ValueError if a node has two edges from the same source.

    They would have the same variate, so a list would take both or none of them.

    Args:
        csc: a graph on the host, verified.
        edge_types: of its relations, for the message.
    """
    found = parallel_edges(csc)
    if found is not None:
        relation, source, destination = found
        kind = edge_types[relation]
        of_type = "" if kind is None else f" of type {kind}"
        raise ValueError(
            f"sampling='labor' needs a graph without parallel edges, but there are "
            f"several{of_type} from node {source} to node {destination}, which would be taken "
            f"together. Merge them (torch_geometric.utils.coalesce), or use sampling='uniform'."
        )
