"""Faults in saved graphs, and in what converts others to such."""

from __future__ import annotations

from ..fault import Fault

ARRAYS = "pyg_direct/files/arrays.py"
DIRECTORY = "pyg_direct/files/directory.py"
GENERATE = "pyg_direct/files/generate.py"
HEADER = "pyg_direct/files/header.py"
OPEN = "pyg_direct/files/open.py"
SAVE = "pyg_direct/files/save.py"
ROWS = "pyg_direct/files/convert/array_rows.py"
ATTRIBUTES = "pyg_direct/files/convert/attributes.py"
CONVERT = "pyg_direct/files/convert/convert.py"
EDGE_FILES = "pyg_direct/files/convert/edge_files.py"
TABLE = "pyg_direct/files/convert/edge_table.py"
JOURNAL = "pyg_direct/files/convert/journal.py"
NODES = "pyg_direct/files/convert/node_files.py"
TABLES = "pyg_direct/files/convert/tables.py"
TIMES = "pyg_direct/files/convert/times.py"
WEIGHTS = "pyg_direct/files/convert/weights.py"
WORKPLACE = "pyg_direct/files/convert/workplace.py"

SAVED = "tests/unit/files/test_save_and_open.py tests/unit/files/test_saved_parts.py"
ORDERED_ROWS = "tests/unit/files/test_row_order.py"
DAMAGED = "tests/unit/files/test_damaged_graphs.py"
CHANGES = "tests/unit/files/convert/test_changes.py"
FORMATS = "tests/unit/files/convert/test_formats.py"
INTERRUPTED = "tests/unit/files/convert/test_interrupted.py"
ATTRIBUTED = "tests/unit/files/convert/test_times_and_weights.py"
WRONG = "tests/unit/files/convert/test_wrong_inputs.py"

