"""How one convolution runs on a block of destination nodes.

Three ways, from fast to general; `choice.choose` takes the first that gives, on the example of the
cut, what the module itself gives on the whole graph.

* `messages.Reduced`: the messages are the rows of the sources, or those times a weight, and their
  sum, mean, maximum or minimum is taken. The backend reduces straight from the table of all
  sources: no message is stored, whatever the length of a list.
* `messages.Messages`: the module's own messages and aggregation on the block's in-edges. Sources
  are read by their ids in the table of all nodes, so none is renumbered or copied first.
* `Local`: the module as it is, on the renumbered one-hop subgraph. For modules that do not fit the
  others (several edge types at once, as HGTConv), and for backends that do not read lists in place.

For the first two, PyG's ``forward`` of the module is run with ``propagate`` and ``edge_updater``
replaced (`calls`). What it hands to them for the sources (for GATConv: transformed features and
attention terms) is computed once for all nodes beforehand; the table of it is a *prepared* value.

Layers that normalise by degree, with PyG's `gcn_norm` (Kipf and Welling, 2017), get the weights of
the whole graph from `normalisation` in its place.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .blocks import Block
from .calls import Source, run_forward
from .cutter import Convolution
from .normalisation import Normalisation
from .spaces import Connectivity, Edges, Nodes, ends


class Layer:
    """One convolution, ready to run on blocks of a destination type.

    Args:
        conv: the call of a module.
        norm: how it normalises by degree, if it does.
    """

    rounds = 0  # in which sources are prepared for it, one after another
    max_edges: int | None = None  # whose messages are stored at a time; None for those of a block

    def __init__(self, conv: Convolution, norm: Normalisation | None = None) -> None:
        self.conv, self.norm = conv, norm

    @property
    def source_type(self) -> Any:
        """The node type of the sources (of the first edge type)."""
        return ends(self.conv.edge_types[0])[0]

    @property
    def splits(self) -> bool:
        """Whether it computes a list in pieces of `max_edges`."""
        return False

    def run(self, block: Block) -> Tensor:
        """Return the rows of the block."""
        raise NotImplementedError

    def prepare(self, block: Block, round_: int) -> dict[str, Tensor]:
        """Return the block's rows of the tables of a round; the block is of the source type."""
        raise NotImplementedError

    def prepared_in(self, round_: int) -> dict[str, Source]:
        """Return the tables that a round computes."""
        return {}

    def last_round(self, table: str) -> int:
        """Return the last round that reads a table; `rounds` for that of the output."""
        return self.rounds

    def row_bytes(self) -> int:
        """Return the bytes of the prepared rows of a node."""
        return 0

    def edge_bytes(self, whole: bool) -> int:
        """Return the bytes that are stored for an edge of a block; 0 if hardly any.

        Args:
            whole: count only what is stored for all edges of a block at once, without messages
                that are stored for `max_edges` at a time.
        """
        raise NotImplementedError


class Local(Layer):
    """Runs the module on the one-hop subgraph; right for every module that reaches one hop."""

    def run(self, block: Block) -> Tensor:
        """Return the rows of the block."""
        part, scope = block.one_hop(), block.scope

        def lookup(name: str) -> Any:
            space = scope.cut.values[name].space
            if isinstance(space, Nodes):
                return scope.rows(name, part.node[space.node_type])
            if isinstance(space, Edges):
                return scope.edge_rows(name, part.edge[space.edge_type])
            if isinstance(space, Connectivity):
                return part.edge_index[space.edge_type]
            return scope.constants[name]

        if self.norm is None:
            args, kwargs = self.conv.arguments(lookup)
            found = self.conv.named(self.conv.module(*args, **kwargs))
        else:
            found = self.conv.named(
                run_forward(
                    self.conv.module,
                    self.conv.bound(lookup),
                    lambda original, edges, size, kwargs: original(edges, size=size, **kwargs),
                    self.norm.names(block),
                )
            )
        rows: Tensor = found[self.conv.outputs[block.node_type]]
        return rows[: block.size]

    def edge_bytes(self, whole: bool) -> int:
        """Return the bytes that are stored for an edge: its ends, and the rows of its source."""
        return 48 + self._input_bytes

    def learn(self, values: Any) -> Local:
        """Note how wide the inputs are; `values` is `Cut.values`."""
        self._input_bytes = sum(nbytes(values[n]) for n in self.conv.inputs)
        return self


def nbytes(value: Any) -> int:
    """Return the bytes of a row of a value; 0 of one that is no tensor."""
    if value.dtype is None:
        return 0
    count = 1
    for size in value.shape:
        count *= size
    return int(count * value.dtype.itemsize)
