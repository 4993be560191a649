"""Faults in graphs that are saved in parts, and in batches of several parts."""

from __future__ import annotations

from ..fault import Fault

PARTITION = "pyg_direct/partitions/partition.py"
METHODS = "pyg_direct/partitions/methods.py"
OWNERS = "pyg_direct/ranks/owners.py"
WRITE = "pyg_direct/partitions/write.py"
REPORT = "pyg_direct/partitions/report.py"
PART = "pyg_direct/partitions/part.py"
SOURCE = "pyg_direct/partitions/source.py"
HOST_PARTS = "pyg_direct/ops/host/parts.py"
OF_FILES = "pyg_direct/files/parts.py"
ORDER = "pyg_direct/loading/order.py"

SHARED_ROWS = "pyg_direct/loading/shared_rows.py"

HOST_IN_COMMON = "pyg_direct/ops/host/in_common.py"
COMMON_BATCH = "pyg_direct/ranks/common_batch.py"
STEP_ROUNDS = "pyg_direct/ranks/step_rounds.py"
BATCH_EXCHANGE = "pyg_direct/ranks/batch_exchange.py"
CHANNEL = "pyg_direct/ranks/channel.py"

PARTED = "tests/unit/partitions/test_partition.py"
SHARED = "tests/integration/test_shared_rows.py"
COOPERATIVE = "tests/integration/test_cooperative_batches.py"
NUMBERED = "tests/unit/ops/host/test_in_common.py"
STEPS_OF_RANKS = "tests/unit/ranks/test_step_rounds.py"
CHANNELS = "tests/unit/ranks/test_channel.py"
WITHIN_STEPS = "tests/integration/test_failures_of_common_steps.py"

