"""More faults in saved graphs and conversions: rare names, many files, later types and steps."""

from __future__ import annotations

from ..fault import Fault

ARRAYS = "pyg_direct/files/arrays.py"
DIRECTORY = "pyg_direct/files/directory.py"
HEADER = "pyg_direct/files/header.py"
OPEN = "pyg_direct/files/open.py"
ORDER = "pyg_direct/files/row_order.py"
SAVE = "pyg_direct/files/save.py"
ROWS = "pyg_direct/files/convert/array_rows.py"
ATTRIBUTES = "pyg_direct/files/convert/attributes.py"
CONVERT = "pyg_direct/files/convert/convert.py"
EDGE_FILES = "pyg_direct/files/convert/edge_files.py"
TABLE = "pyg_direct/files/convert/edge_table.py"
NODES = "pyg_direct/files/convert/node_files.py"
SPEC = "pyg_direct/files/convert/spec.py"
TABLES = "pyg_direct/files/convert/tables.py"
TIMES = "pyg_direct/files/convert/times.py"
WORKPLACE = "pyg_direct/files/convert/workplace.py"

SAVED = "tests/unit/files/test_save_and_open.py"
TYPED = "tests/unit/files/test_saved_parts.py"
ORDERED = "tests/unit/files/test_row_order.py"
DAMAGED = "tests/unit/files/test_damaged_graphs.py"
FORMATS = "tests/unit/files/convert/test_formats.py"
INTERRUPTED = "tests/unit/files/convert/test_interrupted.py"
RANGES = "tests/unit/files/convert/test_ranges.py"
WRONG = "tests/unit/files/convert/test_wrong_inputs.py"