FAULTS = [
    Fault(
        "times of the first node type hold for all",
        OPEN,
        "            base[r] = csc.node_base[source]\n",
        "            base[r] = 0\n",
        "tests/unit/files/test_saved_parts.py::test_lists_that_are_not_sorted_by_time",
    ),
    Fault(
        "a damaged indptr is found in mid-epoch",
        OPEN,
        "        if found != csc.edge_base[r : r + 2].tolist():\n",
        "        if False:\n",
        DAMAGED,
    ),
    Fault(
        "lists that are not sorted by time pass as verified",
        OPEN,
        "if problem is None and (r := first_unsorted_relation(csc)) >= 0:",
        "if problem is None and (r := first_unsorted_relation(csc)) > 0:",
        SAVED,
    ),
    Fault(
        "names of files may lead out of the directory",
        HEADER,
        "if not isinstance(file, str) or not FILE_NAME.fullmatch(file) or file == HEADER:",
        "if not isinstance(file, str) or file == HEADER:",
        DAMAGED,
    ),
    Fault(
        "the length of a file is not looked at",
        ARRAYS,
        "        if length != array.num_bytes:\n",
        "        if length < array.num_bytes:\n",
        "tests/unit/files/test_damaged_graphs.py::test_files_of_another_length",
    ),
    Fault(
        "the lengths in a header are not compared with the graph",
        HEADER,
        '    _expect("indices", header.indices, INTS, (edges,))\n',
        "",
        "tests/unit/files/test_damaged_graphs.py::test_hostile_headers",
    ),
    Fault(
        "times of another length than the nodes are opened",
        HEADER,
        '        _expect("times", header.times.table, ("int64",), (length,))\n',
        "",
        DAMAGED + " " + SAVED,
    ),
    Fault(
        "edge attributes of another length are opened",
        HEADER,
        "            if array.shape[:1] != (group.num_edges,):\n",
        "            if False:\n",
        DAMAGED + " " + SAVED,
    ),
    Fault(
        "scales are left out of verify",
        HEADER,
        "            found += [array.scale for array in attributes.values() if array.scale is not None]\n",
        "",
        DAMAGED + " " + SAVED,
    ),
    Fault(
        "a changed header is taken as it is",
        HEADER,
        '    if content.pop("crc32", None) != checksum_of(content):\n',
        '    if content.pop("crc32", None) is None:\n',
        DAMAGED,
    ),
    Fault(
        "links out of a saved graph are followed",
        ARRAYS,
        'for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):',
        'for name in ("O_CLOEXEC", "O_NONBLOCK", "O_BINARY"):',
        DAMAGED,
    ),
    Fault(
        "a short write loses the rest",
        ARRAYS,
        "                piece = piece[self._file.write(piece) :]\n",
        "                self._file.write(piece)\n                break\n",
        "tests/unit/files/test_damaged_graphs.py::test_a_full_disk_leaves_nothing",
    ),
    Fault(
        "what was written behind the last record stays in a file",
        ARRAYS,
        "        self._file.truncate(length)\n",
        "",
        "tests/unit/files/test_save_and_open.py",
    ),
    Fault(
        "a failed save leaves its folder",
        DIRECTORY,
        "                return\n            except BaseException:\n"
        "                shutil.rmtree(self._folder, ignore_errors=True)\n                raise\n"
        "        shutil.rmtree(self._folder, ignore_errors=True)\n",
        "                return\n            except BaseException:\n"
        "                shutil.rmtree(self._folder, ignore_errors=True)\n                raise\n",
        "tests/unit/files/test_damaged_graphs.py::test_a_full_disk_leaves_nothing",
    ),
    Fault(
        "a save that finds something at its place leaves its folder",
        DIRECTORY,
        "            except BaseException:\n"
        "                shutil.rmtree(self._folder, ignore_errors=True)\n                raise\n",
        "            except BaseException:\n                raise\n",
        "tests/unit/files/test_save_and_open.py::test_what_appears_at_the_path_meanwhile_stays",
    ),
    Fault(
        "what appeared at the path meanwhile is replaced",
        DIRECTORY,
        "    check_replaceable(path, overwrite)  # again: something may have appeared in the meantime\n",
        "",
        SAVED + " " + INTERRUPTED,
    ),
    Fault(
        "a folder with other files is replaced",
        DIRECTORY,
        "    elif (name := foreign_name(path)) is not None:\n",
        "    elif (name := foreign_name(path)) is not None and not has_header(path):\n",
        "tests/unit/files/test_save_and_open.py::test_only_saved_graphs_are_overwritten",
    ),
    Fault(
        "edge attributes are saved in the user's order",
        SAVE,
        "order = None if csc.perm is None else csc.perm[first:last]",
        "order = None",
        SAVED,
    ),
    Fault(
        "long edge attributes are saved without their later parts",
        SAVE,
        "step = max(1, STEP_ROWS_BYTES // row_bytes)",
        "step = max(1, STEP_ROWS_BYTES // row_bytes)\n    order = order[:step]",
        "tests/unit/files/test_save_and_open.py",
    ),
    Fault(
        "factors of rows stay in the order of the user's edges",
        SAVE,
        "by_row = order if scale.dim() == 2 else None",
        "by_row = None",
        "tests/unit/files/test_save_and_open.py::test_quantized_attributes_stay_quantized "
        f"{ORDERED_ROWS}",
    ),
    Fault(
        "times of edges are saved as those of nodes",
        SAVE,
        "of_nodes = not (csc.times.base == EDGE_TIME).any()",
        "of_nodes = not (csc.times.base == EDGE_TIME).all()",
        SAVED,
    ),
    Fault(
        "after an interruption zero weights are forgotten",
        WEIGHTS,
        '            positive, steps = state["positive"], 0\n',
        "            positive, steps = True, 0\n",
        INTERRUPTED + " " + ATTRIBUTED,
    ),
    Fault(
        "after an interruption edges of the input are skipped",
        EDGE_FILES,
        "        first = table.ingested()\n",
        "        first = table.ingested()\n        first += first > 0\n",
        INTERRUPTED,
    ),
    Fault(
        "edges that are in the table are put in again",
        EDGE_FILES,
        "        first = table.ingested()\n",
        "        first = 0\n",
        INTERRUPTED,
    ),
    Fault(
        "a range of destinations that was written is written again",
        EDGE_FILES,
        '                if i < state["partition"]:\n                    continue\n',
        "",
        "tests/unit/files/convert/test_interrupted.py::test_killed_at_some_moments",
    ),
    Fault(
        "symmetrise with self-loops mixes attributes",
        TABLE,
        "            origin = np.concatenate([forward, backward])\n",
        "            origin = np.concatenate([forward, forward])[: len(forward) + len(backward)]\n",
        CHANGES,
    ),
    Fault(
        "reverse edges stand between those that are given",
        TABLE,
        "number = np.concatenate([number[forward], number[backward] + REVERSED])",
        "number = np.concatenate([number[forward], number[backward]])",
        CHANGES,
    ),
    Fault(
        "times before 1970 come last",
        TABLE,
        "sign = 1 << 8 * dtype.itemsize - 1 if dtype.is_signed else 0",
        "sign = 0",
        ATTRIBUTED,
    ),
    Fault(
        "of equal edges any one stays",
        TABLE,
        'firsts = "".join(f", arg_min({name}, number) AS {name}" for name in kept)',
        'firsts = "".join(f", arg_max({name}, number) AS {name}" for name in kept)',
        "tests/unit/files/convert/test_changes.py::test_attributes_follow_their_edges",
    ),
    Fault(
        "the last destinations are in no range",
        TABLE,
        "        cuts += range(cuts[-1] + most, num_dst, most)\n        return [*cuts, num_dst]",
        "        cuts += range(cuts[-1] + most, num_dst, most)\n        return [*cuts, num_dst - 1]",
        FORMATS,
    ),
    Fault(
        "self-loops of a range have the times of the first nodes",
        TABLE,
        'loops["time"] = pa.array(self._source_time[first:last])',
        'loops["time"] = pa.array(self._source_time[: last - first])',
        ATTRIBUTED,
    ),
    Fault(
        "an unfinished conversion of other files is gone on with",
        JOURNAL,
        "        if other:\n            raise ValueError(",
        "        if False:\n            raise ValueError(",
        "tests/unit/files/convert/test_interrupted.py::test_other_inputs_are_refused",
    ),
    Fault(
        "a journal that is cut off by a crash is all there is",
        JOURNAL,
        '        new = self._path.with_suffix(".new")\n',
        "        new = self._path\n",
        INTERRUPTED,
    ),
    Fault(
        "factors of columns are those of the first rows",
        NODES,
        "            largest = torch.maximum(largest, sizes.amax(dim=0))\n",
        "            largest = torch.maximum(largest, sizes.amax(dim=0)) if first == 0 else largest\n",
        FORMATS,
    ),
    Fault(
        "an array of too few nodes is converted",
        NODES,
        "            if writers[0].num_rows != self._count:\n",
        "            if writers[0].num_rows > self._count:\n",
        "tests/unit/files/convert/test_wrong_inputs.py::test_wrong_attributes",
    ),
    Fault(
        "an array [2, E] is read row by row",
        ROWS,
        "            self._array.open_at(length + first) as target,\n",
        "            self._array.open_at(first) as target,\n",
        FORMATS,
    ),
    Fault(
        "ids of uint64 that are too large wrap",
        ATTRIBUTES,
        "if len(wide) > 0 and (int(wide.min()) < 0 or int(wide.max()) >= end):",
        "if len(wide) > 0 and int(wide.max()) >= end:",
        WRONG,
    ),
    Fault(
        "rows of a table that begin amid a batch are lost",
        TABLES,
        "            rows, skip = rows[skip:], 0\n",
        "            rows, skip = rows[skip + (skip > 0) :], 0\n",
        FORMATS + " " + INTERRUPTED,
    ),
    Fault(
        "times of a type without any are those of the next",
        TIMES,
        "        first = sum(self._counts[:number])\n",
        "        first = sum(self._counts[1:number])\n",
        ATTRIBUTED,
    ),
    Fault(
        "tables of weights begin anew in a second type",
        WEIGHTS,
        "                base += group.num_edges\n",
        "                pass\n",
        ATTRIBUTED,
    ),
    Fault(
        "a conversion whose input was wrong removes files that are not its own",
        WORKPLACE,
        "if OURS.fullmatch(name) and name not in (STATE, LOCK):",
        "if name not in (STATE, LOCK):",
        "tests/unit/files/convert/test_interrupted.py::test_files_that_others_put_into_the_work_folder_stay",
    ),
    Fault(
        "two processes convert to one place",
        WORKPLACE,
        "        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "        pass\n",
        INTERRUPTED,
    ),
    Fault(
        "masks of a generated graph overlap",
        GENERATE,
        "    return (low <= drawn) & (drawn < high)\n",
        "    return (drawn >= 0) & (drawn < high)\n",
        "tests/unit/files/test_generate.py",
    ),
    Fault(
        "rows by visits: those that are read least come first",
        "pyg_direct/files/row_order.py",
        'np.argsort(-of_type, kind="stable")',
        'np.argsort(of_type, kind="stable")',
        ORDERED_ROWS,
    ),
    Fault(
        "rows in an order are gathered at the ids of the nodes",
        "pyg_direct/batch/gather.py",
        "self.named_rows(stored, roles, self.rows(positions, index, end=end))",
        "self.named_rows(stored, roles, index)",
        ORDERED_ROWS,
    ),
    Fault(
        "positions in a damaged file are not checked",
        "pyg_direct/batch/gather.py",
        "self.named_rows(stored, roles, self.rows(positions, index, end=end))",
        "self.named_rows(stored, roles, self.rows(positions, index, end=end), end)",
        ORDERED_ROWS,
    ),
    Fault(
        "a graph in an order is saved again by its files, not its ids",
        SAVE,
        "positions if order is None else positions[order]",
        "positions if order is None else order",
        ORDERED_ROWS,
    ),
    Fault(
        "the cache holds rows at the places of the ids that are visited most",
        "pyg_direct/loading/cache.py",
        "return torch.empty_like(visits).index_copy_(0, positions, visits)",
        "return visits",
        ORDERED_ROWS,
    ),
]
