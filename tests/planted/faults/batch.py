"""Faults in what a batch contains."""

from __future__ import annotations

from ..fault import Fault

ASSEMBLE = "pyg_direct/batch/assemble.py"
EDGES = "pyg_direct/batch/edges.py"
GATHER = "pyg_direct/batch/gather.py"
IDS = "pyg_direct/batch/ids.py"
NARROW = "pyg_direct/batch/narrow.py"
ROLES = "pyg_direct/batch/roles.py"
SAMPLED = "pyg_direct/batch/sampled.py"
SPARSE = "pyg_direct/batch/sparse.py"
SUBGRAPH = "pyg_direct/batch/subgraph.py"
TENSORS = "pyg_direct/batch/tensors.py"

ASSEMBLED = "tests/unit/batch/test_assemble.py"
GATHERED = "tests/unit/batch/test_gather.py"
LINK = "tests/loader/test_link.py"
STORES = "tests/unit/graph/test_from_stores.py"

FAULTS = [
    Fault(
        "triplets keep the graph's edge_label_time",
        ASSEMBLE,
        'removed = {"edge_label_index": None, "edge_label_time": None}',
        'removed = {"edge_label_index": None}',
        LINK,
    ),
    Fault(
        "typed triplets have a seed_time at one end alone",
        ASSEMBLE,
        'labels.setdefault(node_type, {"seed_time": seed_time}).update(fields)',
        "labels.setdefault(node_type, {}).update(fields)",
        "tests/reference/test_matrix.py::test_every_batch_of_links_keeps_what_is_promised",
    ),
    Fault(
        "a user's own num_nodes is that of the graph",
        ASSEMBLE,
        'fields["num_nodes"] = found.node.numel()',
        "pass",
        "tests/unit/batch/test_assemble.py::test_num_nodes_only_where_the_data_stores_it",
    ),
    Fault(
        "a user's own e_id is written over",
        ASSEMBLE,
        'if found.given is not None and "e_id" not in fields:',
        "if found.given is not None:",
        ASSEMBLED,
    ),
    Fault(
        "edge attributes stay where there are no edge ids",
        ASSEMBLE,
        "                fields.pop(attribute.name)\n",
        "                pass\n",
        "tests/loader/test_transforms.py",
    ),
    Fault(
        "a user's own batch stays where subgraphs share nodes",
        ASSEMBLE,
        "        elif not self.sampled.is_typed:\n            fields.pop(name, None)\n",
        "",
        "tests/unit/batch/test_assemble.py::test_a_users_own_batch_and_seed_time_vanish",
    ),
    Fault(
        "ids of a transformed output are not looked at",
        "pyg_direct/loading/base.py",
        "ends = site.ends if self.transform_sampler_output is None else None",
        "ends = site.ends",
        "tests/loader/test_bad_input.py::test_ids_from_transform_sampler_output_are_checked",
    ),
    Fault(
        "edges that were written to keep their hops",
        EDGES,
        "return self._hops if self._versions == self._versions_now() else None",
        "return self._hops",
        "tests/unit/batch/test_edges.py",
    ),
    Fault(
        "a transform that adds nodes leaves the hops of before",
        EDGES,
        "if same and _num_nodes(batch, key) == sizes:",
        "if same:",
        "tests/unit/batch/test_edges.py",
    ),
    Fault(
        "types have the hops of their destinations at both ends",
        EDGES,
        "ends = [store] * 2 if key is None else [store_of(batch, end) for end in key[::2]]",
        "ends = [store] * 2 if key is None else [store_of(batch, key[2])] * 2",
        "tests/unit/batch/test_edges.py::test_types_have_their_own_hops",
    ),
    Fault(
        "rows of a negated view have the wrong sign",
        GATHER,
        "and not (value.is_conj() or value.is_neg() or value.is_quantized)",
        "and not (value.is_conj() or value.is_quantized)",
        ASSEMBLED + " " + GATHERED,
    ),
    Fault(
        "rows of a conjugate view have the wrong sign",
        GATHER,
        "and not (value.is_conj() or value.is_neg() or value.is_quantized)",
        "and not (value.is_neg() or value.is_quantized)",
        "tests/unit/batch/test_assemble.py::test_layouts_of_x",
    ),
    Fault(
        "a table that has become a negated view is read as before",
        GATHER,
        "value.data_ptr(), value.shape, value.dtype, value.is_contiguous(), value.is_neg(),",
        "value.data_ptr(), value.shape, value.dtype, value.is_contiguous(),",
        GATHERED,
    ),
    Fault(
        "a table that has come to ask for a gradient gets none",
        GATHER,
        "        value.requires_grad,\n    )  # fmt: skip",
        "    )  # fmt: skip",
        GATHERED,
    ),
    Fault(
        "a view whose storage was cut off is read behind its end",
        GATHER,
        "needed = (value.storage_offset() + elements) * value.itemsize",
        "needed = elements * value.itemsize",
        GATHERED,
    ),
    Fault(
        "attributes that PyG selects change places with the others",
        GATHER,
        "selected.insert(i, found[i])",
        "selected.append(found[i])",
        "tests/unit/batch/test_gather.py",
    ),
    Fault(
        "an attribute along another dimension is selected along the first",
        GATHER,
        "        if attribute.dim != 0 or not parts:\n",
        "        if not parts:\n",
        ASSEMBLED,
    ),
    Fault(
        "ids of the user's own stay on the GPU",
        GATHER,
        "                selected[i] = self.ids.of(selected[i])\n",
        "                pass\n",
        "tests/loader/test_places_of_ids.py::test_ids_of_the_users_own",
    ),
    Fault(
        "edge ids are waited for without having been copied",
        IDS,
        "        found += [part.given for part in out.edges.values()]\n",
        "",
        "tests/loader/test_places_of_ids.py tests/unit/loading/test_stats.py",
        equivalent="the copy begins later, when the batch is assembled",
    ),
    Fault(
        "float32 attributes are made narrow",
        NARROW,
        "return feature_dtype if feature_dtype is not None and is_narrow(value) else value.dtype",
        "return feature_dtype if feature_dtype is not None and "
        "value.is_floating_point() else value.dtype",
        "tests/loader/test_feature_dtype.py",
    ),
    Fault(
        "an attribute that replaced one is gathered as that was",
        ROLES,
        "                if value() is not now:  # also where it has died\n",
        "                if value() is not now and value() is not None:\n",
        "tests/unit/batch/test_roles.py::test_a_change_of_the_graph_is_seen",
    ),
    Fault(
        "a graph's attributes are kept alive",
        ROLES,
        "        return weakref.ref(value)\n",
        "        return lambda: value\n",
        "tests/unit/batch/test_roles.py",
    ),
    Fault(
        "two tensors of a user's sampler that lie side by side are taken for one",
        SAMPLED,
        "        and row.untyped_storage().data_ptr() == col.untyped_storage().data_ptr()\n",
        "",
        "tests/loader/test_small_print.py tests/loader/test_transforms.py",
        equivalent="two storages side by side can be read as one, as long as both live",
    ),
    Fault(
        "rows and columns of a view of other rows are taken for its two",
        SAMPLED,
        "if both.is_contiguous() and (row.data_ptr(), col.data_ptr()) == (first, second):",
        "if both.is_contiguous():",
        "tests/unit/batch/test_sampled.py",
    ),
    Fault(
        "types that a sampler left out get the nodes of others",
        SAMPLED,
        "for key in {**node, **seed_of, **num_nodes}:",
        "for key in node:",
        "tests/unit/batch/test_sampled.py",
    ),
    Fault(
        "values of a sparse matrix come in the order of the batch",
        SPARSE,
        "return make(pointer, minor[order], values[order], size, check_invariants=False)",
        "return make(pointer, minor[order], values, size, check_invariants=False)",
        "tests/unit/batch/test_sparse.py",
    ),
    Fault(
        "rows of a CSR matrix begin at those of the batch",
        SPARSE,
        "position = offset + start.repeat_interleave(count)",
        "position = offset",
        "tests/unit/batch/test_sparse.py::test_rows_of_a_csr_matrix",
    ),
    Fault(
        "parallel edges of a matrix change their order",
        SPARSE,
        "    return place.argsort(stable=True)\n",
        "    return place.flip(0).argsort(stable=True).mul(-1).add(len(place) - 1)\n",
        "tests/unit/batch/test_sparse.py " + ASSEMBLED,
    ),
    Fault(
        "attributes of as many edges as nodes are of the edges",
        SUBGRAPH,
        "            names[ends.index(size)].append(name)\n",
        "            names[1 - ends[::-1].index(size)].append(name)\n",
        "tests/unit/batch/test_subgraph.py",
    ),
    Fault(
        "tensors in slots are not kept from being written over",
        TENSORS,
        "            if isinstance(slot, types.MemberDescriptorType):",
        "            if False:",
        "tests/unit/batch/test_tensors.py::test_through_slots",
    ),
    Fault(
        "edge ids of a sampler of PyG's are positions",
        TENSORS,
        "        out.edge = permutation[out.edge]\n",
        "        pass\n",
        "tests/unit/batch/test_sampled.py",
    ),
    Fault(
        "a user's own batch of a type vanishes",
        ASSEMBLE,
        "        elif not self.sampled.is_typed:\n            fields.pop(name, None)\n",
        "        else:\n            fields.pop(name, None)\n",
        "tests/unit/batch/test_assemble.py::test_a_users_own_batch_of_a_type_is_filtered",
    ),
    Fault(
        "edges of a store that have no ids get the features of all",
        ASSEMBLE,
        "        if edge.get(attr.group_name) is not None\n",
        "        if attr.group_name in edge\n",
        STORES,
    ),
    Fault(
        "features of a store are in the dtype that it has",
        ASSEMBLE,
        "wanted = converted(value, gatherer.feature_dtype)",
        "wanted = value",
        "tests/loader/test_feature_dtype.py::test_remote_stores",
    ),
    Fault(
        "factors of columns are cached as rows of nodes",
        ASSEMBLE,
        "if table.dim() > 0 and len(table) == store.num_nodes:",
        "if table.dim() > 0:",
        "tests/unit/loading/test_cache.py",
    ),
    Fault(
        "triplets keep the graph's edge_label_index",
        ASSEMBLE,
        'removed = {"edge_label_index": None, "edge_label_time": None}',
        'removed = {"edge_label_time": None}',
        LINK,
    ),
    Fault(
        "a transform that gives no graph fails on a typed one",
        EDGES,
        "    if not isinstance(batch, (Data, HeteroData)):\n        sampled = []\n",
        "",
        "tests/unit/batch/test_edges.py",
    ),
    Fault(
        "a transform that leaves out an edge type fails",
        EDGES,
        "        if key is not None and key not in batch.edge_types:\n            continue\n",
        "",
        "tests/unit/batch/test_edges.py",
    ),
    Fault(
        "edges that were written to are pickled with their hops",
        EDGES,
        "        hops = self.hops\n        if hops is None:\n            return EdgeIndex,",
        "        hops = self._hops\n        if hops is None:\n            return EdgeIndex,",
        "tests/unit/batch/test_edges.py",
    ),
    Fault(
        "a model that reuses rows trains on edges that a transform changed",
        EDGES,
        "    known = reused is None\n",
        "    known = True\n",
        "tests/unit/models/test_reuse.py::test_other_edges_are_refused_in_training",
    ),
    Fault(
        "a broadcast attribute whose storage is cut off is read behind its end",
        GATHER,
        "            elements = 1 + sum((size - 1) * stride for size, stride in ends)\n",
        "            elements = 1 + sum(size * stride for size, stride in ends)\n",
        ASSEMBLED + " " + GATHERED,
    ),
    Fault(
        "types of a sampler without edges have no counts",
        SAMPLED,
        "    for key in {**row, **num_edges}:\n",
        "    for key in row:\n",
        "tests/unit/batch/test_sampled.py",
    ),
    Fault(
        "rows and columns of different lengths are read behind their end",
        SAMPLED,
        "        and size == col.numel()\n",
        "",
        "tests/unit/batch/test_sampled.py",
    ),
    Fault(
        "induced subgraphs of types have counts by hop",
        SAMPLED,
        "counts = None if num_edges is None else num_nodes[t]",
        "counts = num_nodes[t]",
        "tests/unit/batch/test_sampled.py tests/loader/test_hetero.py",
    ),
    Fault(
        "a matrix with int32 ids is sorted by places that overflow",
        SPARSE,
        "place = major.to(torch.int64) * num_minor + minor",
        "place = major * num_minor + minor",
        "tests/unit/batch/test_sparse.py",
    ),
    Fault(
        "a matrix whose entries are vectors has scalars where ids are not known",
        SPARSE,
        "values = torch.ones((len(first), *full.shape[1:]), dtype=full.dtype, device=full.device)",
        "values = torch.ones(len(first), dtype=full.dtype, device=full.device)",
        "tests/unit/batch/test_sparse.py",
    ),
    Fault(
        "bytes of a matrix in columns lack its pointers",
        SPARSE,
        "return [value.ccol_indices(), value.row_indices(), value.values()]",
        "return [value.row_indices(), value.values()]",
        "tests/unit/batch/test_sparse.py",
    ),
    Fault(
        "attributes of clusters along another dimension are selected along the first",
        SUBGRAPH,
        "role = Attribute(name, data.__cat_dim__(name, value))",
        "role = Attribute(name, 0)",
        "tests/unit/batch/test_subgraph.py",
    ),
    Fault(
        "a number that a graph has as a tensor breaks GraphSAINT and ShaDow",
        SUBGRAPH,
        "if isinstance(value, Tensor) and value.dim() > 0 and (size := value.size(0)) in ends:",
        "if isinstance(value, Tensor) and (size := value.size(0)) in ends:",
        "tests/unit/batch/test_subgraph.py",
    ),
    Fault(
        "streams keep the graph's own attributes",
        TENSORS,
        "        shared |= {id(store), *map(id, store.values())}\n",
        "        shared |= {id(store)}\n",
        "tests/unit/batch/test_tensors.py",
    ),
    Fault(
        "a float16 array of NumPy's cannot be decoded",
        NARROW,
        "        return bool(value.dtype == np.float16)\n",
        "        return False\n",
        "tests/loader/test_feature_dtype.py",
    ),
]
