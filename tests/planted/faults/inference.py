"""Faults in what `inference` computes layer by layer: tables, lists, sums, files and arguments."""

from __future__ import annotations

from ..fault import Fault

COMPUTING = "pyg_direct/models/computing.py"
INFERENCE = "pyg_direct/models/inference.py"
MODES = "pyg_direct/models/modes.py"
MOVING = "pyg_direct/models/moving.py"
ORDERS = "pyg_direct/models/orders.py"
PROJECTING = "pyg_direct/models/projecting.py"
REDUCING = "pyg_direct/models/reducing.py"
RUN = "pyg_direct/models/run.py"
STORE = "pyg_direct/models/store.py"
TABLES = "pyg_direct/models/tables.py"
TENSOR = "pyg_direct/models/table_tensor.py"

OF_INFERENCE = "tests/unit/models/test_inference.py"
MATRIX = "tests/unit/models/test_inference_matrix.py"
PRODUCTS = "tests/unit/models/test_inference_products.py"
RESUMING = "tests/unit/models/test_resuming_inference.py"
OF_STORE = "tests/unit/models/test_store.py"

FAULTS = [
    Fault(
        "a list that sums into fewer rows has the order of another number of rows",
        ORDERS,
        "if order.indptr.numel() == num_rows + 1 and same:",
        "if same:",
        PRODUCTS,
    ),
    Fault(
        "a list that changes in place is read as it was",
        ORDERS,
        "self._narrow = {k: v for k, v in self._narrow.items() if k[0] != storage}",
        "pass",
        PRODUCTS,
    ),
    Fault(
        "every second entry of a list is taken for the first half of it",
        ORDERS,
        "index.dtype, index.shape, index.stride()",
        "index.dtype, index.shape",
        PRODUCTS,
    ),
    Fault(
        "a mean that includes its row is divided by one too few",
        REDUCING,
        "(degree + self.include).clamp_(min=1)",
        "degree.clamp_(min=1)",
        PRODUCTS,
    ),
    Fault(
        "extremes that include their row pass over it",
        REDUCING,
        'fits = zero and (self.reduce == "sum") == self.include',
        "fits = zero",
        PRODUCTS,
    ),
    Fault(
        "sums of twos are counts",
        REDUCING,
        "return fits and base.value == 0 and source.value == 1",
        "return fits and base.value == 0 and source.value != 0",
        PRODUCTS,
    ),
    Fault(
        "sums of ones onto other numbers are counts",
        REDUCING,
        "return fits and base.value == 0 and source.value == 1",
        "return fits and source.value == 1",
        PRODUCTS,
    ),
    Fault(
        "rows without messages of a product are those of integers",
        REDUCING,
        'value = float("-inf") if reduce == "amax" else float("inf")',
        'value = info.max if reduce == "amax" else info.min',
        MATRIX,
    ),
    Fault(
        "messages that are added twice are added once",
        MOVING,
        'if base.dtype != source.dtype or given.get("alpha", 1) != 1 or base.size(dim) < 2:',
        "if base.dtype != source.dtype or base.size(dim) < 2:",
        PRODUCTS,
    ),
    Fault(
        "rows that are named from the end are others",
        MOVING,
        "index = index % rows if least < 0 else index",
        "index = index.clamp(min=0)",
        PRODUCTS,
    ),
    Fault(
        "rows behind the last are read",
        MOVING,
        "if least < -rows or most >= rows:",
        "if least < -rows:",
        PRODUCTS,
    ),
    Fault(
        "means of whole numbers are cut off",
        MOVING,
        '    if reduce == "mean" and not base.dtype.is_floating_point:\n        return None\n',
        "",
        PRODUCTS,
    ),
    Fault(
        "blocks of few rows count as much as others in a mean",
        RUN,
        "return (stacked * (share / share.sum()).view(shape)).sum(0)",
        "return stacked.mean(0)",
        MATRIX,
    ),
    Fault(
        "sums of a narrow dtype are of a wide one",
        RUN,
        "return stacked.sum(0, dtype=dtype)",
        "return stacked.sum(0)",
        PRODUCTS,
    ),
    Fault(
        "a table that is written to gets the dtype of what is written",
        RUN,
        "        if found.meta.dtype != target.dtype:\n",
        "        if False:\n",
        PRODUCTS,
    ),
    Fault(
        "rows that are read later have the numbers of a write to a plain tensor",
        RUN,
        "                setattr(reader, name, getattr(reader, name).clone())\n",
        "                pass\n",
        MATRIX,
    ),
    Fault(
        "factors of a product with a bias are left out",
        PROJECTING,
        "    if kwargs or not isinstance(table, TableTensor) or table.plain is not None:\n",
        "    if not isinstance(table, TableTensor) or table.plain is not None:\n",
        PRODUCTS,
    ),
    Fault(
        "a product comes before sums that start from other rows",
        PROJECTING,
        "fits = zero and gathered and wide and node.reduce",
        "fits = gathered and wide and node.reduce",
        PRODUCTS,
    ),
    Fault(
        "a product comes before sums that are divided column by column",
        PROJECTING,
        "        if tuple(divisor.meta.shape) != (spread.num_rows, 1):\n            return None, None\n",
        "",
        PRODUCTS,
    ),
    Fault(
        "a layer that takes other rows goes on with the file of an earlier one",
        TABLES,
        '        """Return the list."""\n        return [self.index]',
        '        """Return the list."""\n        return []',
        RESUMING,
    ),
    Fault(
        "a layer that takes another of several results goes on with the file of an earlier one",
        TABLES,
        '        """Return which it is."""\n        return [self.place]',
        '        """Return which it is."""\n        return []',
        RESUMING,
    ),
    Fault(
        "a layer that sums up otherwise goes on with the file of an earlier one",
        REDUCING,
        "return [self.reduce, self.include, self.order.index]",
        "return [self.order.index]",
        RESUMING,
    ),
    Fault(
        "a layer of other edges goes on with the file of an earlier one",
        REDUCING,
        "return [self.reduce, self.include, self.order.index]",
        "return [self.reduce, self.include]",
        RESUMING,
    ),
    Fault(
        "a layer of other features goes on with the file of an earlier one",
        TABLES,
        '        """Return the tensor."""\n        return [self.table]',
        '        """Return the tensor."""\n        return []',
        RESUMING,
    ),
    Fault(
        "numbers that differ in dtype alone have one checksum",
        STORE,
        'f"{tuple(value.shape)} {value.dtype}".encode(), found)\n        for piece',
        'f"{tuple(value.shape)}".encode(), found)\n        for piece',
        OF_STORE,
    ),
    Fault(
        "a forward writes to the weights of the user's edges",
        INFERENCE,
        "return plain.detach().to(run.device, copy=True)",
        "return plain.detach().to(run.device)",
        PRODUCTS,
    ),
    Fault(
        "a folder of layers stays when the result is there",
        INFERENCE,
        "if ranks.rank == 0 and (done or not resume):",
        "if ranks.rank == 0 and not resume:",
        RESUMING,
    ),
    Fault(
        "layers that keep degrees keep none after an inference",
        MODES,
        '            setattr(m, "cached", True)',
        '            setattr(m, "cached", False)',
        OF_INFERENCE,
    ),
    Fault(
        "what was read before a write has the numbers after it",
        TENSOR,
        "root.plain = root.whole().clone()",
        "root.plain = root.whole()",
        PRODUCTS,
    ),
    Fault(
        "a tensor that the model keeps is not computed at the end",
        RUN,
        "            self.computer.complete(tables[made].node)\n",
        "            pass\n",
        PRODUCTS,
    ),
    Fault(
        "rows of a layer that is kept narrow are those of the narrow dtype",
        TABLES,
        "return found if found.dtype == self.meta.dtype else found.to(self.meta.dtype)",
        "return found",
        OF_INFERENCE,
    ),
    Fault(
        "blocks are as large as without a limit of memory",
        COMPUTING,
        "self.block_bytes = max(MIN_BLOCK_BYTES, min(BLOCK_BYTES, share))",
        "self.block_bytes = BLOCK_BYTES",
        OF_STORE,
    ),
]
