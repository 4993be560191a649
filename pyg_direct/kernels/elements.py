"""Elements and shapes of arrays in LLVM's code, in a quarter of the instructions of numba's own.

numba lays an array's record on the stack for each access, and asks it for strides and shape as if
the index were a slice. For an element of a C-contiguous array the address and the index are enough.
All other accesses are numba's.
"""

# mypy: disable-error-code="attr-defined,misc,no-untyped-call,untyped-decorator"

from __future__ import annotations

import operator
from typing import Any

from numba import types
from numba.core import cgutils
from numba.core.imputils import Registry
from numba.np import arrayobj

registry = Registry("pyg_direct arrays")


def _field(context: Any, builder: Any, array_type: Any, array: Any, name: str) -> Any:
    position = context.data_model_manager[array_type].get_field_position(name)
    return builder.extract_value(array, position)


def _names_an_element(array: Any, index: Any) -> bool:
    """Whether an index is of one element, and its place a sum over C-contiguous dimensions."""
    kinds = index.types if isinstance(index, types.BaseTuple) else (index,)
    integers = all(isinstance(kind, types.Integer) for kind in kinds)
    return array.layout == "C" and array.ndim == len(kinds) and integers


def _address(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Return the address of an element.

    No index of ours counts from the end. That one might takes two instructions for each access, and
    loops over an array do not become vector instructions then.
    """
    array_type, index_type = signature.args[:2]
    array, index = arguments[:2]
    if isinstance(index_type, types.BaseTuple):
        kinds, indices = index_type.types, cgutils.unpack_tuple(builder, index)
    else:
        kinds, indices = (index_type,), (index,)
    shape = _field(context, builder, array_type, array, "shape")
    place = None
    for axis, (kind, at) in enumerate(zip(kinds, indices, strict=True)):
        at = context.cast(builder, at, kind, types.intp if kind.signed else types.uintp)
        if place is not None:
            at = builder.add(builder.mul(place, builder.extract_value(shape, axis)), at)
        place = at
    return builder.gep(_field(context, builder, array_type, array, "data"), [place])


@registry.lower(operator.getitem, types.Array, types.Integer)
@registry.lower(operator.getitem, types.Array, types.BaseTuple)
def load(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Return `array[index]`."""
    array, index = signature.args
    if _names_an_element(array, index):
        address = _address(context, builder, signature, arguments)
        return arrayobj.load_item(context, builder, array, address)
    if isinstance(index, types.BaseTuple):
        return arrayobj.getitem_array_tuple(context, builder, signature, arguments)
    return arrayobj.getitem_arraynd_intp(context, builder, signature, arguments)


@registry.lower(operator.setitem, types.Array, types.Integer, types.Any)
@registry.lower(operator.setitem, types.Array, types.BaseTuple, types.Any)
def save(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Do `array[index] = value`."""
    array, index, kind = signature.args
    if not _names_an_element(array, index):
        return arrayobj.setitem_array(context, builder, signature, arguments)
    value = context.cast(builder, arguments[2], kind, array.dtype)
    address = _address(context, builder, signature, arguments)
    arrayobj.store_item(context, builder, array, value, address)
    return None


@registry.lower_getattr(types.Array, "shape")
def shape(context: Any, builder: Any, array_type: Any, array: Any) -> Any:
    """Return `array.shape`."""
    return _field(context, builder, array_type, array, "shape")
