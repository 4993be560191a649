"""Faults in how a user's graph is compressed, known again and checked."""

from __future__ import annotations

from ..fault import Fault

ATTRIBUTES = "pyg_direct/graph/attributes.py"
COMPRESSED = "pyg_direct/graph/compressed.py"
SORT = "pyg_direct/graph/coo_to_csc.py"
MATRIX = "pyg_direct/graph/from_matrix.py"
PYG = "pyg_direct/graph/from_pyg.py"
STORES = "pyg_direct/graph/from_stores.py"
SHARED = "pyg_direct/graph/shared.py"
VERIFY = "pyg_direct/graph/verify.py"
WEIGHTS = "pyg_direct/graph/weights.py"
SORTING = "tests/unit/graph/test_coo_to_csc.py"
KNOWN = "tests/unit/graph/test_shared.py"
FILES = "tests/unit/files/test_save_and_open.py tests/unit/files/test_saved_parts.py"
LISTS = "tests/loader/test_weighted.py tests/loader/test_temporal.py"

FAULTS = [
    Fault(
        "2^31 nodes are given ids of 32 bits",
        SORT,
        "return np.int32 if end <= INT32_END else np.int64",
        "return np.int32 if end <= INT32_END + 1 else np.int64",
        "tests/unit/graph/test_coo_to_csc.py::test_the_boundary_of_int32",
    ),
    Fault(
        "graphs whose words do not fit are sorted by them",
        SORT,
        "return indices.itemsize == perm.itemsize == 4 and bits < 64",
        "return indices.itemsize == perm.itemsize == 4",
        SORTING,
    ),
    Fault(
        "ids of 64 bits are sorted by words of 32",
        SORT,
        "return indices.itemsize == perm.itemsize == 4 and bits < 64",
        "return bits < 64",
        SORTING,
    ),
    Fault(
        "a few edges are sorted by an unstable sort",
        SORT,
        'perm = np.argsort(col, kind="stable")',
        "perm = np.argsort(-col)[::-1]",
        SORTING,
    ),
    Fault(
        "the part of several threads lacks its last edge",
        SORT,
        "cuts = [edges * i // chunks for i in range(chunks + 1)]",
        "cuts = [(edges - 1) * i // chunks for i in range(chunks + 1)]",
        SORTING,
    ),
    Fault(
        "threads write edges to each other's places",
        SORT,
        "next_place = bucket_ptr[:-1] + np.cumsum(counts, 0) - counts",
        "next_place = bucket_ptr[:-1] + 0 * counts",
        "tests/unit/graph/test_coo_to_csc.py::test_several_threads",
    ),
    Fault(
        "edge ids of a wide graph are written over before they are read",
        SORT,
        "edge = indices if indices.itemsize >= perm.itemsize else np.empty_like(perm)",
        "edge = indices",
        SORTING,
    ),
    Fault(
        "a source that is no node is taken by NumPy",
        SORT,
        "if min(row.min(), col.min()) < 0 or row.max() >= num_src or col.max() >= num_dst:",
        "if min(row.min(), col.min()) < 0 or col.max() >= num_dst:",
        SORTING,
    ),
    Fault(
        "neighbours of equal times change their order",
        SORT,
        "order = np.lexsort((time if base == EDGE_TIME else time[indices], destination))",
        "order = np.lexsort((-np.arange(len(indices)), "
        "time if base == EDGE_TIME else time[indices], destination))",
        "tests/unit/files/test_save_and_open.py::test_batches_are_those_in_memory",
    ),
    Fault(
        "times of edges are not brought into the order of the lists",
        SORT,
        "time, base = by_edge if perm is None else by_edge[perm], EDGE_TIME",
        "time, base = by_edge, EDGE_TIME",
        LISTS,
    ),
    Fault(
        "a store whose pointers fall is read",
        SORT,
        "if len(ptr) == 0 or ptr[0] != 0 or ptr[-1] != len(row) or falls:",
        "if len(ptr) == 0 or ptr[0] != 0 or ptr[-1] != len(row):",
        "tests/loader/test_extreme_arguments.py",
    ),
    Fault(
        "nodes behind the last list of a matrix have neighbours",
        SORT,
        "indptr[: len(ptr)], indptr[len(ptr) :] = ptr, ptr[-1]",
        "indptr[: len(ptr)], indptr[len(ptr) :] = ptr, 0",
        "tests/unit/graph/test_coo_to_csc.py::test_destinations_behind_the_last_list_have_empty_ones",
    ),
    Fault(
        "edges of weight 0 are drawn where another type has none",
        PYG,
        "positive = all(bool((value > 0).all()) for value in weights.values())",
        "positive = any(bool((value > 0).all()) for value in weights.values())",
        LISTS + " tests/unit/graph/test_weights.py",
    ),
    Fault(
        "types without times are bound by those of the first type",
        PYG,
        "if node_types[src] in times.node:",
        "if times.node:",
        "tests/reference/test_matrix.py::test_every_typed_batch_keeps_what_is_promised",
    ),
    Fault(
        "times of edges are those of the edges in the user's order",
        PYG,
        """            if csc.perm is None:
                out[positions] = values[key]
            else:""",
        """            if csc.perm is None or dtype == np.int64:
                out[positions] = values[key]
            else:""",
        LISTS,
    ),
    Fault(
        "edge ids of sorted types are those of unsorted ones",
        PYG,
        "[np.arange(len(r.indices)) if r.perm is None else r.perm for r in relations],",
        "[np.zeros(len(r.indices), int) if r.perm is None else r.perm for r in relations],",
        "tests/loader/test_hetero_full.py::test_debian_hetero_equals_stored_batches",
    ),
    Fault(
        "int32 ids are handed out for a graph of both widths",
        PYG,
        "id_dtype = torch.int32 if dtypes == {torch.int32} else torch.int64",
        "id_dtype = torch.int32 if torch.int32 in dtypes else torch.int64",
        "tests/unit/graph/test_from_pyg.py",
    ),
    Fault(
        "an EdgeIndex sorted by row is trusted to be sorted by column",
        PYG,
        'is_sorted = is_sorted or edge_index.sort_order == ("row" if backward else "col")',
        "is_sorted = is_sorted or edge_index.sort_order is not None",
        "tests/unit/batch/test_assemble.py tests/loader/test_backward.py",
    ),
    Fault(
        "backward sampling of a saved graph goes forward",
        PYG,
        "saved = None if backward else compressed_graph(data, time_attr, weight_attr)",
        "saved = compressed_graph(data, time_attr, weight_attr)",
        "tests/unit/graph/test_from_pyg.py",
    ),
    Fault(
        "adj_t is taken before adj",
        PYG,
        'for key in ("adj", "adj_t"):  # PyG\'s order of preference',
        'for key in ("adj_t", "adj"):',
        "tests/unit/graph/test_from_pyg.py",
    ),
    Fault(
        "a graph opened without times is bound by those it was saved with",
        COMPRESSED,
        "times = csc.times if time_attr is not None else None",
        "times = csc.times",
        FILES,
    ),
    Fault(
        "a graph opened without weights is drawn by those it was saved with",
        COMPRESSED,
        """        weights = None
        if weight_attr is not None:""",
        """        weights = csc.weights
        if weight_attr is not None:""",
        "tests/unit/files/test_saved_parts.py::test_what_was_saved_changes_no_batch",
    ),
    Fault(
        "times that were written to are not read anew",
        COMPRESSED,
        "named[key] is value and writes_to(value) == graph.versions.get(key, 0)",
        "named[key] is value",
        FILES + " tests/unit/ranks/test_share.py",
    ),
    Fault(
        "another edge_index of a saved graph is not seen",
        COMPRESSED,
        "and all(_is_relation(store, graph, r) for r, store in enumerate(stores))",
        "and _is_relation(stores[0], graph, 0)",
        "tests/unit/graph/test_compressed.py",
    ),
    Fault(
        "a saved graph of more nodes is sampled as it was",
        COMPRESSED,
        "        and num_nodes == graph.csc.num_nodes.tolist()\n",
        "",
        "tests/unit/graph/test_compressed.py",
    ),
    Fault(
        "ids of a damaged file are not read where times are found by them",
        COMPRESSED,
        "if not checks_ids or by_node or weight_attr is not None:",
        "if not checks_ids or weight_attr is not None:",
        "tests/unit/graph/test_compressed.py",
    ),
    Fault(
        "node times of a saved graph are those of the first type",
        COMPRESSED,
        "found[node_type] = csc.times.time[csc.node_base[t] : csc.node_base[t + 1]]",
        "found[node_type] = csc.times.time[: csc.num_nodes[t]]",
        "tests/unit/graph/test_compressed.py",
    ),
    Fault(
        "columns of a shared edge_index are in another order",
        COMPRESSED,
        "columns = slice(None) if csc.perm is None else csc.perm[first:last]",
        "columns = slice(None)",
        "tests/unit/ranks/test_share.py::test_edge_index_is_that_of_the_data",
    ),
    Fault(
        "an attribute of both is taken for nodes' times alone",
        ATTRIBUTES,
        "if node and edge:",
        "if node and edge and len(node) > 1:",
        "tests/unit/graph/test_attributes.py",
    ),
    Fault(
        "times of nodes follow what the user writes later",
        ATTRIBUTES,
        "self.node = {key: _integers(found, name).copy() for key, found in node.items()}",
        "self.node = {key: _integers(found, name) for key, found in node.items()}",
        "tests/loader/test_user_memory.py",
    ),
    Fault(
        "weights of NaN are drawn by",
        ATTRIBUTES,
        "wrong = ~(torch.isfinite(numbers) & (numbers >= 0))",
        "wrong = numbers < 0",
        "tests/loader/test_weighted.py::test_bad_weights",
    ),
    Fault(
        "the entries of a COO matrix are grouped by the other end",
        MATRIX,
        "row, col = (second, first) if by_row else (first, second)",
        "row, col = (first, second)",
        "tests/unit/batch/test_sparse.py",
    ),
    Fault(
        "a CSR matrix is read as CSC",
        MATRIX,
        "return (major, minor) if by_row else (minor, major)",
        "return (major, minor)",
        "tests/unit/batch/test_sparse.py",
    ),
    Fault(
        "stores are compressed by the end that sampling does not go from",
        STORES,
        "_check_ids(graph_store, 0 if backward else 1)",
        "_check_ids(graph_store, 0)",
        "tests/loader/test_extreme_arguments.py::test_indices_of_a_store_that_lie",
    ),
    Fault(
        "what NumPy exchanged in place is not noticed",
        SHARED,
        "np.multiply(mixed, ODD_NUMBERS[: len(part)], out=mixed)",
        "pass",
        KNOWN,
    ),
    Fault(
        "two signs that change are not noticed",
        SHARED,
        "        np.bitwise_xor(mixed, part, out=mixed)\n",
        "        np.copyto(mixed, part)\n",
        KNOWN,
    ),
    Fault(
        "a tensor at the address of a freed one gets its graph",
        SHARED,
        "return self.tensor() is now.tensor() and np.array_equal(self.digest, now.digest)",
        "return np.array_equal(self.digest, now.digest)",
        KNOWN,
        equivalent="sums of all entries are compared as well, and of the same entries it is the same "
        "graph; two tensors would have to agree in all of these sums",
    ),
    Fault(
        "the newer graph of the same tensors is forgotten with the older",
        SHARED,
        "if found is not None and found.graph is graph:",
        "if found is not None:",
        KNOWN,
        equivalent="the entry of a newer graph takes the place of the older one with its weak "
        "reference, and a reference that is gone calls nothing",
    ),
    Fault(
        "a graph of other weights is taken for known",
        SHARED,
        "names = [name for name in (time_attr, weight_attr) if name is not None]\n    if not isinstance",
        "names = [name for name in (time_attr,) if name is not None]\n    if not isinstance",
        KNOWN,
    ),
    Fault(
        "a backward sampler gets the graph of a forward one",
        SHARED,
        "type(data), is_sorted, time_attr, weight_attr, backward, sizes,",
        "type(data), is_sorted, time_attr, weight_attr, sizes,",
        "tests/unit/graph/test_shared.py::test_other_arguments_make_another_graph",
    ),
    Fault(
        "the last list of a damaged file is not looked at",
        VERIFY,
        "if indptr[[0, -1]].tolist() != [first, last] or bounds.first_decrease(indptr, 0, nodes) >= 0:",
        "if indptr[[0, -1]].tolist() != [first, last] or "
        "bounds.first_decrease(indptr, 0, nodes - 1) >= 0:",
        "tests/unit/graph/test_verify.py",
    ),
    Fault(
        "ids of a damaged file are compared with the wrong type",
        VERIFY,
        "end = int(csc.num_nodes[csc.src_type[r]])",
        "end = int(csc.num_nodes.max())",
        "tests/unit/graph/test_verify.py",
    ),
    Fault(
        "weights of 0 that are called positive are taken for such",
        VERIFY,
        "if bad or (positive and bool((weight[first:last] <= 0).any())):",
        "if bad:",
        "tests/unit/graph/test_verify.py",
    ),
    Fault(
        "alias tables of a damaged file are not looked at",
        VERIFY,
        "if not bad and csc.time_base[r] == NO_TIME and alias is not None:",
        "if not bad and csc.time_base[r] != NO_TIME and alias is not None:",
        "tests/unit/graph/test_verify.py",
    ),
    Fault(
        "lists of the last type are not looked at for their times",
        VERIFY,
        "relations = range(csc.num_relations)\n    return next((r for r",
        "relations = range(csc.num_relations - 1)\n    return next((r for r",
        "tests/unit/graph/test_verify.py",
    ),
    Fault(
        "alias tables that there are get lost",
        WEIGHTS,
        "        alias[:] = weights.alias\n",
        "        pass\n",
        "tests/unit/files/test_saved_parts.py::test_relations_with_and_without_times",
    ),
    Fault(
        "weights next to nothing cannot be drawn by",
        WEIGHTS,
        "if ((total > weight_tables.LARGE) | ((total > 0) & (total < weight_tables.SMALL))).any():",
        "if (total > weight_tables.LARGE).any():",
        "tests/unit/graph/test_weights.py",
    ),
    Fault(
        "the user's weights are rescaled in place",
        WEIGHTS,
        "        weight = weight.copy()\n",
        "",
        "tests/unit/graph/test_weights.py",
    ),
    Fault(
        "weights that another type of an opened graph got are ignored",
        COMPRESSED,
        "        and named.keys() == saved.keys()\n",
        "",
        "tests/unit/graph/test_compressed.py",
    ),
    Fault(
        "of a store without types, times of another name are of nodes",
        ATTRIBUTES,
        'attr.group_name is None and name != "time"',
        "False",
        "tests/unit/graph/test_attributes.py",
    ),
    Fault(
        "is_sorted of edges that are not is taken where the graph is known",
        SHARED,
        "type(data), is_sorted, time_attr, weight_attr, backward, sizes,",
        "type(data), time_attr, weight_attr, backward, sizes,",
        "tests/unit/graph/test_shared.py",
    ),
    Fault(
        "edge ids of a store that are too few are read behind their end",
        SORT,
        "    if perm is not None and len(perm) != len(row):\n",
        "    if perm is not None and len(perm) > len(row):\n",
        "tests/loader/test_extreme_arguments.py tests/unit/graph/test_from_stores.py",
    ),
    Fault(
        "a negative id in a store is taken",
        STORES,
        "        if low < 0 or (size is not None and high >= size):\n",
        "        if size is not None and high >= size:\n",
        "tests/loader/test_extreme_arguments.py tests/unit/graph/test_from_stores.py",
    ),
    Fault(
        "weights of a complex or empty shape are taken",
        ATTRIBUTES,
        "if not one_each or value.dim() == 0 or value.is_complex():",
        "if not one_each:",
        "tests/loader/test_weighted.py",
    ),
    Fault(
        "nodes that were found before count again in later hops",
        "pyg_direct/graph/visits.py",
        "frontier[t] = (1 - visited[t]) * -np.expm1(-draws)",
        "frontier[t] = -np.expm1(-draws)",
        "tests/unit/graph/test_visits.py",
    ),
    Fault(
        "pointers of a store that are floats are cut off",
        SORT,
        'if array is not None and (array.ndim != 1 or array.dtype.kind not in "iu"):',
        'if array is not None and (array.ndim != 1 or array.dtype.kind not in "iuf"):',
        "tests/loader/test_extreme_arguments.py tests/unit/graph/test_from_stores.py",
    ),
    Fault(
        "more lists than nodes of a store are written behind the end",
        SORT,
        "    if len(ptr) > num_dst + 1:\n",
        "    if len(ptr) > num_dst + 2:\n",
        "tests/unit/graph/test_coo_to_csc.py::test_more_lists_than_destinations_are_refused",
    ),
    Fault(
        "parallel edges between two types are looked for in the wrong one",
        VERIFY,
        "seen = np.full(int(csc.num_nodes[csc.src_type[r]]), -1, np.int64)",
        "seen = np.full(int(csc.num_nodes[csc.dst_type[r]]), -1, np.int64)",
        "tests/loader/test_labor.py tests/unit/graph/test_verify.py",
    ),
    Fault(
        "weights of 16 bytes are told by a KeyError",
        SHARED,
        "        and value.element_size() in WORDS\n",
        "",
        "tests/loader/test_weighted.py::test_bad_weights tests/unit/graph/test_shared.py",
    ),
    Fault(
        "a store without types has as many nodes as its smaller size says",
        STORES,
        "_compressed(ptr, row, perm), 0, 0)], [max(sizes)]",
        "_compressed(ptr, row, perm), 0, 0)], [min(sizes)]",
        "tests/unit/graph/test_from_stores.py",
    ),
    Fault(
        "ids of a typed store behind a size that was told too small are refused",
        STORES,
        'continued = bool(getattr(graph_store, "meta", {}).get("is_hetero"))',
        "continued = False",
        "tests/loader/test_extreme_arguments.py tests/unit/graph/test_from_stores.py",
    ),
    Fault(
        "a matrix whose entries are vectors is refused",
        MATRIX,
        "adj.dim() - adj.dense_dim() != 2:",
        "adj.dim() != 2:",
        "tests/unit/batch/test_sparse.py tests/unit/graph/test_from_pyg.py",
    ),
    Fault(
        "an edge_index of damaged lists is as long as they say",
        COMPRESSED,
        "if (degree < 0).any() or int(degree.sum(dtype=np.int64)) != last - first:",
        "if (degree < 0).any():",
        "tests/unit/graph/test_compressed.py",
    ),
]
