"""More faults in partitions and among ranks: later steps, copies, counts."""

from __future__ import annotations

from ..fault import Fault

PARTS = "pyg_direct/files/parts.py"
PARTITION = "pyg_direct/partitions/partition.py"
REPORT = "pyg_direct/partitions/report.py"
SAMPLER = "pyg_direct/partitions/sampler.py"
SOURCE = "pyg_direct/partitions/source.py"
WRITE = "pyg_direct/partitions/write.py"
CHANNEL = "pyg_direct/ranks/channel.py"
COMMON = "pyg_direct/ranks/common_batch.py"
SHARED = "pyg_direct/ranks/shared_graph.py"
SPLIT = "pyg_direct/ranks/split.py"
TRAFFIC = "pyg_direct/ranks/traffic.py"

PARTED = "tests/unit/partitions/test_partition.py"
OF_PARTS = "tests/integration/test_parts_of_ranks.py"
OF_SHARE = "tests/unit/ranks/test_share.py"
OF_SPLIT = "tests/unit/ranks/test_split.py"

FAULTS: list[Fault] = [
    Fault(
        "a partition that was interrupted goes on with another method",
        PARTITION,
        '        "method": method if isinstance(method, str) else _digest_of_parts(method),\n',
        "",
        f"{PARTED}::test_an_interrupted_run_begins_anew_with_something_else",
    ),
    Fault(
        "a partition that was interrupted goes on with other edges",
        PARTITION,
        '        "graph": fingerprint_of((array for _, array in graph.csc.arrays()), LOOKED_AT),\n',
        "",
        f"{PARTED}::test_an_interrupted_run_begins_anew_with_something_else",
    ),
    Fault(
        "what a partition cannot hold is told when everything is written",
        PARTITION,
        "            if not is_json(value):\n",
        "            if False:\n",
        f"{PARTED}::test_wrong_arguments",
    ),
    Fault(
        "attributes with more rows than a type has nodes are cut",
        PARTITION,
        "elif value.dim() == 0 or len(value) != count:",
        "elif value.dim() == 0 or len(value) < count:",
        f"{PARTED}::test_wrong_arguments",
    ),
    Fault(
        "rows behind the first 64 MiB go to the parts of the first nodes",
        WRITE,
        "value[first : first + step].detach(), part[first : first + step]",
        "value[first : first + step].detach(), part[: len(value[first : first + step])]",
        f"{PARTED}::test_the_parts_hold_the_graph",
    ),
    Fault(
        "lists of a part behind the first steps point to its front",
        WRITE,
        "                    ends[p] += len(position)\n",
        "",
        f"{PARTED}::test_the_parts_hold_the_graph",
    ),
    Fault(
        "files of another call that was interrupted stay in a partition",
        WRITE,
        "            else:\n                shutil.rmtree(folder)",
        "            elif False:\n                shutil.rmtree(folder)",
        f"{PARTED}::test_an_interrupted_run_begins_anew_with_something_else",
    ),
    Fault(
        "damaged places of nodes are not found by verify",
        PARTS,
        "[a for n in manifest.nodes for a in (n.part, n.row, *n.whole.values())]",
        "[a for n in manifest.nodes for a in (n.part, *n.whole.values())]",
        f"{PARTED}::test_damage_is_found_by_verify",
    ),
    Fault(
        "damaged files of parts are not found by verify",
        PARTS,
        "                verify_arrays(part, read_part(part, p, manifest).arrays())\n",
        "                read_part(part, p, manifest)\n",
        f"{PARTED}::test_damage_is_found_by_verify",
    ),
    Fault(
        "a machine with some of the parts cannot verify them",
        PARTS,
        "            if part.exists():\n",
        "            if True:\n",
        f"{PARTED}::test_damage_is_found_by_verify",
    ),
    Fault(
        "a changed manifest is taken as it is",
        PARTS,
        '        if content.pop("crc32", None) != checksum_of(content):\n',
        '        if content.pop("crc32", None) is None:\n',
        f"{PARTED}::test_damage_is_found_by_verify",
    ),
    Fault(
        "batches of parts have ids of 64 bits where the graph has 32",
        PARTS,
        "id_dtype=getattr(torch, manifest.id_dtype),",
        "id_dtype=torch.int64,",
        f"{PARTED}::test_links_and_a_narrower_feature_dtype",
    ),
    Fault(
        "seed edges that loaders over parts are to leave out stay",
        SAMPLER,
        '    "exclude_seed_edges": None,\n',
        "",
        f"{PARTED}::test_the_data_is_no_whole_graph",
    ),
    Fault(
        "loaders over parts ignore a cache",
        SAMPLER,
        '    "cache": None,\n',
        "",
        f"{PARTED}::test_what_is_not_there_is_refused_by_name",
    ),
    Fault(
        "loaders over parts refuse device='cpu'",
        SAMPLER,
        "    if device is not None and torch.device(device) != HOST:\n",
        "    if device is not None:\n",
        f"{PARTED}::test_batches_are_those_of_the_whole_graph",
    ),
    Fault(
        "order='parts' goes by the parts of the first node type",
        SAMPLER,
        "part = self._graph.part[self._graph.node_types.index(node_type)]",
        "part = self._graph.part[0]",
        f"{PARTED}::test_types",
    ),
    Fault(
        "more ranks than parts wait for each other",
        SAMPLER,
        "        if size > self._graph.num_parts:\n",
        "        if False:\n",
        f"{OF_PARTS}::test_more_ranks_than_parts_are_refused",
    ),
    Fault(
        "ranks with other partitions exchange rows",
        SAMPLER,
        "            if checksum != said[0]:\n",
        "            if False:\n",
        f"{OF_PARTS}::test_ranks_with_different_partitions_are_refused",
    ),
    Fault(
        "lists of own parts count as those of others",
        SOURCE,
        "remote = len(rows[p]) if rank != self._channel.rank else 0",
        "remote = len(rows[p])",
        f"{PARTED}::test_batches_are_those_of_the_whole_graph",
    ),
    Fault(
        "the share of remote rows of shuffled seeds is that of the own ones",
        REPORT,
        "        1.0 - 1.0 / parts,\n",
        "        1.0 / parts,\n",
        f"{PARTED}::test_reports_tell_methods_apart",
    ),
    Fault(
        "edge ids of a later relation count from the first one where edges are sorted",
        COMMON,
        "edge[begin:end] = edges.position - csc.edge_base[r]",
        "edge[begin:end] = edges.position",
        "tests/integration/test_cooperative_batches.py::test_the_union_is_the_batch_of_one_process",
    ),
    Fault(
        "texts that ranks tell each other lose their ends",
        CHANNEL,
        "        return self._content[self._at :].tobytes()\n",
        "        return self._content[self._at : len(self._content) // 8 * 8].tobytes()\n",
        "tests/unit/ranks/test_channel.py::test_arrays_of_a_message_are_read_as_they_were_packed",
    ),
    Fault(
        "arrays of a message behind one of an odd size are read from between two",
        CHANNEL,
        "        self._at = last + -size % ALIGNMENT\n",
        "        self._at = last\n",
        "tests/unit/ranks/test_channel.py::test_arrays_of_a_message_are_read_as_they_were_packed",
    ),
    Fault(
        "tensors of a typed graph as a whole are not shared",
        SHARED,
        "    if isinstance(data, HeteroData):\n        for name, value in graph_fields_of(data).items():",
        "    if False:\n        for name, value in graph_fields_of(data).items():",
        f"{OF_SHARE}::test_tensors_of_a_typed_graph_as_a_whole_are_shared",
    ),
    Fault(
        "a function's graph with times that was shared already is shared again",
        SHARED,
        "        if compressed_graph(data, None, None) is not None:\n",
        "        if False:\n",
        f"{OF_SHARE}::test_what_is_shared_already_is_returned",
    ),
    Fault(
        "ranks that make batches together end at different steps",
        SPLIT,
        '    if split.cooperative and split.tail == "uneven":\n',
        "    if False:\n",
        f"{OF_SPLIT}::test_refused",
    ),
    Fault(
        "owners are ignored where nothing is shared",
        SPLIT,
        "    if owners_given:\n",
        "    if False:\n",
        f"{OF_SPLIT}::test_refused",
    ),
    Fault(
        "a loader that shares rows without other ranks fails in its first batch",
        SPLIT,
        "        if getattr(split, name) and split.by is None:\n",
        "        if getattr(split, name) and not split.is_given:\n",
        f"{OF_SPLIT}::test_refused",
    ),
    Fault(
        "the DistributedSampler in a batch sampler splits the seeds again",
        SPLIT,
        '(options.get("sampler"), batches, getattr(batches, "sampler", None))',
        '(options.get("sampler"), batches)',
        f"{OF_SPLIT}::test_refused",
    ),
    Fault(
        "shares of rows and of requests are exchanged for JSON",
        TRAFFIC,
        'zip(("remote_row_share", "remote_request_share"), shares, strict=True)',
        'zip(("remote_request_share", "remote_row_share"), shares, strict=True)',
        "tests/unit/ranks/test_traffic.py::test_shares_are_of_rows_and_of_frontiers",
    ),
    Fault(
        "what models wait is told of each rank as of this one",
        TRAFFIC,
        "waiting = [waited_seconds if p == rank else 0.0 for p in range(len(traffic.sent_bytes))]",
        "waiting = [waited_seconds for p in range(len(traffic.sent_bytes))]",
        "tests/unit/ranks/test_traffic.py::test_what_models_wait_is_known_of_one_rank",
    ),
    Fault(
        "the shares of frontiers that others have are those of rows",
        TRAFFIC,
        "return self.remote_requests / self.requests if self.requests else 0.0",
        "return self.remote_requests / self.rows if self.rows else 0.0",
        "tests/unit/ranks/test_traffic.py::test_shares_are_of_rows_and_of_frontiers",
    ),
    Fault(
        "an error on a rank is told to others up to its first exchange only",
        "pyg_direct/ranks/together.py",
        "        self._ended = False\n        return [value",
        "        return [value",
        "tests/integration/test_inference_of_ranks.py::test_what_fails_on_one_rank_fails_on_all",
    ),
    Fault(
        "a rank that has failed says that another one has",
        "pyg_direct/ranks/exchange.py",
        "    if error is not None:\n        raise error\n    for rank",
        "    for rank",
        "tests/integration/test_inference_of_ranks.py::test_what_fails_on_one_rank_fails_on_all",
    ),
    Fault(
        "a loader over parts is sent to a process that nobody answers",
        "pyg_direct/ranks/batch_exchange.py",
        "        if self._rounds is not None or not self._travels:\n",
        "        if False:\n",
        f"{PARTED}::test_the_data_is_no_whole_graph",
    ),
    Fault(
        "handles of shared memory are closed twice",
        "pyg_direct/ranks/memory.py",
        "storage = storage_in(os.dup(self.handle), like.nbytes)",
        "storage = storage_in(self.handle, like.nbytes)",
        f"{OF_SHARE}::test_batches_are_those_of_the_data",
    ),
    Fault(
        "METIS weighs nodes by the lists of the last edge type",
        "pyg_direct/partitions/methods.py",
        "        degrees[base : base + count] += degree\n",
        "        degrees[base : base + count] = degree\n",
        f"{PARTED}::test_what_metis_is_given",
    ),
    Fault(
        "parts of all nodes are those of the first type where METIS makes them",
        "pyg_direct/partitions/methods.py",
        "source = csc.indices[slice(*csc.edge_base[r : r + 2])] + csc.node_base[src]",
        "source = csc.indices[slice(*csc.edge_base[r : r + 2])]",
        f"{PARTED}::test_what_metis_is_given",
    ),
    Fault(
        "shares of remote rows are those of a type that few batches begin at",
        REPORT,
        "t = int(csc.dst_type[np.diff(csc.edge_base).argmax()])",
        "t = int(csc.dst_type[np.diff(csc.edge_base).argmin()])",
        f"{PARTED}::test_remote_rows_are_those_of_the_type_with_most_edges",
    ),
    Fault(
        "ranks have waited as long as the one that knows least",
        "pyg_direct/ranks/traffic.py",
        "waiting_seconds=tuple(map(max, waiting))",
        "waiting_seconds=tuple(map(min, waiting))",
        "tests/unit/ranks/test_traffic.py::test_what_each_waited_is_known_to_all",
    ),
    Fault(
        "the balance of nodes is that of edges",
        REPORT,
        "return _balance(self.nodes)",
        "return _balance(self.in_edges)",
        f"{PARTED}::test_the_cut_and_the_edges_are_counted",
    ),
]
