"""Faults where an accelerated step meets what a user's program does around it and within it."""

from __future__ import annotations

from ..fault import Fault

ACCELERATE = "pyg_direct/models/accelerate.py"
BATCH_RUN = "pyg_direct/models/batch_run.py"
CERTIFICATE = "pyg_direct/models/certificate.py"
COOPERATING = "pyg_direct/models/cooperating.py"
LISTS = "pyg_direct/models/message_lists.py"
MESSAGES = "pyg_direct/models/common_messages.py"
NEEDED_ROWS = "pyg_direct/models/needed_rows.py"
NORM = "pyg_direct/models/common_norm.py"
NUMBERS = "pyg_direct/models/numbers_kept.py"
REUSE = "pyg_direct/models/reuse.py"
SIZES = "pyg_direct/models/batch_sizes.py"
STATE = "pyg_direct/models/model_state.py"
SUMS = "pyg_direct/models/needed_sums.py"

ARGUMENTS = "tests/unit/models/test_accelerate_arguments.py"
AROUND = "tests/unit/models/test_around_steps.py"
CERTIFIED = "tests/unit/models/test_certificate.py"
CHANGING = "tests/unit/models/test_changing_models.py"
LAZY = "tests/unit/models/test_accelerating_lazy_models.py"
MATRIX = "tests/unit/models/test_accelerate_matrix.py"
OF_REUSE = "tests/unit/models/test_reuse.py"
VALUES = "tests/unit/models/test_needed.py"
COOPERATIVE = "tests/integration/test_cooperative_models.py"
OF_COMMON = "tests/unit/models/test_common_rows.py"

