"""Faults in users' models on batches and on whole graphs."""

from __future__ import annotations

from ..fault import Fault

RANKING = "pyg_direct/models/ranking.py"
OF_RANKING = "tests/unit/models/test_ranking.py"
ACCELERATE = "pyg_direct/models/accelerate.py"
LISTS = "pyg_direct/models/message_lists.py"
MOVES = "pyg_direct/models/batch_moves.py"
REUSE = "pyg_direct/models/reuse.py"
REUSING = "pyg_direct/loading/reusing.py"
NEEDED = "pyg_direct/models/needed.py"
RULES = "pyg_direct/models/row_rules.py"
RUN = "pyg_direct/models/batch_run.py"
NUMBERS = "pyg_direct/models/numbers_kept.py"
SIZES = "pyg_direct/models/batch_sizes.py"
STEP_CALLS = "pyg_direct/models/step_calls.py"
SUMS = "pyg_direct/models/needed_sums.py"

CERTIFICATE = "pyg_direct/models/certificate.py"
COSTS = "pyg_direct/models/costs.py"
NEEDED_ROWS = "pyg_direct/models/needed_rows.py"
TENSOR = "pyg_direct/models/batch_tensor.py"

VALUES = "tests/unit/models/test_needed.py"
MATRIX = "tests/unit/models/test_accelerate_matrix.py"
LAZY = "tests/unit/models/test_accelerating_lazy_models.py"
ACCELERATED = "tests/unit/models/test_accelerate.py"
OF_REUSE = "tests/unit/models/test_reuse.py"
CERTIFIED = "tests/unit/models/test_certificate.py"
CHANGING = "tests/unit/models/test_changing_models.py"
HEADS = "tests/unit/models/test_sums_by_heads.py"

