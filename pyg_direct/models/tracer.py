"""Records a model's forward, and finds out by trial what each operation does with rows.

`torch.fx` records which operations a forward performs; it does not say which of them work row by
row. That is measured: each operation runs on all rows of a small example and on some of them. If
the second result is the rows of the first, the operation is row-wise (the node's ``space`` is
`Nodes` or `Edges`); if both are the same, it is constant; otherwise it mixes rows. No list of
"known" functions is needed, and a function that mixes rows cannot pass for one that does not.
"""

from __future__ import annotations

import operator
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch_geometric.nn import MessagePassing

from .modes import evaluating
from .spaces import (
    Connectivity,
    Constant,
    Count,
    CutError,
    Edges,
    Example,
    Nodes,
    Space,
    Whole,
    ends,
    entry,
    other_numbers,
    same,
    space_by_behaviour,
)

DROPOUTS = {
    torch.nn.functional.dropout,
    torch.nn.functional.alpha_dropout,
    torch.nn.functional.feature_alpha_dropout,
    torch.dropout,
}

TRIED_ROWS = 4  # of the part, for what message passing depends on


class ProbingTracer(fx.Tracer):
    """Records a forward on the arguments of an example.

    Message-passing modules, and modules that contain none, are recorded as one call each; all
    others are recorded through. Each node's ``meta`` gets

    * ``space``: what its rows stand for (see `spaces`);
    * ``stage``: how many message-passing calls lie between it and the inputs, at most;
    * ``full``, ``part``: its values for all rows and for some of them (part is None for `Whole`);
    * ``where``: the user's line that it comes from;
    * for message passing, ``one_hop``: an empty text if the rows of the output depend only on the
      node's own row and on its in-edges and their sources, otherwise what else they depend on.

    Raises:
        CutError: control flow that depends on data, or an operation that fails on the example.
    """

    proxy_buffer_attributes = True  # so that what is computed of them is recorded, too

    def __init__(self, example: Example) -> None:
        super().__init__()
        self._example = example
        self._running = False

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        """Whether a module is one operation."""
        return not is_recorded_through(m)

    def create_args_for_root(
        self, root_fn: Any, is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """Return a forward that is called with placeholders, in dicts where the user has dicts."""
        arguments = {
            name: {key: self._placeholder(name, key, value[key], s) for key, s in space.items()}
            if isinstance(space := self._example.spaces[name], dict)
            else self._placeholder(name, None, value, space)
            for name, value in self._example.full.items()
        }

        def forward(root: torch.nn.Module) -> Any:
            return root.forward(**arguments)

        return forward, [self.root]

    def _placeholder(self, name: str, key: Any, value: Any, space: Space) -> Any:
        if not isinstance(value, Tensor):
            return value
        proxy = super().create_proxy("placeholder", name, (), {})
        part = self._example.part(value, space)
        meta = {"space": space, "stage": 0, "full": value, "part": part, "input": name, "key": key}
        proxy.node.meta.update(meta)
        return proxy

    def create_node(self, kind: str, target: Any, *more: Any, **options: Any) -> fx.Node:
        """Record an operation; a buffer, and a tensor that the forward makes, is a constant."""
        node = super().create_node(kind, target, *more, **options)
        if kind == "get_attr":
            value = self._run(node, (), {})
            node.meta.update(space=Constant(), stage=0, full=value, part=value, mutates=[])
            node.meta["state"] = not str(target).startswith("_tensor_constant")
        return node

    def create_proxy(
        self, kind: str, target: Any, args: Any, kwargs: Any, *more: Any, **options: Any
    ) -> Any:
        """Record an operation, try it, and return numbers and containers as such."""
        proxy = super().create_proxy(kind, target, args, kwargs, *more, **options)
        self._try(proxy.node)
        return self._unpacked(proxy, target)

    def _unpacked(self, proxy: fx.Proxy, target: Any) -> Any:
        full, space = proxy.node.meta["full"], proxy.node.meta["space"]
        if target is getattr:  # an attribute such as x.shape; its entries are looked at
            return proxy
        if isinstance(full, dict):
            return {key: self.create_proxy("call_function", operator.getitem, (proxy, key), {})
                    for key in full}  # fmt: skip
        if isinstance(full, (tuple, list)):
            entries = [
                self.create_proxy("call_function", operator.getitem, (proxy, i), {})
                for i in range(len(full))
            ]
            if hasattr(full, "_fields"):
                return type(full)(*entries)
            known = isinstance(full, torch.Size) or type(full) is tuple
            return tuple(entries) if known else type(full)(entries)
        if isinstance(space, Constant) and isinstance(full, (bool, int, float, str, type(None))):
            # The model may decide by x.size(-1), not by what changes with a parameter or buffer.
            return proxy if self._depends_on_state(proxy.node) else full
        return proxy

    def _depends_on_state(self, node: fx.Node) -> bool:
        """Whether a number is other for other numbers in the parameters and buffers."""
        state = [n for n in node.all_input_nodes if n.meta.get("state")]
        if not all(isinstance(n.meta["full"], Tensor) for n in state):
            return True
        return bool(state) and self._differs_with(node, lambda n: n in state)

    def call_module(
        self, m: torch.nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Record a call of a submodule; one over a dict of several node types, type by type."""
        if self._running:
            return forward(*args, **kwargs)
        dicts = [a for a in (*args, *kwargs.values()) if isinstance(a, dict)]
        qualified_name = self.path_of_module(m)
        if dicts and self.is_leaf_module(m, qualified_name) and not is_message_passing(m):
            out: dict[Any, Any] = {}
            for key in dicts[0]:
                result = super().call_module(m, forward, *entry((args, kwargs), key))
                if not isinstance(result, dict):
                    return super().call_module(m, forward, args, kwargs)
                out.update(result)
            return out
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Record the use of a parameter."""
        if self._running:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        """Let the model unpack what has a known number of entries."""
        full = obj.node.meta.get("full")
        if isinstance(full, (tuple, list)):
            return iter([operator.getitem(obj, i) for i in range(len(full))])
        return super().iter(obj)

    def _try(self, node: fx.Node) -> None:
        meta = node.meta
        meta["where"] = _users_line()
        module = self._module(node)
        if module is not None:
            meta["class"] = type(module).__name__
        spaces = [n.meta["space"] for n in node.all_input_nodes]
        meta["stage"] = max((n.meta["stage"] for n in node.all_input_nodes), default=0)
        meta.setdefault("state", any(n.meta.get("state") for n in node.all_input_nodes))
        full_args = _values(node, "full")
        versions = [(n, n.meta["full"]._version) for n in _tensor_nodes(node)]
        try:
            meta["full"] = self._run(node, *full_args)
        except CutError:
            raise
        except Exception as error:
            raise CutError(f"{describe(node)} failed on a small example: {error}") from error
        meta["mutates"] = [n for n, v in versions if n.meta["full"]._version != v]
        whole = next((s for s in spaces if isinstance(s, Whole)), None)
        if module is not None and is_message_passing(module):
            if whole is not None:
                raise CutError(
                    f"{describe(node)} takes a value that is not row-wise: {whole.reason}"
                )
            self._try_message_passing(node, module)
        elif node.op == "get_attr":
            meta.update(space=Constant(), part=meta["full"])
        elif whole is not None:
            meta.update(space=whole, part=None)
        elif node.target is operator.getitem and _gives_several(_first(node)):
            self._take_output(node)
        else:
            self._classify(node, spaces)
            if module is not None:
                meta["batch_statistics"] = any(
                    getattr(m, "running_mean", None) is not None for m in module.modules()
                )

    def _classify(self, node: fx.Node, spaces: list[Space]) -> None:
        """Set the space of an operation that is no message passing."""
        meta, part, reason = node.meta, None, ""
        if any(isinstance(s, Connectivity) for s in spaces):
            reason = f"{describe(node)} computes on the edges outside of a message-passing module"
        else:
            try:
                part = self._run(node, *_values(node, "part"))
            except Exception as error:
                reason = f"{describe(node)} needs all rows at once ({error})"
        space = None if reason else space_by_behaviour(meta["full"], part, self._example)
        if isinstance(space, Constant) and self._depends_on_rows(node, spaces):
            space, reason = None, f"{describe(node)} depends on all rows, or on how many there are"
        if space is None:
            space = Whole(reason or f"{describe(node)} mixes the rows of different nodes or edges")
        meta.update(space=space, part=None if isinstance(space, Whole) else part)

    def _depends_on_rows(self, node: fx.Node, spaces: list[Space]) -> bool:
        """Whether a result that is the same for all rows and for some of them is so by chance.

        That is found out with other numbers in the rows, such as for ``(h > 3).any()``. An
        entry of ``h.shape`` is a constant all the same, ``h.size(0) > 40`` is none.
        """
        if any(isinstance(s, Count) for s in spaces) and node.target is not operator.getitem:
            return True
        if not any(isinstance(n.meta["space"], (Nodes, Edges)) for n in _tensor_nodes(node)):
            return False

        return self._differs_with(node, lambda n: isinstance(n.meta["space"], (Nodes, Edges)))

    def _differs_with(self, node: fx.Node, which: Callable[[fx.Node], bool]) -> bool:
        """Whether an operation gives something else where some of its inputs are others."""

        lookup = lambda n: other_numbers(n.meta["full"]) if which(n) else n.meta["full"]  # noqa: E731
        try:
            found = self._run(node, *fx.node.map_arg((node.args, node.kwargs), lookup))
        except Exception:  # an operation that takes only some numbers
            return True
        return not same(node.meta["full"], found)

    def _run(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        running, self._running = self._running, True
        try:
            if node.op == "call_module":
                module = self._module(node)
                assert module is not None
                with evaluating(module):
                    return module(*args, **kwargs)
            if node.op == "get_attr":
                return operator.attrgetter(str(node.target))(self.root)
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)
            if node.target in DROPOUTS:  # the law of the training mode is not what is asked here
                return args[0] if args else kwargs["input"]
            return node.target(*args, **kwargs)  # type: ignore[operator]
        finally:
            self._running = running

    def _module(self, node: fx.Node) -> torch.nn.Module | None:
        if node.op != "call_module":
            return None
        found: torch.nn.Module = operator.attrgetter(str(node.target))(self.root)
        return found

    def _try_message_passing(self, node: fx.Node, module: torch.nn.Module) -> None:
        """Set the spaces of the outputs, and find out how far they reach."""
        meta, example = node.meta, self._example
        edge_types = [
            n.meta["space"].edge_type
            for n in node.all_input_nodes
            if isinstance(n.meta["space"], Connectivity)
        ]
        if not edge_types:
            raise CutError(f"{describe(node)} is given no edge_index of the graph")
        meta["stage"] += 1
        outputs, counts = meta["full"], example.node_counts
        if not isinstance(outputs, dict):
            types = {ends(edge_type)[1] for edge_type in edge_types}
            outputs = {types.pop(): outputs} if len(types) == 1 else {}
        for key, value in outputs.items():
            if not isinstance(value, Tensor) or key not in counts or len(value) != counts[key]:
                outputs = {}
        if not outputs:
            raise CutError(
                f"{describe(node)} must return one row for each node of its destination type, or a "
                f"dict of them by node type"
            )
        meta["outputs"] = {key: Nodes(key) for key in outputs}
        parts = {key: example.part(value, Nodes(key)) for key, value in outputs.items()}
        if isinstance(meta["full"], dict):
            meta.update(space=Constant(), part=parts)
        else:
            key = next(iter(outputs))
            meta.update(space=Nodes(key), part=parts[key])
        meta["one_hop"] = self._reach(node, outputs)

    def _reach(self, node: fx.Node, outputs: dict[Any, Tensor]) -> str:
        """Return what the rows of the output depend on besides their in-edges, if anything.

        Some rows are computed again, each without the edges of the others, and then with other
        values for all nodes that are no neighbours.
        """
        for i in range(TRIED_ROWS):
            rows = {key: self._example.nodes[key][i] for key in outputs}
            without_edges, without_rows = self._neighbourhood(node, rows)
            for lookup, reason in (
                (without_edges, "the edges of other nodes (their degrees, or several hops)"),
                (without_rows, "the rows of nodes that are no neighbours"),
            ):
                try:
                    found = self._run(node, *fx.node.map_arg((node.args, node.kwargs), lookup))
                except Exception as error:
                    return f"having all edges ({error})"
                for key, value in outputs.items():
                    other = found[key] if isinstance(found, dict) else found
                    if not same(value[rows[key]], other[rows[key]]):
                        return reason
        return ""

    def _neighbourhood(
        self, node: fx.Node, rows: dict[Any, Tensor]
    ) -> tuple[Callable[[fx.Node], Any], Callable[[fx.Node], Any]]:
        """Return arguments without the edges of others, and also with other rows for strangers."""
        kept: dict[Any, Tensor] = {}
        near = {
            key: torch.zeros(count, dtype=torch.bool)
            for key, count in self._example.node_counts.items()
        }
        for key, row in rows.items():
            near[key][row] = True
        wanted = {key: mask.clone() for key, mask in near.items()}
        for n in node.all_input_nodes:
            space, value = n.meta["space"], n.meta["full"]
            if isinstance(space, Connectivity):
                src, dst = ends(space.edge_type)
                kept[space.edge_type] = wanted[dst][value[1].cpu()]
                near[src][value[0].cpu()[kept[space.edge_type]]] = True

        def without_edges(n: fx.Node) -> Any:
            space, value = n.meta["space"], n.meta["full"]
            if isinstance(space, Connectivity):
                return value[:, kept[space.edge_type]]
            if isinstance(space, Edges) and space.edge_type in kept:
                return value[kept[space.edge_type]]
            return value

        def without_rows(n: fx.Node) -> Any:
            space, value = n.meta["space"], without_edges(n)
            if isinstance(space, Nodes) and value.is_floating_point():
                far = ~near[space.node_type]
                value = value.clone()
                value[far] = 2 * value[far] + 1
            return value

        return without_edges, without_rows

    def _take_output(self, node: fx.Node) -> None:
        """Set the space of one node type's rows out of message passing over several types."""
        source, key = _first(node), node.args[1]
        node.meta.update(space=source.meta["outputs"][key], part=source.meta["part"][key])


def is_message_passing(module: torch.nn.Module) -> bool:
    """Whether a module is one message-passing operation."""
    return isinstance(module, MessagePassing)


def is_recorded_through(module: torch.nn.Module) -> bool:
    """Whether the operations of a module are recorded, as it has message passing inside."""
    return not is_message_passing(module) and any(map(is_message_passing, module.modules()))


def describe(node: fx.Node) -> str:
    """Return the name of an operation, its class, and the line of the model it comes from."""
    target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    about = [str(node.meta[key]) for key in ("class", "where") if node.meta.get(key)]
    return f"{target!r} ({', '.join(about)})" if about else f"{target!r}"


def _values(node: fx.Node, which: str) -> Any:
    return fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta[which])


def _tensor_nodes(node: fx.Node) -> list[fx.Node]:
    return [n for n in node.all_input_nodes if isinstance(n.meta["full"], Tensor)]


def _first(node: fx.Node) -> fx.Node:
    first = node.args[0]
    assert isinstance(first, fx.Node)
    return first


def _gives_several(node: fx.Node) -> bool:
    return "outputs" in node.meta and isinstance(node.meta["full"], dict)


def _users_line() -> str:
    """Return file and line of the innermost frame that is neither torch's nor ours."""
    for frame in reversed(traceback.extract_stack()):
        if "/torch/" not in frame.filename and not frame.filename.startswith(__file__):
            name = frame.filename.rsplit("/", 1)[-1]
            return f"{name}:{frame.lineno}"
    return ""
