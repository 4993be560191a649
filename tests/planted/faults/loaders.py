"""Faults in PyG's other loaders."""

from __future__ import annotations

from ..fault import Fault

CLUSTER = "pyg_direct/loaders/cluster.py"
HGT = "pyg_direct/loaders/hgt.py"
LINK = "pyg_direct/loaders/link_loader.py"
LOADER = "pyg_direct/loaders/loader.py"
NODE2VEC = "pyg_direct/loaders/node2vec.py"
SAINT = "pyg_direct/loaders/saint.py"
EGO = "pyg_direct/loaders/ego.py"
SWAP = "pyg_direct/loaders/swap.py"
WALKS = "pyg_direct/loaders/walks.py"
PAGERANK = "pyg_direct/loaders/pagerank.py"

OF_SAINT = "tests/unit/loaders/test_saint.py"
OF_SHADOW = "tests/unit/loaders/test_shadow.py"
OF_PAGERANK = "tests/unit/loaders/test_pagerank.py"
OF_CLUSTER = "tests/unit/loaders/test_cluster.py"
SWAPPED = "tests/loader/test_swapped.py"
LAWS = "tests/statistics/test_family_laws.py"

FAULTS = [
    Fault(
        "PageRank: scores are in the order of contexts, not of the batch's rows",
        PAGERANK,
        "return _Found(graphs, context, mask, score[by_place])",
        "return _Found(graphs, context, mask, score)",
        OF_PAGERANK,
    ),
    Fault(
        "GraphSAINT: coefficients over the same few subgraphs",
        SAINT,
        "rng.derive(base, 0, steps + i, rng.COVERAGE_DOMAIN)",
        "rng.derive(base, 0, i, rng.COVERAGE_DOMAIN)",
        OF_SAINT,
    ),
    Fault(
        "GraphSAINT: node_norm is off by the number of nodes",
        SAINT,
        "return steps / node_count / self.N, edge_norm",
        "return steps / node_count, edge_norm",
        OF_SAINT,
    ),
    Fault(
        "GraphSAINT: nodes that were never drawn make an infinite loss",
        SAINT,
        "        node_count[node_count == 0] = 0.1\n",
        "",
        "tests/unit/loaders/test_saint.py::test_coefficients_by_hand",
    ),
    Fault(
        "GraphSAINT: saved coefficients of another graph are taken",
        SAINT,
        "if node_norm.shape != (self.N,) or edge_norm.shape != (self.E,):",
        "if node_norm.shape != (self.N,):",
        OF_SAINT,
    ),
    Fault(
        "GraphSAINT: the paper's law of edges is PyG's",
        SAINT,
        '    if edge_law == "pyg":\n',
        "    if edge_law:\n",
        LAWS,
    ),
    Fault(
        "GraphSAINT: a batch that lacks edge ids gets those of others",
        SAINT,
        "            or self._reads_edge_ids()\n",
        "",
        "tests/unit/loaders/test_saint.py::test_ids_of_edges_are_looked_up_where_a_batch_needs_them",
    ),
    Fault(
        "ShaDow: edge values over adj_t are those of other edges",
        EGO,
        "value=None if value is None else value[out.edge],",
        "value=None if value is None else value[: len(out.edge)],",
        OF_SHADOW,
    ),
    Fault(
        "ShaDow: adj_t is turned around",
        EGO,
        "        row=out.edge_index[1],\n        col=out.edge_index[0],\n",
        "        row=out.edge_index[0],\n        col=out.edge_index[1],\n",
        OF_SHADOW,
    ),
    Fault(
        "ShaDow: a y of edges is indexed by roots",
        EGO,
        "of_nodes = isinstance(labels, Tensor) and labels.shape[:1] == ends[:1]",
        "of_nodes = isinstance(labels, Tensor)",
        OF_SHADOW,
    ),
    Fault(
        "ShaDow: labels are those of the first nodes of the subgraphs",
        EGO,
        "roots = bring(out.node[out.root], self._backend.device)",
        "roots = bring(out.node[: len(out.root)], self._backend.device)",
        OF_SHADOW,
    ),
    Fault(
        "HGT: a dict of numbers is taken in another order",
        HGT,
        "    for kind in node_types:\n        if kind not in by_type",
        "    for kind in by_type:\n        if kind not in by_type",
        "tests/unit/loaders/test_hgt.py::test_what_is_refused",
    ),
    Fault(
        "HGT: budgets that an error left are used again",
        HGT,
        "        nodes = budgets.draw([seed.get(kind) for kind in self.node_types], self._counts, key)\n"
        "        self._budgets.append(budgets)  # not after an exception\n",
        "        self._budgets.append(budgets)\n"
        "        nodes = budgets.draw([seed.get(kind) for kind in self.node_types], self._counts, key)\n",
        "tests/unit/loaders/test_hgt.py",
    ),
    Fault(
        "HGT: a state of other numbers of nodes is taken",
        HGT,
        'return {**arguments, "num_samples": str(sampler.num_samples)}, [seeds.node, seeds.input_id]',
        "return arguments, [seeds.node, seeds.input_id]",
        "tests/unit/loaders/test_hgt.py",
    ),
    Fault(
        "Cluster: edges of a CSR partition are turned around",
        CLUSTER,
        "            ends = swapped_ends(ends)\n",
        "            pass\n",
        "tests/unit/loaders/test_cluster.py::test_batches_equal_pygs",
    ),
    Fault(
        "Cluster: METIS gets parallel edges",
        "pyg_direct/graph/coo_to_csc.py",
        "pair = np.unique(low.astype(np.int64) * num_nodes + high)",
        "pair = np.sort(low.astype(np.int64) * num_nodes + high)",
        OF_CLUSTER,
    ),
    Fault(
        "Cluster: narrow tables of edges are in the order of the nodes",
        CLUSTER,
        "order = partition.node_perm if of_nodes else partition.edge_perm",
        "order = partition.node_perm",
        "tests/loader/test_feature_dtype.py " + OF_CLUSTER,
    ),
    Fault(
        "Node2Vec: negatives do not begin at their node",
        NODE2VEC,
        "return self._windows(torch.cat([start.view(-1, 1), rest], dim=-1))",
        "return self._windows(torch.cat([start.flip(0).view(-1, 1), rest], dim=-1))",
        "tests/unit/loaders/test_node2vec.py::test_windows_over_walks",
    ),
    Fault(
        "Node2Vec: a state of other walks is taken",
        NODE2VEC,
        '("walk_length", "context_size", "walks_per_node", "num_negative_samples", "p", "q")',
        '("walk_length", "context_size", "walks_per_node", "num_negative_samples", "p")',
        "tests/unit/loaders/test_node2vec.py",
    ),
    Fault(
        "a subclass's filter_fn gets a subgraph of our own",
        LOADER,
        'and getattr(self.filter_fn, "__func__", None) is DirectLoader.filter_fn',
        "and True",
        "tests/loader/test_collate.py tests/loader/test_transforms.py",
    ),
    Fault(
        "times that are given for a call are those of the loader",
        LOADER,
        "        inputs.time = input_time\n",
        "        pass\n",
        "tests/unit/loading/test_base.py",
    ),
    Fault(
        "a state of other negatives is taken",
        LINK,
        'arguments["neg_sampling"] = f"{negatives.mode.value} {negatives.amount}"',
        'arguments["neg_sampling"] = negatives.mode.value',
        "tests/unit/loading/test_states.py " + "tests/loader/test_link.py",
    ),
    Fault(
        "the destinations of links are not looked at",
        LINK,
        'check_ids(ids, count, f"edge_label_index[{i}]")',
        'check_ids(ids, counts[0], f"edge_label_index[{i}]")',
        "tests/loader/test_link.py::test_ends_of_a_link_share_a_subgraph_with_fractional_negatives",
    ),
    Fault(
        "links without labels have none",
        LINK,
        "            self.input_data.label = edge_label\n",
        "            pass\n",
        "tests/loader/test_link.py::test_no_links_have_no_labels_of_their_own",
    ),
    Fault(
        "what others had put in PyG's place is lost after a context",
        SWAP,
        "(sys.modules[place], name, getattr(sys.modules[place], name))",
        "(sys.modules[place], name, PYG[_])",
        SWAPPED,
    ),
    Fault(
        "the first of two contexts that ends gives PyG its classes back",
        SWAP,
        "            if self._open > 0:\n                return\n",
        "",
        "tests/loader/test_swapped.py::test_nested_and_left_by_an_exception",
    ),
    Fault(
        "a metapath whose types do not follow each other is walked",
        WALKS,
        "            if one[-1] != two[0]:\n",
        "            if False:\n",
        "tests/unit/loaders/test_walks.py",
    ),
    Fault(
        "a sampler that overrides sample_from_nodes is passed over",
        LOADER,
        "            and type(sampler).sample_from_nodes is NeighborSampler.sample_from_nodes\n",
        "",
        "tests/loader/test_loader_object.py tests/loader/test_collate.py",
    ),
    Fault(
        "a loader that overrides _sample is passed over",
        LOADER,
        "            and type(self)._sample is NeighborLoader._sample\n",
        "",
        "tests/loader/test_loader_object.py tests/loader/test_collate.py",
    ),
    Fault(
        "stores of the user are read as a graph",
        LOADER,
        "            and isinstance(self.data, (Data, HeteroData))\n",
        "",
        "tests/unit/graph/test_from_stores.py",
    ),
    Fault(
        "a state of other times of links is taken",
        LINK,
        "tensors = [links.row, links.col, links.label, links.time, links.input_id]",
        "tensors = [links.row, links.col, links.label, links.input_id]",
        "tests/unit/loading/test_states.py",
    ),
    Fault(
        "strict_negatives without negatives is ignored",
        LINK,
        "                if self.neg_sampling is None:\n",
        "                if False:\n",
        "tests/loader/test_strict_negatives.py",
    ),
    Fault(
        "weights of negatives of destinations are those of sources",
        LINK,
        "check_weights(self.neg_sampling, counts[0], counts[1])",
        "check_weights(self.neg_sampling, counts[0], counts[0])",
        "tests/loader/test_strict_negatives.py::test_weights_of_destinations_hold",
    ),
    Fault(
        "Cluster: a partition is ignored beside recursive parts that were saved",
        CLUSTER,
        "folder = f\"part_{num_parts}{'_recursive' if recursive else ''}\"",
        'folder = f"part_{num_parts}"',
        OF_CLUSTER,
    ),
    Fault(
        "Cluster: saved parts of another graph are taken",
        CLUSTER,
        "if (nodes, edges) != (data.num_nodes, data.num_edges):",
        "if nodes != data.num_nodes:",
        OF_CLUSTER,
    ),
    Fault(
        "Cluster: a batch of a graph that stores num_nodes has that of the graph",
        CLUSTER,
        '        if "num_nodes" in self.data:\n            batch.num_nodes = len(node)\n',
        "",
        OF_CLUSTER,
    ),
    Fault(
        "Cluster: a part with a negative number is taken",
        CLUSTER,
        "    if low < 0 or high >= num_parts:\n",
        "    if high >= num_parts:\n",
        OF_CLUSTER,
    ),
    Fault(
        "GraphSAINT: edges that were never drawn make an infinite loss",
        SAINT,
        " / edge_count).clamp_(0, 1e4)",
        " / edge_count)",
        OF_SAINT,
    ),
    Fault(
        "GraphSAINT: edges of nodes that were never drawn have no number",
        SAINT,
        "        edge_norm[torch.isnan(edge_norm)] = 0.1\n",
        "",
        OF_SAINT,
    ),
    Fault(
        "GraphSAINT: a state of longer walks is taken",
        SAINT,
        'return {**super()._law(), "walk_length": self.walk_length}',
        "return super()._law()",
        "tests/unit/loaders/test_all.py::test_a_state_of_another_law_is_refused",
    ),
    Fault(
        "GraphSAINT: subgraphs of a subclass are drawn by the class above",
        SAINT,
        "            or kind._subgraph is not own._subgraph\n",
        "",
        OF_SAINT,
    ),
    Fault(
        "PageRank: a state of another tolerance is taken",
        PAGERANK,
        'return {"k": self.k, "alpha": self.alpha, "tolerance": self.tolerance}',
        'return {"k": self.k, "alpha": self.alpha}',
        "tests/unit/loaders/test_all.py::test_a_state_of_another_law_is_refused",
    ),
    Fault(
        "ShaDow: a batch and a ptr of the graph are those of the batch",
        EGO,
        'UNNAMED = ("batch", "ptr")',
        'UNNAMED = ("batch",)',
        OF_SHADOW,
    ),
    Fault(
        "swapped: Lightning's module with a sampler of HGT gets another law",
        SWAP,
        "return isinstance(sampler, NeighborSampler) and not isinstance(sampler, HGTSampler)",
        "return isinstance(sampler, NeighborSampler)",
        SWAPPED,
    ),
    Fault(
        "HGT: samples of a type that there is not are ignored",
        HGT,
        "    if unknown or len({len(values) for values in lists}) > 1:\n",
        "    if len({len(values) for values in lists}) > 1:\n",
        "tests/unit/loaders/test_hgt.py",
    ),
    Fault(
        "Node2Vec: several walks of a node have one set of negatives",
        NODE2VEC,
        "start = batch.repeat(self.walks_per_node * self.num_negative_samples).cpu()",
        "start = batch.repeat(self.num_negative_samples).cpu()",
        "tests/unit/loaders/test_node2vec.py",
    ),
    Fault(
        "ShaDow: a label of the whole graph breaks a batch",
        EGO,
        "labels.shape[:1] == ends[:1]",
        "labels.size(0) == ends[0]",
        OF_SHADOW,
    ),
    Fault(
        "positions of seeds with times of their own are cut off to integers",
        LOADER,
        "inputs = self.input_data[integers(index)]",
        "inputs = self.input_data[index]",
        "tests/loader/test_wrong_positions.py",
    ),
    Fault(
        "visits of a loader of HGT are those of its seeds",
        "pyg_direct/loaders/visits.py",
        "of_hops = isinstance(loader, (NeighborLoader, LinkNeighborLoader))",
        'of_hops = hasattr(loader, "_sampler")',
        "tests/unit/files/test_row_order.py",
    ),
    Fault(
        "times of links beside a sampler that has times are refused",
        LINK,
        "        if neighbor_sampler is None:\n            _check_both",
        "        if True:\n            _check_both",
        "tests/loader/test_link.py tests/loader/test_exclude_seed_edges.py",
    ),
    Fault(
        "too few input_id of links are seen in an epoch only",
        LINK,
        "        check_input_id(links.input_id, links.row.numel())\n",
        "",
        "tests/loader/test_link.py tests/loader/test_bad_arguments.py",
    ),
    Fault(
        "HGT: a state of other seeds is taken",
        HGT,
        "[seeds.node, seeds.input_id]",
        "[seeds.input_id]",
        "tests/unit/loaders/test_all.py::test_a_state_of_another_loader_its_seeds_or_its_parts_is_refused",
    ),
    Fault(
        "GraphSAINT: an edge_norm of the graph is written over",
        SAINT,
        'for name in ("node_norm", "edge_norm"):\n            if name in data:',
        'for name in ("node_norm",):\n            if name in data:',
        OF_SAINT,
    ),
    Fault(
        "Cluster: a state of other parts is taken",
        CLUSTER,
        'return {"loader": type(self).__name__}, [self._bounds]',
        'return {"loader": type(self).__name__}, []',
        "tests/unit/loaders/test_all.py::test_a_state_of_another_loader_its_seeds_or_its_parts_is_refused",
    ),
    Fault(
        "ShaDow: a state of other seeds is taken",
        EGO,
        'return {"loader": type(self).__name__, **self._law()}, [self.node_idx]',
        'return {"loader": type(self).__name__, **self._law()}, []',
        "tests/unit/loaders/test_all.py::test_a_state_of_another_loader_its_seeds_or_its_parts_is_refused",
    ),
    Fault(
        "a state of another loader of subgraphs is taken",
        "pyg_direct/loaders/base.py",
        'return {"loader": type(self).__name__, **self._law()}, []',
        "return self._law(), []",
        "tests/unit/loaders/test_all.py::test_a_state_of_another_loader_its_seeds_or_its_parts_is_refused",
    ),
    Fault(
        "a loader of subgraphs cannot be built anew from what it has",
        "pyg_direct/loaders/base.py",
        'OWN_OPTIONS = ("dataset", "collate_fn")',
        'OWN_OPTIONS = ("dataset",)',
        "tests/unit/loaders/test_all.py::test_a_loader_is_built_anew_from_what_it_has",
    ),
]
