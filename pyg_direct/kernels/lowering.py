"""From numba's code to LLVM's, in as few instructions as kernels without reference counts need.

numba writes several dozens of instructions for each element that is read or written and for each
loop, most of which LLVM removes again; to write, parse and remove them took half of the time that a
kernel took to compile.
"""

# mypy: disable-error-code="attr-defined,misc,no-untyped-call"

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from llvmlite import ir as llvm
from numba.core import ir, types
from numba.core.lowering import Lower

from .values import array_field


class KernelLower(Lower):
    """Writes the LLVM code of one function that counts no references.

    Variables with one assignment are LLVM's values and take no memory. An index below 0 does not
    count from the end of an array: no kernel has one.
    """

    def init(self) -> None:
        """Begin a function."""
        super().init()
        self._ranges: dict[str, tuple[Any, Any]] = {}  # of steps of 1: where it begins and ends

    def _find_singly_assigned_variable(self) -> None:
        """Find variables with one assignment; numba's own are those used in one block alone.

        LLVM refuses code that could read such a variable before it is assigned.
        """
        assigned = Counter(
            assign.target.name
            for block in self.blocks.values()
            for assign in block.find_insts(ir.Assign)
        )
        self._singly_assigned_vars = {name for name, count in assigned.items() if count == 1}
        self._blk_local_varmap: dict[str, Any] = {}

    def loadvar(self, name: str) -> Any:
        """Return the value of a variable."""
        if name not in self._blk_local_varmap:  # assigned in a block that is written later
            self._singly_assigned_vars.discard(name)
        return super().loadvar(name)

    def storevar(self, value: Any, name: str, argidx: Any = None) -> None:
        """Assign a value to a variable, where numba would first look at the old one."""
        if name in self._singly_assigned_vars:
            self._blk_local_varmap[name] = value
        else:
            self.builder.store(value, self.getvar(name))

    def delvar(self, name: str) -> None:
        """Do nothing at the end of a variable's life, as it counts no reference."""

    def alloca_lltype(self, name: str, lltype: Any, datamodel: Any = None) -> Any:
        """Make room for a variable, without asking LLVM for its size, as debuggers alone want."""
        with self.builder.goto_entry_block():
            return self.builder.alloca(lltype, name=name)

    def lower_assign(self, ty: Any, inst: Any) -> Any:
        """Return the value that is assigned; ranges with a step of 1 are kept apart."""
        value = inst.value
        if isinstance(value, ir.Expr):
            is_range = value.op == "call" and isinstance(ty, types.RangeType)
            if is_range and not value.vararg and len(value.args) < 3:
                dtype = ty.dtype
                bounds = [self._cast_var(argument, dtype) for argument in value.args]
                begin = bounds[0] if len(bounds) == 2 else bounds[0].type(0)
                self._ranges[inst.target.name] = begin, bounds[-1]
                return llvm.Constant(self.context.get_value_type(ty), llvm.Undefined)
            if value.op == "getiter" and value.value.name in self._ranges:
                return self._begin_range(ty, *self._ranges[value.value.name])
        return super().lower_assign(ty, inst)

    def _begin_range(self, iterator_type: Any, begin: Any, end: Any) -> Any:
        """Return an iterator: what comes next, the end, the step, and how many are left."""
        builder = self.builder
        following, left = (self.alloca_lltype("", begin.type) for _ in range(2))
        builder.store(begin, following)
        builder.store(builder.sub(end, begin), left)
        iterator = llvm.Constant(self.context.get_value_type(iterator_type), llvm.Undefined)
        for place, value in enumerate((following, end, begin.type(1), left)):
            iterator = builder.insert_value(iterator, value, place)
        return iterator

    def lower_expr(self, resty: Any, expr: Any) -> Any:
        """Return the value of an expression."""
        if expr.op in ("iternext", "pair_first", "pair_second", "getattr", "static_getitem"):
            ty = self.typeof(expr.value.name)
            if expr.op == "iternext" and isinstance(ty, types.RangeIteratorType):
                return self._next_of_range(resty, self.loadvar(expr.value.name))
            if expr.op in ("pair_first", "pair_second") and isinstance(ty, types.Pair):
                place = int(expr.op == "pair_second")
                return self.builder.extract_value(self.loadvar(expr.value.name), place)
            if isinstance(ty, types.Array):
                if expr.op == "getattr" and expr.attr == "shape":
                    array = self.loadvar(expr.value.name)
                    return array_field(self.context, self.builder, ty, array, "shape")
                if expr.op == "static_getitem" and expr.index_var is not None:
                    signature = self.fndesc.calltypes[expr]
                    return self.lower_getitem(resty, expr, expr.value, expr.index_var, signature)
        return super().lower_expr(resty, expr)

    def _next_of_range(self, pair_type: Any, iterator: Any) -> Any:
        """Step on in a range, and return the number there and whether there was one."""
        builder = self.builder
        following, step, left = (builder.extract_value(iterator, place) for place in (0, 2, 3))
        number, count = builder.load(following), builder.load(left)
        builder.store(builder.add(number, step), following)
        builder.store(builder.sub(count, count.type(1)), left)
        pair = llvm.Constant(self.context.get_value_type(pair_type), llvm.Undefined)
        pair = builder.insert_value(pair, number, 0)
        return builder.insert_value(pair, builder.icmp_signed(">", count, count.type(0)), 1)

    def lower_inst(self, inst: Any) -> Any:
        """Write a statement."""
        if isinstance(inst, ir.StaticSetItem) and isinstance(
            self.typeof(inst.target.name), types.Array
        ):
            signature = self.fndesc.calltypes[inst]
            return self.lower_setitem(inst.target, inst.index_var, inst.value, signature)
        return super().lower_inst(inst)

    def lower_binop(self, resty: Any, expr: Any, op: Any) -> Any:
        """Return the result of an operator; numba would first look at powers of a constant."""
        signature, context = self.fndesc.calltypes[expr], self.context
        function = context.typing_context.resolve_value_type(op)
        signature = context.typing_context.resolve_function_type(function, signature.args, {})
        operands = zip((expr.lhs, expr.rhs), signature.args, strict=True)
        values = [self._cast_var(variable, kind) for variable, kind in operands]
        result = context.get_function(function, signature)(self.builder, values)
        return context.cast(self.builder, result, signature.return_type, resty)

    def lower_getitem(self, resty: Any, expr: Any, value: Any, index: Any, signature: Any) -> Any:
        """Return an element of an array, or whatever else has items."""
        address = self._address(value, index, signature)
        if address is None:
            return super().lower_getitem(resty, expr, value, index, signature)
        dtype = self.typeof(value.name).dtype
        item = self.context.unpack_value(self.builder, dtype, address)
        return self.context.cast(self.builder, item, dtype, resty)

    def lower_setitem(self, target_var: Any, index_var: Any, value_var: Any, signature: Any) -> Any:
        """Assign to an element of an array, or to whatever else has items."""
        address = self._address(target_var, index_var, signature)
        if address is None:
            return super().lower_setitem(target_var, index_var, value_var, signature)
        dtype = self.typeof(target_var.name).dtype
        self.context.pack_value(self.builder, dtype, self._cast_var(value_var, dtype), address)
        return None

    def _address(self, array_var: Any, index_var: Any, signature: Any) -> Any:
        """Return where an element of an array without gaps is; None for slices and other types."""
        array_type = self.typeof(array_var.name)
        if not isinstance(array_type, types.Array) or array_type.layout != "C":
            return None
        index_type, builder = signature.args[1], self.builder
        is_tuple = isinstance(index_type, types.BaseTuple)
        kinds: Sequence[Any] = tuple(index_type) if is_tuple else (index_type,)
        if len(kinds) != array_type.ndim or not array_type.aligned:
            return None
        if not all(isinstance(kind, types.Integer) for kind in kinds):
            return None
        index, places = self._cast_var(index_var, index_type), []
        for axis, kind in enumerate(kinds):
            place = builder.extract_value(index, axis) if is_tuple else index
            places.append(self.context.cast(builder, place, kind, types.intp))
        array, at = self.loadvar(array_var.name), places[0]
        if len(places) > 1:
            shape = array_field(self.context, builder, array_type, array, "shape")
            for axis, place in enumerate(places[1:], 1):
                at = builder.add(builder.mul(at, builder.extract_value(shape, axis)), place)
        return builder.gep(array_field(self.context, builder, array_type, array, "data"), [at])
