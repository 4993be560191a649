"""A comparison of what `inference` computes with the model itself.

A graph with few nodes and edges is compared whole. Of a larger one some nodes are taken with those
that they get messages from, and both ways compute the outputs for this part.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..core.lazy_tensor import LazyTensor
from ..core.private_torch import tree_map
from .certificate import different_outputs, leaves_of
from .graph_part import part_of
from .inputs import num_nodes_of
from .modes import Generators, eagerly, evaluating
from .undo import NotComparable, Undo

logger = logging.getLogger("pyg_direct")

MOST_EDGES = 1 << 15  # that the model itself gets; likewise of nodes of a whole graph
BYTES_OF_EDGE = 1 << 14  # that it may take

Run = Callable[[torch.nn.Module, Mapping[str, Any]], Any]


class Check:
    """What a model itself gives, to be compared with what `inference` computes.

    Args:
        model: in evaluation it is copied, so it is as before afterwards.
        data: the graph.
        arguments: of the forward, with edges.
        memory_bytes: that the run may take; None for any.
        narrow: whether layers are kept in a narrow dtype, which alone may change the outputs by
            much: what is compared is a run of its own without it then.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        data: Any,
        arguments: Mapping[str, Any],
        memory_bytes: int | None,
        narrow: bool,
    ) -> None:
        self._model = model
        most = MOST_EDGES
        if memory_bytes is not None:
            most = min(most, memory_bytes // BYTES_OF_EDGE)
        self._is_whole = max(num_nodes_of(data) or 0, data.num_edges) <= most
        self._is_apart = narrow or not self._is_whole
        self._given: Mapping[str, Any] = arguments
        self._expected: Any = None
        with self._leaving_out():
            if not self._is_whole:
                part = part_of(data, arguments, most)
                if part is None:
                    raise NotComparable("its arguments have no rows for nodes and edges")
                self._given = part
            self._expected = leaves_of(self._plain())

    def of_part(self, run: Run) -> None:
        """Compare what a run computes with a copy of the model, if it is not the whole run that is.

        Raises:
            RuntimeError: the outputs differ.
        """
        found: Any = None
        with self._leaving_out():
            if self._is_apart and self._expected is not None:
                with self._copy() as twin:
                    found = run(twin, self._given)
        if found is not None:
            self._compare(found)

    def of_whole(self, found: Any) -> None:
        """Compare the outputs of the run, if the graph is small.

        Raises:
            RuntimeError: they differ.
        """
        if not self._is_apart and self._expected is not None:
            self._compare(found)

    def _compare(self, found: Any) -> None:
        reason = different_outputs(leaves_of(found), self._expected)
        if not reason:
            return
        if different_outputs(leaves_of(self._plain()), self._expected):
            self._leave_out("run twice, its outputs differ")
            return
        which = "" if self._is_whole else " for some nodes and those that they get messages from"
        name = type(self._model).__name__
        raise RuntimeError(
            f"inference() does not compute what {name} does{which}: {reason}. Call the model "
            f"itself, on the whole graph or on batches. With certify=False inference() returns its "
            f"numbers all the same."
        )

    def _plain(self) -> Any:
        """Return the outputs of the model itself."""
        with self._copy() as twin, evaluating(twin), torch.no_grad(), eagerly():
            device = next((p.device for p in twin.parameters()), torch.device("cpu"))
            before = Generators([])
            out = twin(**tree_map(lambda v: _plain_tensor(v, device), dict(self._given)))
            if Generators([]).differing(before):
                raise NotComparable("it draws random numbers")
        return out

    @contextmanager
    def _copy(self) -> Iterator[torch.nn.Module]:
        """Lend a copy of the model; what can be reached from both is as before afterwards."""
        undo = Undo(self._model, for_copies=True)
        try:
            twin = undo.copy_of(self._model)
            with undo.watching():
                yield twin
        finally:
            undo.put_back()

    @contextmanager
    def _leaving_out(self) -> Iterator[None]:
        """Go on without a comparison where there can be none."""
        try:
            yield
        except NotComparable as error:
            self._leave_out(str(error))
        except Exception as error:  # the run will say so, if it is no matter of the part
            logger.info("inference() is not compared with the model itself: %s", error)
            self._expected = None

    def _leave_out(self, why: str) -> None:
        self._expected = None
        name = type(self._model).__name__
        logger.warning("inference() is not compared with %s itself: %s", name, why)


def _plain_tensor(value: Any, device: torch.device) -> Any:
    if isinstance(value, LazyTensor):
        value = value.dense()
    return value.detach().to(device, copy=True) if isinstance(value, Tensor) else value