FAULTS: list[Fault] = [
    Fault(
        "a call goes on behind an interrupted one that had other rows",
        PARTITION,
        "{n: fingerprint_of([v], LOOKED_AT) for n, v",
        "{n: str(v.dtype) for n, v",
        PARTED,
    ),
    Fault(
        "a partition takes the place of what is there",
        PARTITION,
        "check_replaceable(target, overwrite=False)",
        "check_replaceable(target, overwrite=True)",
        PARTED,
    ),
    Fault(
        "attributes of edges are left out where there are no types",
        PARTITION,
        "if name not in TOPOLOGY and (hetero or data.is_edge_attr(name))",
        "if name not in TOPOLOGY and hetero",
        PARTED,
    ),
    Fault(
        "quantized rows are saved without their scales",
        PARTITION,
        "    if isinstance(value, QuantizedTensor):",
        "    if False:",
        PARTED,
    ),
    Fault(
        "parts are given that are not there",
        OWNERS,
        "if low < 0 or high >= parts:",
        "if low < 0:",
        "tests/unit/ranks/test_owners.py",
    ),
    Fault(
        "parts are given as floating-point numbers",
        OWNERS,
        "part.is_floating_point() or part.is_complex()",
        "part.is_complex()",
        "tests/unit/ranks/test_owners.py",
    ),
    Fault(
        "METIS balances nodes without their lists",
        METHODS,
        "vweights=(degrees + mean).tolist())",
        "vweights=[1] * len(degrees))",
        PARTED,
    ),
    Fault(
        "the in-edges of parts are not balanced",
        HOST_PARTS,
        "int(np.ceil(EDGE_ROOM * len(csc.indices) / parts)) + 1",
        "len(csc.indices) + 1",
        PARTED,
    ),
    Fault(
        "all nodes are hashed to the first part",
        HOST_PARTS,
        "np.uint64(parts) >> np.uint64(32)",
        "np.uint64(parts) >> np.uint64(48)",
        PARTED,
    ),
    Fault(
        "one pass of greedy placement is made",
        HOST_PARTS,
        "for _ in range(PASSES):",
        "for _ in range(1):",
        PARTED,
    ),
    Fault(
        "the row of a node in its part is its id",
        WRITE,
        "row[own] = np.arange(len(own))",
        "row[own] = own",
        PARTED,
    ),
    Fault(
        "lists of the second edge type point into the first",
        WRITE,
        "ends = counts[:r].sum(0)",
        "ends = counts[:0].sum(0)",
        PARTED,
    ),
    Fault(
        "the ids of edges are their positions in the CSC",
        WRITE,
        "found: Ints = position - first if csc.perm is None else csc.perm[position]",
        "found: Ints = position - first",
        PARTED,
    ),
    Fault(
        "a list is written twice where a step ends in it",
        WRITE,
        'limit, "right")) - 1',
        'limit, "right"))',
        PARTED,
    ),
    Fault(
        "an interrupted step leaves files that are added to",
        WRITE,
        "                    left.unlink()",
        "                    pass",
        PARTED,
    ),
    Fault(
        "the balance is that of the smallest part",
        REPORT,
        "return max(counts, default=0) / mean if mean else 1.0",
        "return min(counts, default=0) / mean if mean else 1.0",
        PARTED,
    ),
    Fault(
        "remote rows are those of the last part that was tried",
        REPORT,
        "rows, remote = rows + len(there), remote + int((there != p).sum())",
        "rows, remote = len(there), int((there != p).sum())",
        PARTED,
    ),
    Fault(
        "a part of another partition is read",
        OF_FILES,
        "if header_checksum(header) != manifest.checksums[number]:",
        "if False:",
        PARTED,
    ),
    Fault(
        "batches of one part have its first seeds again and again",
        ORDER,
        "first = (len(of_part[p]) // size - left[p]) * size",
        "first = 0",
        PARTED,
    ),
    Fault(
        "seeds that are less than a batch of each part are left out",
        ORDER,
        "return torch.cat([*batches, rest])",
        "return torch.cat([*batches, rest[:0]])",
        PARTED,
    ),
    Fault(
        "the ids of edges are those of the first relation",
        PART,
        "ids_at(self._edge_ids[r], at, base, edge[first:last])",
        "ids_at(self._edge_ids[0], at, base, edge[first:last])",
        PARTED,
    ),
    Fault(
        "attributes of edges are those of other relations",
        PART,
        "columns += [table[at - base] for table in self._columns[r]]",
        "columns += [table[at] for table in self._columns[r]]",
        PARTED,
    ),
    Fault(
        "edges of a hop have the attributes of other edges",
        SOURCE,
        "at = at - first[p] - begin[p] + (np.cumsum(each) - each)[p]",
        "at = at - first[p] - begin[p]",
        PARTED,
    ),
    Fault(
        "all rows that ranks share are the first rank's",
        OWNERS,
        "(part % world_size)",
        "(part % 1)",
        SHARED,
    ),
    Fault(
        "quantized rows that ranks share are decoded by the factors of other rows",
        SHARED_ROWS,
        "decode(value, rows.get(name + SCALE, stored.scale))",
        "decode(value, stored.scale if stored.scale.dim() == 1 else stored.scale[: len(value)])",
        SHARED,
    ),
    Fault(
        "of a seed that comes twice in a common batch the last place counts",
        HOST_IN_COMMON,
        "self._table[seeds[::-1]] = np.arange(len(seeds) - 1, -1, -1, dtype=np.int32)",
        "self._table[seeds] = np.arange(len(seeds), dtype=np.int32)",
        NUMBERED,
    ),
    Fault(
        "a common batch knows nodes of the one before it",
        HOST_IN_COMMON,
        "        for ids in (*self.own, *self.others):",
        "        for ids in self.own:",
        NUMBERED,
    ),
    Fault(
        "local ids in a common batch begin anew in each hop",
        COMMON_BATCH,
        "self._local[t] = self._known[t] + np.searchsorted(of_type, own)",
        "self._local[t] = np.searchsorted(of_type, own)",
        COOPERATIVE,
    ),
    Fault(
        "relations of a common batch share their keys",
        COMMON_BATCH,
        "int(fanouts[r]), int(bases[r]))",
        "int(fanouts[r]), 0)",
        COOPERATIVE,
    ),
    Fault(
        "the batches that ranks make together have keys of their own",
        "pyg_direct/loading/steps.py",
        "next(in_common) if ranks.in_common else key",
        "key",
        COOPERATIVE,
    ),
    Fault(
        "a state of common batches serves any number of ranks",
        "pyg_direct/loading/resuming.py",
        "{COOPERATIVE: self._ranks().world_size} if self._split.cooperative else {}",
        "{}",
        COOPERATIVE,
    ),
    Fault(
        "a rank asks for the step that was asked for first, not for the earliest",
        STEP_ROUNDS,
        "min(held, key=_number)",
        "held[0]",
        STEPS_OF_RANKS,
    ),
    Fault(
        "what an iterator asked for that is gone is waited for",
        STEP_ROUNDS,
        "if self._is_stale(request.asked.key.ticket)",
        "if False",
        STEPS_OF_RANKS,
    ),
    Fault(
        "a rank asks for a step for ever",
        STEP_ROUNDS,
        "self._failure = self._failure or (",
        "self._failure = self._failure and (",
        STEPS_OF_RANKS,
    ),
    Fault(
        "a rank waits for one that has no loader any more",
        STEP_ROUNDS,
        "if CLOSED in statuses and asks:",
        "if False:",
        STEPS_OF_RANKS,
    ),
    Fault(
        "exchanges go on behind one that was given up",
        CHANNEL,
        "        if self.group in _lost:",
        "        if False:",
        CHANNELS,
    ),
    Fault(
        "new loaders compute over the exchanges that a rank has given up",
        BATCH_EXCHANGE,
        "if any(lost for _, lost in said):",
        "if False:",
        WITHIN_STEPS,
    ),
]