FAULTS: list[Fault] = [
    Fault(
        "reuse: rows are used for a batch more than they may be",
        REUSING,
        "could &= batch - by <= rule.staleness",
        "could &= batch - by <= rule.staleness + 1",
        OF_REUSE,
    ),
    Fault(
        "reuse: an iteration goes by what was planned, not by what was trained",
        REUSING,
        "            self._by[:] = rows.numpy()\n",
        "",
        OF_REUSE,
    ),
    Fault(
        "reuse: the edges of the last hop keep their destinations",
        REUSING,
        "    edges[1, earlier:] = place[edges[1, earlier:]]\n",
        "",
        OF_REUSE,
    ),
    Fault(
        "reuse: refreshed rows have their gradient once",
        REUSE,
        "/= self._tables.refresh",
        "/= 1.0",
        OF_REUSE,
    ),
    Fault(
        "reuse: rows are used whatever steps the optimizer took",
        REUSE,
        "if oldest > self._staleness:",
        "if False:",
        OF_REUSE,
    ),
    Fault(
        "reuse: degrees are those of the batch with edges left out",
        REUSE,
        "if gathered.layer != 1 and not gathered.of_edges:",
        "if gathered.layer != 1:",
        OF_REUSE,
    ),
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
        'known = self.reduce in OF_SCATTER and (self.reduce == "sum") == self.include',
        "known = self.reduce in OF_SCATTER",
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
    Fault(
        "rows that were computed in another order are taken for those asked for",
        NEEDED,
        "return (have.order is rows.order and have.count >= rows.count) or (",
        "return (have.count >= rows.count) or (",
        VALUES,
    ),
    Fault(
        "rows outside of a gradient's are not zero",
        NEEDED,
        "    out = data.new_zeros(size)\n    out.narrow",
        "    out = data.new_ones(size)\n    out.narrow",
        VALUES,
    ),
    Fault(
        "a number other than zero is taken for a gradient of zero",
        NEEDED,
        "        if value == 0:\n            self.support",
        "        if value is not None:\n            self.support",
        VALUES,
    ),
    Fault(
        "rows that a second reader needs are not computed",
        NEEDED,
        "needs[source] = source.wanted(union(needs[source], part, source.num_rows) or part)",
        "needs[source] = source.wanted(part)",
        VALUES,
    ),
    Fault(
        "messages are put back at the places of others",
        NEEDED,
        "all_rows.index_copy_(self.dim, have.order.position[: have.count], data)",
        "all_rows.narrow(self.dim, 0, have.count).copy_(data)",
        VALUES,
    ),
    Fault(
        "sums are added to a base that is left out",
        SUMS,
        "        zero = isinstance(self.base, Fill) and self.base.value == 0 and self.dim == 0\n",
        "        zero = self.dim == 0\n",
        VALUES,
    ),
    Fault(
        "counts of messages are those of ones, whatever number is added",
        SUMS,
        "return counts if number == 1 else counts.mul_(number)",
        "return counts",
        VALUES,
    ),
    Fault(
        "a mean includes the row it is written to",
        SUMS,
        "self.reduce, include_self=self.include)",
        "self.reduce, include_self=True)",
        VALUES,
    ),
    Fault(
        "heads of an attention are weighted by the first one",
        SUMS,
        "values = weight.at(messages).squeeze(2)",
        "values = weight.at(messages).squeeze(2)[:, :1].expand(-1, self.shape[1]).contiguous()",
        HEADS,
    ),
    Fault(
        "the sums of another edge type serve for the gradient of a weight",
        SUMS,
        "same = order is take.order and index is self.order.index",
        "same = True",
        VALUES,
    ),
    Fault(
        "products by head are summed over all of them",
        SUMS,
        "if dims != [2] or products.have",
        "if products.have",
        VALUES,
    ),
    Fault(
        "negative ids name other rows",
        MOVES,
        "run.lists.one(index % rows) if low < 0 else index)",
        "run.lists.one(index.abs()) if low < 0 else index)",
        VALUES,
    ),
    Fault(
        "ids that are out of range are read",
        MOVES,
        "if low < -rows or high >= rows:",
        "if low < -rows:",
        VALUES,
    ),
    Fault(
        "every second row of a slice is the next one",
        MOVES,
        "rows < 2 or step != 1:",
        "rows < 2:",
        VALUES,
    ),
    Fault(
        "the gradient of a slice is that of the first rows",
        MOVES,
        'or given["start"] not in (0, None) or given["step"] != 1:',
        'or given["step"] != 1:',
        VALUES,
    ),
    Fault(
        "a split starts again at the first row",
        MOVES,
        "[_first(table, dim, sum(sizes[:i]), s) for i, s in enumerate(sizes)]",
        "[_first(table, dim, 0, s) for i, s in enumerate(sizes)]",
        VALUES,
    ),
    Fault(
        "a bias gets the gradient of some rows",
        MOVES,
        "return known.func(compute_rows(node, node.support), *args[1:], **kwargs)",
        "return known.func(compute_rows(node, Rows(1)), *args[1:], **kwargs)",
        MATRIX,
    ),
    Fault(
        "elements of one column go to different rows, and are added to one",
        MOVES,
        "        if index.stride(1 - dim) != 0 and index.size(1 - dim) > 1:\n            return None\n",
        "",
        VALUES,
    ),
    Fault(
        "a view keeps its numbers when what it shows is written to",
        RUN,
        "        view.group.append(weakref.ref(view))",
        "        view.group = [weakref.ref(view)]",
        VALUES,
    ),
    Fault(
        "a tensor that was written to after it was read goes unnoticed",
        NUMBERS,
        "            if writes_to(tensor) != count:",
        "            if False:",
        CHANGING,
    ),
    Fault(
        "a small tensor has the numbers of a later write",
        NUMBERS,
        "known = self._kept[place] = tensor, tensor.detach().clone()",
        "known = self._kept[place] = tensor, tensor.detach()",
        VALUES,
    ),
    Fault(
        "calls with another number are those of the first",
        STEP_CALLS,
        "            found.append(ROWS if value == num_rows else value)",
        "            found.append(ROWS)",
        VALUES,
    ),
    Fault(
        "rows of a result of several are all of the first",
        STEP_CALLS,
        "part: Tensor = several.box().data[self.place]",
        "part: Tensor = several.box().data[0]",
        VALUES,
    ),
    Fault(
        "lists that are as long are taken for equal",
        LISTS,
        "            if torch.equal(other, index):",
        "            if True:",
        VALUES,
    ),
    Fault(
        "messages to a row are those in front of it",
        LISTS,
        "taken = index.index_select(0, rows.order.position[: rows.count])",
        "taken = index[: rows.count]",
        VALUES,
    ),
    Fault(
        "dropout draws the same numbers in each block of rows",
        NEEDED_ROWS,
        "draw.manual_seed(self.seed + place)",
        "draw.manual_seed(self.seed)",
        VALUES,
    ),
    Fault(
        "dropout of a step is that of the step before",
        NEEDED_ROWS,
        "int(torch.randint(1 << 62, ()))",
        "1",
        VALUES,
    ),
    Fault(
        "rows of a norm that come later have statistics of their own",
        NEEDED_ROWS,
        "        if self.normalised.count == 0:",
        "        if True:",
        VALUES,
    ),
    Fault(
        "the gradient of features has those of other rows",
        TENSOR,
        "            grad = _leave(grad, ctx.rows)",
        "            grad = _leave(grad, ctx.rows).flip(0)",
        MATRIX,
    ),
    Fault(
        "what the forward wrote to its arguments is lost",
        SIZES,
        "                    value.copy_(made.whole())",
        "                    pass",
        CERTIFIED,
    ),
    Fault(
        "outputs are those of all nodes",
        SIZES,
        "return take(out, next(iter(seeds)) if len(seeds) == 1 else rows)",
        "return take(out, rows)",
        "tests/unit/models/test_batch_sizes.py",
    ),
    Fault(
        "numbers that differ go unnoticed",
        CERTIFICATE,
        "    if gap <= allowed * max(",
        "    if True or gap <= allowed * max(",
        CERTIFIED,
    ),
    Fault(
        "NaN goes unnoticed",
        CERTIFICATE,
        '.nan_to_num(float("inf")).max())',
        ".nan_to_num(0.0).max())",
        CERTIFIED,
    ),
    Fault(
        "what only the plain model writes goes unnoticed",
        CERTIFICATE,
        "    if lost:\n",
        "    if False:\n",
        CERTIFIED,
    ),
    Fault(
        "gradients that differ go unnoticed",
        CERTIFICATE,
        "    for ours, theirs in zip(found, expected, strict=True):\n        if ours is None and",
        "    for ours, theirs in ():\n        if ours is None and",
        CERTIFIED,
    ),
    Fault(
        "a comparison draws the random numbers of the training",
        CERTIFICATE,
        "        drew = stack.enter_context(same_generators(parameters))",
        "        drew: set[str] = set()",
        CERTIFIED,
    ),
    Fault(
        "only the first batch is compared",
        CERTIFICATE,
        "return call in CALLS or call % EVERY == 0",
        "return call == 1",
        CERTIFIED,
    ),
    Fault(
        "batches whose steps are slower run on the needed rows",
        COSTS,
        "        return self._columns * num_edges >= COST_OF_BATCH + COST_OF_CALL * self._calls",
        "        return True",
        "tests/unit/models/test_costs.py",
    ),
    Fault(
        "an accelerated model that failed fails at each step",
        ACCELERATE,
        '        self._refuted, self.reason = True, ""\n',
        '        self.reason = ""\n',
        CERTIFIED,
    ),
]
