"""Faults in what is drawn, and in how it is handed out as PyG's samplers do."""

from __future__ import annotations

from ..fault import Fault

EXCLUSION = "pyg_direct/sampling/exclusion.py"
FANOUTS = "pyg_direct/sampling/fanouts.py"
HOPS = "pyg_direct/sampling/hops.py"
KEYED = "pyg_direct/sampling/keyed.py"
NEGATIVES = "pyg_direct/sampling/negatives.py"
OUTPUTS = "pyg_direct/sampling/outputs.py"
SAMPLER = "pyg_direct/sampling/sampler.py"
POOL = "pyg_direct/sampling/workspaces.py"
BOUNDS = "pyg_direct/sampling/time_bounds.py"
SETTINGS = "pyg_direct/sampling/settings.py"
EXCLUDING = "tests/loader/test_exclude_seed_edges.py"
TEMPORAL = "tests/loader/test_temporal.py tests/loader/test_time_window.py"
OBJECT = "tests/loader/test_loader_object.py tests/unit/loading/test_producers.py"
LINK = "tests/loader/test_link.py"
WINDOWS = "tests/loader/test_windows_of_seeds.py"
STRICT = "tests/loader/test_strict_negatives.py"
ARGUMENTS = "tests/loader/test_bad_arguments.py tests/loader/test_extreme_arguments.py"