FAULTS: list[Fault] = [
    Fault(
        "graphs that releases before row_order saved are refused",
        HEADER,
        '_order_of(group.get("order")),',
        '_order_of(group["order"]),',
        f"{DAMAGED}::test_a_header_of_the_first_release",
    ),
    Fault(
        "checksums of headers are others than those that were saved",
        HEADER,
        "    return zlib.crc32(json.dumps(json.loads(text), sort_keys=True).encode())\n",
        "    return zlib.crc32(json.dumps(json.loads(text)).encode())\n",
        f"{DAMAGED}::test_a_header_of_the_first_release",
    ),
    Fault(
        "a graph of which one type has an order is opened by releases that know none",
        HEADER,
        "plain = all(group.order is None for group in header.nodes)",
        "plain = any(group.order is None for group in header.nodes)",
        f"{ORDERED}::test_versions",
    ),
    Fault(
        "alias tables are left out of verify",
        HEADER,
        "[a for a in (weights.weight, weights.cumulative, weights.alias) if a]",
        "[weights.weight, weights.cumulative]",
        f"{DAMAGED}::test_verify_reads_scales_and_tables",
    ),
    Fault(
        "a later type that occurs twice is opened",
        HEADER,
        "if len({*node_types}) != len(node_types) or len({*edge_types}) != len(edge_types):",
        "if len({*node_types}) != len(node_types):",
        f"{TYPED}::test_headers_that_do_not_fit_their_tables",
    ),
    Fault(
        "of a file in several steps the last one is verified",
        ARRAYS,
        "            found = zlib.crc32(piece, found)\n",
        "            found = zlib.crc32(piece)\n",
        f"{DAMAGED}::test_every_flipped_bit_is_found_by_verify",
    ),
    Fault(
        "a single number comes back as a list of one",
        ARRAYS,
        "    return replace(entry, shape=tuple(tensor.shape))\n",
        "    return entry\n",
        f"{SAVED}::test_nothing_is_overwritten_unasked",
    ),
    Fault(
        "a graph with a dot in the name of an attribute cannot be overwritten",
        DIRECTORY,
        'plain = re.sub(r"[^A-Za-z0-9_-]", "_", attribute)[:100]',
        'plain = re.sub(r"[^A-Za-z0-9_.-]", "_", attribute)[:100]',
        f"{SAVED}::test_nothing_is_overwritten_unasked",
    ),
    Fault(
        "a graph of a thousand arrays cannot be overwritten",
        DIRECTORY,
        'ARRAY_NAME = re.compile(r"[0-9]{3,}_',
        'ARRAY_NAME = re.compile(r"[0-9]{3}_',
        f"{SAVED}::test_names_of_many_files",
    ),
    Fault(
        "only who saved a graph may read it",
        DIRECTORY,
        "        self._folder.chmod(0o777 & ~_umask())\n",
        "",
        f"{SAVED}::test_others_may_read_what_the_umask_lets_them",
    ),
    Fault(
        "files that a program writes behind a save have other permissions",
        DIRECTORY,
        "    mask = os.umask(0o022)\n    os.umask(mask)\n",
        "    mask = os.umask(0o022)\n",
        f"{SAVED}::test_others_may_read_what_the_umask_lets_them",
    ),
    Fault(
        "attributes of another number of nodes are opened",
        OPEN,
        "        elif store.num_nodes != nodes.num_nodes:\n",
        "        elif store.num_nodes < nodes.num_nodes:\n",
        f"{DAMAGED}::test_hostile_headers",
    ),
    Fault(
        "damaged lists of a later edge type are found in mid-epoch",
        OPEN,
        "    for r in range(csc.num_relations):\n",
        "    for r in range(min(1, csc.num_relations)):\n",
        f"{TYPED}::test_lists_of_a_later_type_that_begin_elsewhere",
    ),
    Fault(
        "NumPy arrays of booleans cannot be saved",
        SAVE,
        'if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":',
        'if isinstance(value, np.ndarray) and value.dtype.kind in "iuf":',
        f"{SAVED}::test_attributes_come_back_as_they_were",
    ),
    Fault(
        "edge attributes of a type that are too long are cut",
        SAVE,
        "        if num_edges is not None and value.shape[:1] != (num_edges,):\n",
        "        if num_edges is not None and value.dim() == 0:\n",
        f"{SAVED}::test_what_cannot_be_saved_is_named",
    ),
    Fault(
        "texts of a node type are left out of a saved graph",
        SAVE,
        "        if rest and hetero:\n            raise ValueError(",
        "        if False:\n            raise ValueError(",
        f"{SAVED}::test_what_cannot_be_saved_is_named",
    ),
    Fault(
        "texts of an edge type are left out of a saved graph",
        SAVE,
        "        if rest:\n            raise ValueError(",
        "        if rest and not hetero:\n            raise ValueError(",
        f"{SAVED}::test_what_cannot_be_saved_is_named",
    ),
    Fault(
        "numbers as keys of a dict come back as texts",
        SAVE,
        "            isinstance(key, str) and is_json(entry) for key, entry in value.items()\n",
        "            is_json(entry) for entry in value.values()\n",
        f"{SAVED}::test_what_cannot_be_saved_is_named",
    ),
    Fault(
        "tuples come back as lists",
        SAVE,
        "    if isinstance(value, list):\n",
        "    if isinstance(value, (list, tuple)):\n",
        f"{SAVED}::test_what_cannot_be_saved_is_named",
    ),
    Fault(
        "numbers for the rows of some node types only end in a KeyError",
        ORDER,
        "set(row_order) != set(kinds):",
        "not set(row_order) <= set(kinds):",
        f"{ORDERED}::test_each_type_needs_numbers",
    ),
    Fault(
        "the key of the edges in a JSON file is refused",
        SPEC,
        'for k in ("file", "key", "columns") if k in content',
        'for k in ("file", "columns") if k in content',
        f"{FORMATS}::test_tables_of_features",
    ),
    Fault(
        "[N, 1] stays two-dimensional where a JSON file says flat",
        SPEC,
        'bool(content.get("flat", False)),',
        "False,",
        f"{FORMATS}::test_tables_of_features",
    ),
    Fault(
        "attributes of the edges of an OGB data set are lost",
        SPEC,
        "return GraphSpec([NodeSpec(None, None, attributes)], [EdgeSpec(None, ends, edges)])",
        "return GraphSpec([NodeSpec(None, None, attributes)], [EdgeSpec(None, ends)])",
        f"{FORMATS}::test_the_layout_of_papers100m",
    ),
    Fault(
        "the destinations of an .npz of more than 1 MiB are read from another place",
        ROWS,
        "np.empty(min(STEP_BYTES, position - begin), np.uint8)",
        "np.empty(min(STEP_BYTES, position), np.uint8)",
        f"{FORMATS}::test_files_of_several_arrays",
    ),
    Fault(
        "numbers that a dtype cannot hold wrap",
        ATTRIBUTES,
        "return other if stored.dtype == torch.bool else other | (stored.to(torch.int64) != wide)",
        "return other",
        f"{WRONG}::test_elements_that_a_dtype_cannot_hold",
    ),
    Fault(
        "infinity is stored as a whole number",
        ATTRIBUTES,
        "        return whole.to(rows.dtype) != rows\n",
        "        return rows != rows.round()\n",
        f"{WRONG}::test_elements_that_a_dtype_cannot_hold",
    ),
    Fault(
        "numbers that are too large for float16 become infinite",
        ATTRIBUTES,
        "    if stored.dtype.is_floating_point:\n        return stored.isinf() & ~rows.isinf()\n",
        "    if stored.dtype.is_floating_point:\n        return stored.isinf() & False\n",
        f"{WRONG}::test_elements_that_a_dtype_cannot_hold",
    ),
    Fault(
        "true and false in a CSV file are no booleans",
        TABLES,
        'if are_ends or source.dtype not in (None, "bool"):',
        "if are_ends or source.dtype is not None:",
        f"{FORMATS}::test_tables_of_features",
    ),
    Fault(
        "wrong entries are named by their places in a step",
        EDGE_FILES,
        'found[0][:, i].contiguous(), sizes[i], f"{name}s in {parts[0].name}", at\n',
        'found[0][:, i].contiguous(), sizes[i], f"{name}s in {parts[0].name}", first\n',
        f"{WRONG}::test_wrong_ends",
    ),
    Fault(
        "wrong rows are named by their places in a step",
        NODES,
        "            first += len(rows)\n",
        "",
        f"{WRONG}::test_elements_that_narrow_features_cannot_hold",
    ),
    Fault(
        "a conversion that ended in the pointers cannot be gone on with",
        EDGE_FILES,
        "        path.unlink(missing_ok=True)\n",
        "",
        f"{INTERRUPTED}::test_killed_while_times_and_weights_are_written",
    ),
    Fault(
        "a conversion that ended in the times cannot be gone on with",
        TIMES,
        "        path.unlink(missing_ok=True)\n",
        "",
        f"{INTERRUPTED}::test_killed_while_times_and_weights_are_written",
    ),
    Fault(
        "a conversion that ended in the factors cannot be gone on with",
        NODES,
        "            path.unlink(missing_ok=True)\n",
        "",
        f"{INTERRUPTED}::test_files_of_which_nothing_is_recorded_before_their_end",
    ),
    Fault(
        "edges of a type that was finished are converted again",
        EDGE_FILES,
        'for number in range(len(state["edges"]), len(self._inputs)):',
        "for number in range(len(self._inputs)):",
        f"{INTERRUPTED}::test_killed_while_times_and_weights_are_written",
    ),
    Fault(
        "the progress of an earlier run does not count",
        EDGE_FILES,
        '            self._advance(edges.given + state["edges"][done])\n',
        "",
        f"{INTERRUPTED}::test_killed_while_times_and_weights_are_written",
    ),
    Fault(
        "edges that are in the table already are counted as progress twice",
        EDGE_FILES,
        "        self._advance(first)\n",
        "        self._advance(2 * first)\n",
        f"{INTERRUPTED}::test_killed_at_some_moments",
    ),
    Fault(
        "a range has more edges than memory",
        TABLE,
        "if (held + count > most or too_wide) and first > cuts[-1]:",
        "if too_wide and first > cuts[-1]:",
        f"{RANGES}::test_ranges_have_no_more_edges_or_nodes_than_are_sorted",
    ),
    Fault(
        "edges are sorted one node at a time behind the first range",
        TABLE,
        "                cuts.append(first)\n                held = 0\n",
        "                cuts.append(first)\n",
        f"{RANGES}::test_ranges_have_no_more_edges_or_nodes_than_are_sorted",
    ),
    Fault(
        "a quote in the name of the directory ends a conversion",
        TABLE,
        '    return str(path).replace("\'", "\'\'")\n',
        "    return str(path)\n",
        f"{FORMATS}::test_a_heterogeneous_graph",
    ),
    Fault(
        "a conversion that is nearly finished asks for the room of a new one",
        WORKPLACE,
        "missing = needed_bytes - self.used_bytes() - free",
        "missing = needed_bytes - free",
        f"{INTERRUPTED}::test_the_room_that_an_earlier_run_has_taken_counts",
    ),
    Fault(
        "the room that the tables of edges take is not looked at",
        CONVERT,
        "return 16 * lists + edges + max(max(tables), nodes)",
        "return 16 * lists + edges + nodes",
        f"{INTERRUPTED}::test_the_room_on_the_disk_is_looked_at_first",
    ),
    Fault(
        "numbers of nodes are those of a mask",
        CONVERT,
        "        if not source.lists_ids:\n",
        "        if True:\n",
        f"{FORMATS}::test_tables_of_features",
    ),
    Fault(
        "more nodes are in the test mask of a generated graph",
        "pyg_direct/files/generate.py",
        "ends = np.cumsum([graph.train_share, graph.train_share / 2, graph.train_share])",
        "ends = np.cumsum([graph.train_share, graph.train_share / 2, 2 * graph.train_share])",
        "tests/unit/files/test_generate.py::test_sizes_and_dtypes",
    ),
    Fault(
        "a link in the work folder is written through",
        WORKPLACE,
        "if not OURS.fullmatch(n) or p.is_symlink()]",
        "if not OURS.fullmatch(n)]",
        f"{INTERRUPTED}::test_a_work_folder_with_other_files_is_refused",
    ),
    Fault(
        "a conversion goes on though attributes of edges have changed",
        CONVERT,
        "for source in (edge.ends, *edge.attributes.values()):",
        "for source in (edge.ends,):",
        f"{INTERRUPTED}::test_other_inputs_are_refused",
    ),
    Fault(
        "tables of whole numbers are quantized with the features",
        NODES,
        "quantizes = len(rows.row_shape) == 1 and rows.dtype.is_floating_point",
        "quantizes = len(rows.row_shape) == 1",
        f"{FORMATS}::test_narrow_features",
    ),
    Fault(
        "generate: edges do not count as progress",
        "pyg_direct/files/generate.py",
        "            writer.write(rows)\n            advance(len(rows))\n",
        "            writer.write(rows)\n",
        "tests/unit/files/test_generate.py::test_sizes_and_dtypes",
    ),
    Fault(
        "rows of an array behind an interruption are read from near its front",
        ROWS,
        "with self._array.open_at(first * math.prod(self.row_shape)) as file:",
        "with self._array.open_at(first) as file:",
        f"{INTERRUPTED}::test_killed_while_times_and_weights_are_written",
    ),
    Fault(
        "graphs whose nodes have labels alone are converted otherwise than saved",
        CONVERT,
        "node.num_nodes is not None or not any(k in N_KEYS for k in node.attributes),",
        "node.num_nodes is not None,",
        f"{FORMATS}::test_two_edges_in_an_array_by_columns",
    ),
    Fault(
        "a graph with weights and as many edges as nodes cannot be opened",
        HEADER,
        "named = (named[0] or weights.attribute in header.nodes[0].attributes,)",
        "named = (named[0],)",
        f"{TYPED}::test_weights_of_as_many_edges_as_there_are_nodes",
    ),
    Fault(
        "running sums of another length than the edges are opened",
        HEADER,
        '        _expect("cumulative", weights.cumulative, ("float64",), (edges,))\n',
        "",
        f"{TYPED}::test_headers_that_do_not_fit_their_tables",
    ),
    Fault(
        "positions of fewer rows than nodes are opened",
        HEADER,
        '    _expect("positions", group.order.positions, ("int64",), (group.num_nodes,))\n',
        "",
        f"{ORDERED}::test_positions_that_are_no_permutation",
    ),
    Fault(
        "a conversion with more edge types than the one that is unfinished ends in a KeyError",
        "pyg_direct/files/convert/journal.py",
        "    if isinstance(now, list) and isinstance(before, list) and len(now) == len(before):\n",
        "    if isinstance(now, list) and isinstance(before, list):\n",
        f"{INTERRUPTED}::test_lists_of_other_lengths_differ",
    ),
    Fault(
        "converted masks begin anew behind an interruption",
        ATTRIBUTES,
        "        for a in range(first, self.length, step):\n",
        "        for a in range(0, self.length, step):\n",
        f"{WRONG}::test_lists_of_ids_are_read_from_anywhere",
    ),
    Fault(
        "a table behind an interruption names its wrong rows from 0",
        ATTRIBUTES,
        "        at = first\n        for rows in self._rows.read(first, step):\n",
        "        at = 0\n        for rows in self._rows.read(first, step):\n",
        f"{WRONG}::test_elements_that_a_dtype_cannot_hold",
    ),
    Fault(
        "a graph that nothing can open is converted of an edge type that is given twice",
        SPEC,
        "            if edge.type in seen:\n",
        "            if False:\n",
        "tests/unit/files/convert/test_changes.py::test_changes_that_are_refused",
    ),
]