FAULTS = [
    Fault(
        "copies of a model normalise over other rows",
        ACCELERATE,
        "return _accelerated, (plain, all_statistics, certify)",
        "return _accelerated, (plain, True, certify)",
        CERTIFIED,
    ),
    Fault(
        "a step that ran out of memory on the GPU runs plain from then on",
        ACCELERATE,
        "        except torch.cuda.OutOfMemoryError:\n            raise\n",
        "",
        CERTIFIED,
    ),
    Fault(
        "buffers without a shape are given that of some of the rows",
        ACCELERATE,
        "tensors = itertools.chain(self.plain.parameters(), self.plain.buffers())",
        "tensors = self.plain.parameters()",
        LAZY,
    ),
    Fault(
        "a loader goes on to leave out neighbours for a model that does not reuse rows",
        ACCELERATE,
        "    for loader in loaders:\n        loader._reusing = None\n",
        "",
        OF_REUSE,
    ),
    Fault(
        "what a checkpoint ends is taken for a failure",
        ACCELERATE,
        "            if in_backward():  # a checkpoint ends what it computes again by an exception\n"
        "                raise\n",
        "",
        f"{CERTIFIED} {ARGUMENTS}",
    ),
    Fault(
        "a matrix is taken for its transpose",
        NUMBERS,
        "writes_to(tensor), tensor.dtype, tensor.shape, tensor.stride()",
        "writes_to(tensor), tensor.dtype, tensor.shape",
        VALUES,
    ),
    Fault(
        "the first half of a tensor is taken for all of it",
        NUMBERS,
        "writes_to(tensor), tensor.dtype, tensor.shape, tensor.stride()",
        "writes_to(tensor), tensor.dtype, tensor.stride()",
        VALUES,
    ),
    Fault(
        "a tensor of a step that is written to gets the dtype of what is written",
        BATCH_RUN,
        "return found if found.dtype == target.dtype else self._converted",
        "return found if True else self._converted",
        VALUES,
    ),
    Fault(
        "a tensor of a step grows when a longer one is added to it in place",
        BATCH_RUN,
        "        if tuple(found.shape) != tuple(node.shape):\n            return None\n",
        "",
        VALUES,
    ),
    Fault(
        "dropout under a generator of the user's draws from another one",
        BATCH_RUN,
        'seeded = torch.initial_seed() != self._seed or kwargs.get("generator") is not None',
        "seeded = torch.initial_seed() != self._seed",
        VALUES,
    ),
    Fault(
        "two lists of one length have one order",
        LISTS,
        "key = id(index), num_rows\n        if key not in self._orders:",
        "key = id(index)\n        if key not in self._orders:",
        VALUES,
    ),
    Fault(
        "the sums of other rows serve for the gradient of a weight",
        SUMS,
        "(_memory(by), _memory(given)) == (_memory(weight), _memory(x))",
        "_memory(by) == _memory(weight)",
        VALUES,
    ),
    Fault(
        "extremes of weighted rows leave out the weights",
        SUMS,
        'fits = self.reduce == "sum" or (weight is None and source.support is None)',
        'fits = self.reduce == "sum" or source.support is None',
        VALUES,
    ),
    Fault(
        "rows that come later are normalised without the weight of the norm",
        NEEDED_ROWS,
        "        out = out if weight is None else out * weight\n",
        "",
        VALUES,
    ),
    Fault(
        "gradients behind a slice that begins later are those of other rows",
        NEEDED_ROWS,
        "self.support = Rows(min(num_rows, max(0, support.count - start)))",
        "self.support = Rows(max(0, min(num_rows - start, support.count)))",
        VALUES,
    ),
    Fault(
        "lists that a model keeps are empty after a comparison",
        STATE,
        "                (value.extend if isinstance(value, list) else value.update)(before)\n",
        "                pass\n",
        CERTIFIED,
    ),
    Fault(
        "a comparison draws from the generators of a model",
        STATE,
        "            generator.set_state(state)\n",
        "            pass\n",
        CHANGING,
    ),
    Fault(
        "buffers that batch norm has changed stay so after a comparison",
        STATE,
        "                    tensor.copy_(numbers)\n",
        "                    pass\n",
        CERTIFIED,
    ),
    Fault(
        "models under autocast run plain, as they round otherwise",
        CERTIFICATE,
        "allowed = max(allowed, ALLOWED_ELSE) if mixed else allowed",
        "allowed = max(allowed, 0.0) if mixed else allowed",
        CERTIFIED,
    ),
    Fault(
        "reuse: rows of another dtype are written to the table",
        REUSE,
        "if like is None or like.shape[1:] != computed.shape[1:] or like.dtype != computed.dtype:",
        "if like is None or like.shape[1:] != computed.shape[1:]:",
        OF_REUSE,
    ),
    Fault(
        "reuse: each of several optimizers makes rows older",
        REUSE,
        "            if not self._round or id(optimizer) in self._round:\n",
        "            if True:\n",
        OF_REUSE,
    ),
    Fault(
        "ranks wait for each other where a loss leaves out an output",
        COOPERATING,
        "    if len(seeds) > 1:\n",
        "    if len(seeds) > 2:\n",
        COOPERATIVE,
    ),
    Fault(
        "statistics of a norm whose rows nobody reads are not those of all ranks",
        COOPERATING,
        "read = [*((table.node, rows) for table, rows in tables), *run.unused_norms()]",
        "read = [(table.node, rows) for table, rows in tables]",
        COOPERATIVE,
    ),
    Fault(
        "running variances of ranks are those of a population",
        NORM,
        "running_var.data.lerp_((squares / (total - 1)).to(running_var), momentum)",
        "running_var.data.lerp_((squares / total).to(running_var), momentum)",
        COOPERATIVE,
    ),
    Fault(
        "ranks that have more to agree on than fits into a message agree on the first",
        MESSAGES,
        "self._say(titles, asked[i : i + NUMBERS]) for i in chunks",
        "self._say(titles, asked[:NUMBERS]) for i in chunks",
        OF_COMMON,
    ),
    Fault(
        "rows that are read after the optimizer's step are of the weights after it",
        NUMBERS,
        "if whole and tensor.requires_grad and tensor.numel() <= COPIED_WEIGHTS:",
        "if whole and tensor.requires_grad and tensor.is_leaf and tensor.dim() > 2:",
        AROUND,
    ),
    Fault(
        "rows that were read before a write in place have the numbers after it",
        NUMBERS,
        "            box.fill(box.data.clone(), cast(Rows, box.have))\n",
        "            pass\n",
        AROUND,
    ),
    Fault(
        "a write by .data between two reads goes unnoticed",
        NUMBERS,
        "if known is None or (on_host(tensor) and not torch.equal(known[1], tensor)):",
        "if known is None:",
        AROUND,
    ),
    Fault(
        "features that were overwritten are read in the backward",
        "pyg_direct/models/needed.py",
        "if self._writes is not None and writes_to(self.kept.data) != self._writes:",
        "if False:",
        AROUND,
    ),
    Fault(
        "a tensor that is given twice is two in the forward",
        SIZES,
        "        if known is not None:\n            return known\n",
        "",
        AROUND,
    ),
    Fault(
        "forward-mode AD loses its tangents",
        "pyg_direct/core/private_torch.py",
        "in_level = torch.autograd.forward_ad._current_level >= 0",
        "in_level = False",
        AROUND,
    ),
    Fault(
        "what a forward does to its parameters is done three times in a step that is compared",
        STATE,
        "return itertools.chain(model.parameters(), model.buffers())",
        "return iter(model.buffers())",
        AROUND,
    ),
    Fault(
        "columns that begin at the number of rows are those of another batch",
        BATCH_RUN,
        "fixed = plan.fixed and len(stated) == len(plan.sizes)",
        "fixed = plan.fixed and len(stated) >= len(plan.sizes)",
        "tests/unit/models/test_step_calls.py",
    ),
    Fault(
        "means of half precision over many rows are none",
        "pyg_direct/models/run.py",
        "share = torch.tensor(counts, dtype=torch.float64, device=stacked.device)",
        "share = torch.tensor(counts, dtype=stacked.dtype, device=stacked.device)",
        "tests/unit/models/test_inference.py",
    ),
]