FAULTS = [
    Fault(
        "in PyG's loader all workers and epochs draw the same",
        KEYED,
        "if self.seed is not None and torch.utils.data.get_worker_info() is None:",
        "if self.seed is not None:",
        "tests/loader/test_random_state.py tests/loader/test_small_print.py",
    ),
    Fault(
        "without a seed all batches asked for alone draw the same",
        KEYED,
        "return rng.derive(rng.draw_seed(None), 0, self.seed or 0, rng.CALL_DOMAIN)",
        "return rng.derive(0, 0, self.seed or 0, rng.CALL_DOMAIN)",
        "tests/loader/test_random_state.py::test_calls_draw_anew",
    ),
    Fault(
        "samplers over one graph use the law of the first one",
        KEYED,
        "fanouts, given.replace, disjoint, given.temporal_strategy, given.sampling,",
        "fanouts, given.replace, disjoint, given.temporal_strategy,",
        OBJECT,
        equivalent="only copies of a sampler share plans, and their law cannot be set",
    ),
    Fault(
        "samplers over one graph use the strategy of the first one",
        KEYED,
        "fanouts, given.replace, disjoint, given.temporal_strategy, given.sampling,",
        "fanouts, given.replace, disjoint, given.sampling,",
        TEMPORAL + " " + OBJECT,
    ),
    Fault(
        "a sampler whose `replace` is set later goes on without",
        KEYED,
        "fanouts, given.replace, disjoint, given.temporal_strategy, given.sampling,",
        "fanouts, disjoint, given.temporal_strategy, given.sampling,",
        "tests/unit/loading/test_producers.py::test_replacement_and_subgraphs_that_change_are_those_of_a_new_loader",
    ),
    Fault(
        "a sampler whose `disjoint` is set later goes on without",
        KEYED,
        "fanouts, given.replace, disjoint, given.temporal_strategy, given.sampling,",
        "fanouts, given.replace, given.temporal_strategy, given.sampling,",
        OBJECT + " tests/loader/test_one_body.py",
    ),
    Fault(
        "a workspace of another stream is used",
        KEYED,
        "kind, pool = (number, self.backend.streams.stream_id()), self.shared.workspaces",
        "kind, pool = (number, 0), self.shared.workspaces",
        "tests/unit/ops/cuda/test_streams.py",
    ),
    Fault(
        "a workspace that an exception left in any state is used again",
        KEYED,
        """        (sampled,) = sample_window([work], [batch], len(plan.fanouts), induced, source)
        # Not after an exception: the workspace may be in any state then.
        pool.give_back(kind, work)
""",
        """        try:
            (sampled,) = sample_window([work], [batch], len(plan.fanouts), induced, source)
        finally:
            pool.give_back(kind, work)
""",
        "tests/unit/sampling/test_workspaces.py",
    ),
    Fault(
        "times of seeds are those of other nodes",
        KEYED,
        "return torch.from_numpy(own)[seed]",
        "return torch.from_numpy(own)[seed.sort().values]",
        "tests/reference/test_matrix.py::test_every_typed_batch_keeps_what_is_promised",
    ),
    Fault(
        "a graph's fingerprint leaves out its times and weights",
        KEYED,
        "return arguments, [array for _, array in self.graph.csc.arrays()]",
        "return arguments, [self.graph.csc.indptr, self.graph.csc.indices]",
        "tests/unit/loading/test_states.py",
    ),
    Fault(
        "a state does not know the number of nodes",
        KEYED,
        '            "num_nodes": str(self.num_nodes),\n',
        "",
        "tests/unit/loading/test_states.py",
    ),
    Fault(
        "a reverse type of the same name is not looked for",
        EXCLUSION,
        'names = [f"rev_{name}", name.removeprefix("rev_")]',
        'names = [f"rev_{name}"]',
        "tests/loader/test_exclude_seed_edges.py::test_edge_types",
    ),
    Fault(
        "backward sampling leaves out edges of the other direction",
        EXCLUSION,
        "near, far = (row, col) if is_reverse != self._backward else (col, row)",
        "near, far = (row, col) if is_reverse else (col, row)",
        EXCLUDING,
    ),
    Fault(
        "an edge that two links name is left out twice",
        EXCLUSION,
        "distinct = np.unique(position)",
        "distinct = np.sort(position)",
        "tests/loader/test_exclude_seed_edges.py::test_the_batch_is_that_of_the_graph_without_them",
    ),
    Fault(
        "a disjoint subgraph leaves out an edge twice",
        EXCLUSION,
        "distinct[1:] = (link[1:] != link[:-1]) | (position[1:] != position[:-1])",
        "distinct[1:] = True",
        EXCLUDING,
    ),
    Fault(
        "fan-outs of types are confused",
        FANOUTS,
        "by_relation = [values[key] for key in edge_types]",
        "by_relation = list(values.values())",
        "tests/unit/sampling/test_fanouts.py",
    ),
    Fault(
        "a huge fan-out overflows",
        FANOUTS,
        "return table if replace else np.minimum(table, num_edges)",
        "return table",
        "tests/loader/test_extreme_arguments.py::test_a_huge_fanout_without_replacement_takes_all",
    ),
    Fault(
        "fan-outs below -1 are taken as they are",
        FANOUTS,
        "whole = [[max(-1, int(value)) for value in hop] for hop in fanouts]",
        "whole = [[int(value) for value in hop] for hop in fanouts]",
        ARGUMENTS,
    ),
    Fault(
        "too many hops share random numbers",
        FANOUTS,
        "if len(fanouts) > MAX_HOPS:",
        "if len(fanouts) > MAX_HOPS + 1:",
        ARGUMENTS,
    ),
    Fault(
        "a batch with a bad seed is drawn in a window of batches",
        HOPS,
        "        if is_good\n    ]",
        "    ]",
        "tests/unit/sampling/test_hops.py::test_a_seed_that_is_not_a_node",
    ),
    Fault(
        "a source of hops misses the last one",
        HOPS,
        "for hop in range(hops):",
        "for hop in range(max(0, hops - 1)):",
        "tests/unit/sampling/test_hops.py",
    ),
    Fault(
        "sources and destinations of negatives are the same draws",
        NEGATIVES,
        "        draw = next(self._draws)\n",
        "        draw = 0\n",
        LINK,
    ),
    Fault(
        "negatives go by the weights of the other end",
        NEGATIVES,
        'weight = self.src_weight if endpoint == "src" else self.dst_weight',
        'weight = self.dst_weight if endpoint == "src" else self.src_weight',
        "tests/loader/test_link.py::test_the_law_of_negatives",
    ),
    Fault(
        "negatives without weight come up by rounding",
        NEGATIVES,
        "return picks.clamp_(max=last)",
        "return picks.clamp_(max=len(running) - 1)",
        "tests/unit/sampling/test_negatives.py",
    ),
    Fault(
        "negatives of weight 0 are drawn for a draw of 0",
        NEGATIVES,
        "picks = torch.searchsorted(running, target, right=True)",
        "picks = torch.searchsorted(running, target)",
        "tests/unit/sampling/test_negatives.py",
    ),
    Fault(
        "the ends of a fractional link are in two subgraphs",
        NEGATIVES,
        "out.batch = out.batch % (len(seed) // 2)",
        "pass",
        "tests/loader/test_link.py::test_ends_of_a_link_share_a_subgraph_with_fractional_negatives",
    ),
    Fault(
        "the ends of a typed link are in two subgraphs",
        NEGATIVES,
        "out.batch = {kind: number % num_links for kind, number in out.batch.items()}",
        "pass",
        LINK,
    ),
    Fault(
        "backward outputs are turned around",
        OUTPUTS,
        "near = 1 if backward else 0",
        "near = 0",
        "tests/loader/test_backward.py",
    ),
    Fault(
        "int32 ids overflow where opposites are added",
        OUTPUTS,
        "place = every[1].to(torch.int64) * num_nodes + every[0]",
        "place = every[1] * num_nodes + every[0]",
        "tests/unit/sampling/test_both_directions.py",
    ),
    Fault(
        "an opposite takes the id of the edge that was sampled",
        OUTPUTS,
        "place, order = place.sort(stable=True)",
        "place, order = place.flip(0).sort(stable=True)\n    order = len(order) - 1 - order",
        "tests/unit/sampling/test_both_directions.py",
    ),
    Fault(
        "a bidirectional subgraph keeps counts that do not hold",
        OUTPUTS,
        "        both.num_sampled_nodes = both.num_sampled_edges = None\n",
        "        pass\n",
        "tests/unit/sampling/test_both_directions.py tests/loader/test_drop_in.py "
        "tests/loader/test_combinations.py",
    ),
    Fault(
        "fan-outs that are set later are not checked",
        SAMPLER,
        "        check_fanouts(fanouts, fanouts_of(fanouts, self.edge_types, self.is_hetero), replace)\n",
        "",
        "tests/loader/test_bad_arguments.py::test_the_sampler_refuses",
    ),
    Fault(
        "a moved sampler changes the one that it was copied from",
        SAMPLER,
        "twin = copy.copy(sampler)",
        "twin = sampler",
        "tests/loader/test_places.py",
    ),
    Fault(
        "idle workspaces of old fan-outs are kept",
        POOL,
        "while len(self._idle) > MAX_IDLE_KINDS:",
        "while len(self._idle) > 1000:",
        "tests/unit/loading/test_producers.py",
    ),
    Fault(
        "workspaces in use are freed in place of idle ones",
        POOL,
        "oldest = min(self._idle, key=lambda other: self._used.get(other, 0))",
        "oldest = max(self._idle, key=lambda other: self._used.get(other, 0))",
        "tests/unit/sampling/test_workspaces.py",
    ),
    Fault(
        "a pickled sampler takes its workspaces along",
        POOL,
        '        """Workspaces stay in their process."""\n        return WorkspacePool, ()\n',
        '        """Workspaces stay in their process."""\n        return super().__reduce__()\n',
        "tests/unit/sampling/test_workspaces.py",
    ),
    Fault(
        "a type is taken for its own reverse between other types",
        EXCLUSION,
        "candidates += [link_type] if source == destination else []",
        "candidates += [link_type]",
        EXCLUDING,
    ),
    Fault(
        "subgraphs of triplets leave out the links of others",
        EXCLUSION,
        "link_of = links_of_seeds(num_seeds, len(links.row), paired)",
        "link_of = links_of_seeds(num_seeds, len(links.row), True)",
        EXCLUDING,
    ),
    Fault(
        "with a window, an earlier end of a seed makes it see farther back",
        BOUNDS,
        "torch.where(seed_time < LEAST_TIME + window, LEAST_TIME, seed_time - window)",
        "torch.where(end < LEAST_TIME + window, LEAST_TIME, end - window)",
        WINDOWS,
    ),
    Fault(
        "no seeds with a start are refused",
        BOUNDS,
        "if start is not None and len(start) > 0 and bool((start > last).all()):",
        "if start is not None and bool((start > last).all()):",
        WINDOWS,
    ),
    Fault(
        "a start later than an earlier end is taken",
        BOUNDS,
        "last = seed_time if end is None else end",
        "last = seed_time",
        WINDOWS,
    ),
    Fault(
        "draws that were made again are those of the last round",
        NEGATIVES,
        "            redrawn += len(wrong)\n",
        "            redrawn = len(wrong)\n",
        STRICT,
    ),
    Fault(
        "strict negatives of destinations with times are drawn",
        NEGATIVES,
        "if node_times and any(kind in node_times for kind in ends):",
        "if node_times and ends[0] in node_times:",
        STRICT,
    ),
    Fault(
        "strict negatives of disjoint triplets avoid the edges of other sources",
        NEGATIVES,
        "return row.repeat(amount) if disjoint else row.repeat_interleave(amount)",
        "return row.repeat_interleave(amount)",
        STRICT,
    ),
    Fault(
        "a law that was set beside what it cannot honour is drawn",
        KEYED,
        "            self.check_law()\n            check_fanouts(",
        "            check_fanouts(",
        "tests/loader/test_labor.py tests/loader/test_adaptive.py",
    ),
    Fault(
        "fan-outs with replacement that was set later are not checked",
        KEYED,
        "            check_fanouts(given.num_neighbors, fanouts, given.replace)  # both can be set\n",
        "",
        ARGUMENTS,
    ),
    Fault(
        "a seed that is not a node has the time of another",
        KEYED,
        '            check_ids(seed, len(own), "seeds")\n            return torch',
        "            return torch",
        "tests/unit/sampling/test_seed_times.py",
    ),
    Fault(
        "seeds with times of 32 bits cannot be sampled",
        KEYED,
        "        return time.to(torch.int64).contiguous()\n",
        "        return time.contiguous()\n",
        "tests/unit/sampling/test_seed_times.py",
    ),
    Fault(
        "edge types that there are not are ignored where fan-outs name them",
        FANOUTS,
        "        if unknown:\n",
        "        if len(unknown) == len(num_neighbors.values):\n",
        "tests/loader/test_num_neighbors.py tests/loader/test_hetero.py",
    ),
    Fault(
        "a bidirectional subgraph of a foreign sampler without edge ids fails",
        OUTPUTS,
        "both.edge = None if out.edge is None else torch.cat([out.edge, out.edge])[order]",
        "both.edge = torch.cat([out.edge, out.edge])[order]",
        "tests/unit/sampling/test_both_directions.py",
    ),
    Fault(
        "weights of negatives are checked by their ratios alone",
        NEGATIVES,
        "    if num_nodes is not None and weight.numel() != num_nodes:\n",
        "    if num_nodes is not None and weight.numel() < num_nodes:\n",
        LINK,
    ),
    Fault(
        "a subgraph_type that is set by its name is none of them",
        SETTINGS,
        "    return kind\n",
        "    return value\n",
        "tests/loader/test_loader_object.py",
    ),
    Fault(
        "edges are turned around where sample_direction is set",
        SETTINGS,
        "    if value != sampler.sample_direction:\n",
        '    if value not in ("forward", "backward"):\n',
        "tests/loader/test_loader_object.py",
    ),
    Fault(
        "a bidirectional subgraph_type that is set brings seed edges back",
        SETTINGS,
        "kind == SubgraphType.bidirectional)",
        "False)",
        "tests/loader/test_loader_object.py",
    ),
    Fault(
        "strict negatives of a backward sampler avoid the edges of the other direction",
        EXCLUSION,
        "            if self._backward:\n                near, far = far, near\n",
        "",
        STRICT,
    ),
    Fault(
        "seeds in proximity are ranked by nodes of the first type",
        KEYED,
        "return breadth_first_ranks(csc)[self.graph.node_types.index(node_type)]",
        "return breadth_first_ranks(csc)[0]",
        "tests/loader/test_order.py",
    ),
    Fault(
        "a law that cannot be honoured is refused by the first batch only",
        SAMPLER,
        "        KeyedSampler(graph, backend, where, None, settings).check_law()\n",
        "",
        "tests/loader/test_adaptive.py::test_what_is_refused",
    ),
    Fault(
        "a fan-out of True is 1",
        FANOUTS,
        "if isinstance(value, bool) or not isinstance(value, (int, np.integer)):",
        "if not isinstance(value, (int, np.integer)):",
        ARGUMENTS,
    ),
    Fault(
        "a sampler that began in inference mode fails outside of it",
        KEYED,
        "        if torch.is_inference_mode_enabled():  # which a workspace",
        "        if False:  # which a workspace",
        "tests/unit/sampling/test_workspaces.py",
    ),
    Fault(
        "a state of windows with a start is taken for one with an end",
        BOUNDS,
        '({"windows": " ".join(given)} if given else {})',
        '({"windows": "given"} if given else {})',
        "tests/unit/loading/test_states.py " + WINDOWS,
    ),
]
