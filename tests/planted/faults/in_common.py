"""Faults in rows that ranks have in common, in fingerprints and in files that are mapped."""

from __future__ import annotations

from ..fault import Fault

MAPPED = "pyg_direct/core/mapped_files.py"
FINGERPRINT = "pyg_direct/core/fingerprint.py"
ROWS = "pyg_direct/ranks/rows.py"
OWNERS = "pyg_direct/ranks/owners.py"
SHARED_ROWS = "pyg_direct/loading/shared_rows.py"
COMMON_ROWS = "pyg_direct/models/common_rows.py"
FILLER = "pyg_direct/models/filler.py"

OF_MAPPED = "tests/unit/core/test_mapped_files.py"
OF_FINGERPRINT = "tests/unit/core/test_fingerprint.py"
OF_ROWS = "tests/unit/ranks/test_rows.py"
OF_OWNERS = "tests/unit/ranks/test_owners.py"
OF_SHARED_ROWS = "tests/unit/loading/test_shared_rows.py"
OF_COMMON_ROWS = "tests/unit/models/test_common_rows.py"
SHARED = "tests/integration/test_shared_rows.py"
SAME = f"{SHARED}::test_batches_are_those_of_ranks_that_load_alone"

FAULTS = [
    Fault(
        "own rows of later hops are not computed where they need no rows of others",
        COMMON_ROWS,
        "return bisect_right(self.others, self.others[first]) - 1",
        "return first",
        OF_COMMON_ROWS,
    ),
    Fault(
        "messages that read own rows only are taken for those of the hop before",
        COMMON_ROWS,
        "return bisect_left(self.own, end)",
        "return max(0, bisect_left(self.own, end) - 1)",
        OF_COMMON_ROWS,
    ),
    Fault(
        "two types of a common batch may have equally many rows",
        FILLER,
        "            while count + more in taken:\n",
        "            while False:\n",
        OF_COMMON_ROWS,
    ),
    Fault(
        "a graph that was saved anew while it was open is refused",
        MAPPED,
        "if now.identity == file.identity and now.state != file.state:",
        "if now.state != file.state:",
        OF_MAPPED,
    ),
    Fault(
        "a graph that was deleted while it was open cannot be read on",
        MAPPED,
        "        except OSError:\n            continue\n",
        "        except PermissionError:\n            continue\n",
        OF_MAPPED,
    ),
    Fault(
        "rows that another program writes while a graph is open are read",
        MAPPED,
        "state = now.st_size, now.st_mtime_ns",
        "state = now.st_size, 0",
        OF_MAPPED,
    ),
    Fault(
        "a file that is cut off with its time set back is read",
        MAPPED,
        "state = now.st_size, now.st_mtime_ns",
        "state = 0, now.st_mtime_ns",
        OF_MAPPED,
    ),
    Fault(
        "changed files are looked for in the folder that a process is in later",
        MAPPED,
        "MappedFile(os.path.abspath(path), (",
        "MappedFile(str(path), (",
        OF_MAPPED,
    ),
    Fault(
        "only the last of several changed files is looked at",
        MAPPED,
        "        found.append(MappedFile",
        "        found[:] = []\n        found.append(MappedFile",
        "tests/unit/files/test_changed_files.py",
    ),
    Fault(
        "arrays of other shapes have the same fingerprint",
        FINGERPRINT,
        'f"{flat.dtype}{tuple(array.shape)}"',
        'f"{flat.dtype}"',
        OF_FINGERPRINT,
    ),
    Fault(
        "arrays of other dtypes have the same fingerprint",
        FINGERPRINT,
        'f"{flat.dtype}{tuple(array.shape)}"',
        'f"{tuple(array.shape)}"',
        OF_FINGERPRINT,
    ),
    Fault(
        "where an array is missing does not count",
        FINGERPRINT,
        '            digest.update(b"None")\n',
        "",
        OF_FINGERPRINT,
    ),
    Fault(
        "the last element of an array may differ from a state's",
        FINGERPRINT,
        "* (len(flat) - 1) // max(1, count - 1)",
        "* len(flat) // count",
        OF_FINGERPRINT,
    ),
    Fault(
        "only the last array counts",
        FINGERPRINT,
        "        flat = torch.as_tensor(array)",
        "        digest = hashlib.sha256()\n        flat = torch.as_tensor(array)",
        OF_FINGERPRINT,
    ),
    Fault(
        "rows of several dimensions are taken for their first one",
        ROWS,
        "return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize",
        "return int(np.prod(self.shape[:1], dtype=np.int64)) * self.dtype.itemsize",
        OF_ROWS,
    ),
    Fault(
        "rows of an odd number of bytes come from behind where they are",
        ROWS,
        "return 8 * HEADER + sum(size + -size % ALIGNMENT for size in sizes)",
        "return 8 * HEADER + sum(sizes)",
        OF_ROWS,
    ),
    Fault(
        "rows that another rank could not read are anything",
        ROWS,
        "        if not message.take(np.int64, HEADER)[0]:\n",
        "        if message.take(np.int64, HEADER)[0] > 1:\n",
        OF_ROWS,
    ),
    Fault(
        "a rank that cannot read leaves the others waiting",
        ROWS,
        "            error, answers = caught, [self._nothing(rows) for rows in asked]\n",
        "            raise caught\n",
        OF_ROWS,
    ),
    Fault(
        "a rank that cannot read goes on with anything",
        ROWS,
        "        if error is not None:\n            raise error\n",
        "",
        OF_ROWS,
    ),
    Fault(
        "requests for the rows of a second part are those of the first",
        ROWS,
        "return [rows[i * types : (i + 1) * types] for i in range(parts)]",
        "return [rows[:types] for i in range(parts)]",
        OF_ROWS,
    ),
    Fault(
        "parts of a rank are taken for those of the same number",
        ROWS,
        "            here[owners.parts_of[channel.rank]] = True\n",
        "            here[channel.rank] = True\n",
        OF_ROWS,
    ),
    Fault(
        "rows of the own rank count as those of others",
        ROWS,
        "self.traffic.remote_rows += total - own",
        "self.traffic.remote_rows += total",
        OF_ROWS,
    ),
    Fault(
        "rows that are fetched once count as often as they are needed",
        ROWS,
        "            len(rows) for p, rows in enumerate(wanted) if p not in mine\n",
        "            total for p, rows in enumerate(wanted) if p not in mine\n",
        OF_ROWS,
    ),
    Fault(
        "an attribute without columns stops the exchange of rows",
        ROWS,
        "    if table.numel() == 0:  # torch views no such table\n",
        "    if len(table) == 0:\n",
        OF_ROWS,
    ),
    Fault(
        "parts are given as truth values",
        OWNERS,
        'part.is_floating_point() or part.is_complex() or str(part.dtype) == "torch.bool"',
        "part.is_floating_point() or part.is_complex()",
        OF_OWNERS,
    ),
    Fault(
        "negative parts are given",
        OWNERS,
        "if low < 0 or high >= parts:",
        "if high >= parts:",
        OF_OWNERS,
    ),
    Fault(
        "parts of node types that there are not are ignored",
        OWNERS,
        "    if set(by_type) != set(kinds):\n",
        "    if not set(by_type) >= set(kinds):\n",
        OF_OWNERS,
    ),
    Fault(
        "parts of fewer nodes than there are are given",
        OWNERS,
        "if not is_integer or part.shape != (count,):",
        "if not is_integer or part.dim() != 1:",
        OF_OWNERS,
    ),
    Fault(
        "all types have the parts of the first",
        OWNERS,
        "        part, label = by_type[kind], name if",
        "        part, label = next(iter(by_type.values())), name if",
        OF_OWNERS,
    ),
    Fault(
        "rows that ranks share of a graph in an order are those of other nodes",
        SHARED_ROWS,
        "gatherer.rows(rows, ids if positions is None else at[id(positions)])",
        "gatherer.rows(rows, ids)",
        SAME,
    ),
    Fault(
        "narrow rows that ranks share are not as wide as feature_dtype= says",
        SHARED_ROWS,
        "value.to(dtype_in_batch(attribute, self._feature_dtype))",
        "value.to(dtype_in_batch(attribute, None))",
        SAME,
    ),
    Fault(
        "attributes of one type only are shared",
        SHARED_ROWS,
        "            for kind in self._kinds\n        ]\n\n    def _maker",
        "            for kind in self._kinds[:1] * len(self._kinds)\n        ]\n\n    def _maker",
        OF_SHARED_ROWS,
    ),
    Fault(
        "attributes that changed since ranks met are shared as they were",
        SHARED_ROWS,
        "        if {table.name: table.layout for table in tables} != formats:\n",
        "        if {table.name for table in tables} != set(formats):\n",
        f"{SHARED}::test_all_ranks_get_the_text_of_a_failure",
    ),
    Fault(
        "ids that a transform put outside of the graph are asked for",
        SHARED_ROWS,
        '                check_ids(node, count, "ids of a batch")\n',
        "                pass\n",
        f"{SHARED}::test_all_ranks_get_the_text_of_a_failure",
    ),
    Fault(
        "ranks with other owners ask each other for rows that they lack",
        SHARED_ROWS,
        "owners = HASH if parts is None else hashlib.sha256(parts).hexdigest()",
        "owners = HASH",
        f"{SHARED}::test_ranks_with_other_rows_or_owners_are_refused",
    ),
    Fault(
        "a row that several ranks need is loaded for each of them",
        SHARED_ROWS,
        "            self._traffic.loaded_rows += len(union) if tables else 0\n",
        "            self._traffic.loaded_rows += sum(map(len, of_ranks)) if tables else 0\n",
        OF_SHARED_ROWS,
    ),
    Fault(
        "the parts of seeds are those of the first node type",
        SHARED_ROWS,
        "part = self._parts[self._kinds.index(node_type)]",
        "part = self._parts[0]",
        OF_SHARED_ROWS,
    ),
    Fault(
        "a device is ignored where ranks share rows",
        SHARED_ROWS,
        "    if device not in (None, HOST):\n",
        "    if False:\n",
        f"{SHARED}::test_wrong_arguments_are_refused_at_construction",
    ),
]
