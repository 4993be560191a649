"""What PyG's loaders promise, each behaviour with the tests that hold it; read by test_surface.py.

A test is named "module::function", without the "test_" of either.
"""

Table = dict[str, tuple[str, ...]]

# Arguments of the constructors: test_surface.py compares them with PyG's own signatures. ##########

SAMPLING: Table = {
    "data": (
        "assemble::attributes_along_another_dimension", "one_body::fields_of_every_type",
        "from_stores::full_neighbourhoods_are_those_of_the_data", "from_stores::homogeneous_stores",
        "bad_input::refused_by_the_loader", "bad_input::refused_by_the_sampler",
    ),
    "num_neighbors": (
        "arguments::counts_of_edges", "arguments::num_neighbors_zero_and_negative_any",
        "one_body::fan_outs", "one_body::bad_fan_outs",
        "arguments::num_neighbors_can_be_set_on_a_shallow_copy",
    ),
    "replace": (
        "arguments::replacement_repeats_edges", "arguments::counts_of_edges", "one_body::fan_outs",
        "statistics::with_replacement", "statistics::slots_with_replacement_are_independent",
    ),
    "subgraph_type": (
        "drop_in::any_graph_equals_pyg", "drop_in::induced", "drop_in::bidirectional",
        "hetero_full::any_graph_equals_pyg",
        "one_body::subgraphs", "combinations::every_combination",
    ),
    "disjoint": (
        "drop_in::disjoint", "drop_in::disjoint_is_one_batch_for_each_seed", "one_body::subgraphs",
        "hetero::every_batch_is_a_part_of_the_graph", "combinations::every_combination",
    ),
    "temporal_strategy": (
        "one_body::times", "temporal::uniform_is_uniform_over_the_past", "temporal::bad_times",
        "temporal::no_neighbour_is_later_than_its_seed",
    ),
    "time_attr": (
        "one_body::times", "temporal::no_neighbour_is_later_than_its_seed",
        "temporal::real_graphs", "temporal::heterogeneous_times", "temporal::bad_times",
        "combinations::every_combination", "combinations::no_meaning_is_refused",
    ),
    "weight_attr": (
        "one_body::weights", "weighted::with_replacement_the_frequencies_are_the_weights",
        "weighted::without_replacement_every_set_has_its_probability",
        "weighted::zero_and_huge_weights", "weighted::weights_follow_the_edges",
        "weighted::edge_types_without_weights_are_uniform", "weighted::bad_weights",
        "from_stores::times_and_weights_in_stores", "combinations::every_combination",
    ),
    "is_sorted": (
        "drop_in::sorted_graph_equals_pyg", "coo_to_csc::sorted_edges_are_not_copied",
        "temporal::is_sorted", "bad_input::refused_by_the_loader",
    ),
    "directed": ("arguments::directed_false_is_induced_and_deprecated",),
}  # fmt: skip
LOADING: Table = {
    "transform": (
        "arguments::transform_sees_the_finished_batch", "arguments::where_the_transform_runs",
    ),
    "transform_sampler_output": (
        "arguments::transform_sampler_output_comes_before_the_features",
        "arguments::transform_sampler_output_may_drop_the_edge_ids",
    ),
    "filter_per_worker": (
        "arguments::where_the_transform_runs", "arguments::the_loader_as_an_object",
        "arguments::collate_fn_and_filter_fn_are_halves_of_a_call",
    ),
    "neighbor_sampler": (
        "arguments::a_ready_sampler", "companions::pygs_sampler_in_our_loader",
        "companions::another_sampler_in_our_loader",
        "bad_input::sampling_arguments_beside_a_sampler",
    ),
    "kwargs": (
        "arguments::input_id_overrides_the_positions", "from_stores::links_and_custom_class",
        "small_print::dataset_and_collate_fn_are_dropped", "bad_input::refused_by_the_loader",
    ),
}  # fmt: skip
NEIGHBOR_LOADER: Table = {
    **SAMPLING,
    **LOADING,
    "input_nodes": (
        "arguments::input_nodes", "one_body::seeds", "hetero::bad_seeds",
        "bad_input::refused_by_the_loader",
    ),
    "input_time": (
        "one_body::times", "temporal::no_neighbour_is_later_than_its_seed",
        "combinations::no_meaning_is_refused",
    ),
}  # fmt: skip
LINK_NEIGHBOR_LOADER: Table = {
    **SAMPLING,
    **LOADING,
    "edge_label_index": (
        "link::homogeneous_equals_pyg", "link::heterogeneous_equals_pyg",
        "link::a_link_type_that_the_graph_does_not_have", "from_stores::links_and_custom_class",
        "link::bad_input",
    ),
    "edge_label": ("link::homogeneous_equals_pyg", "link::labels_make_room_for_zero"),
    "edge_label_time": ("link::temporal", "combinations::links", "link::bad_input"),
    "neg_sampling": (
        "link::binary_negatives", "link::triplets", "link::the_law_of_negatives",
        "link::negatives_follow_the_key", "combinations::links",
    ),
    "neg_sampling_ratio": ("link::labels_make_room_for_zero",),
}  # fmt: skip
NEIGHBOR_SAMPLER: Table = {
    **SAMPLING,
    "share_memory": ("small_print::share_memory_is_taken",),
    "sample_direction": (
        "backward::it_is_forward_sampling_of_the_reversed_graph",
        "backward::every_edge_out_of_the_seeds", "backward::heterogeneous",
        "backward::a_wrong_direction", "combinations::every_combination",
    ),
}  # fmt: skip
DATA_LOADER: Table = {
    "batch_size": (
        "arguments::default_batch_size_is_one", "bad_input::a_batch_larger_than_the_seeds",
        "bad_input::refused_by_the_loader",
    ),
    "dataset": ("small_print::dataset_and_collate_fn_are_dropped",),
    "collate_fn": ("small_print::dataset_and_collate_fn_are_dropped",),
    "shuffle": (
        "arguments::shuffle_is_a_permutation_of_its_own_each_epoch",
        "arguments::shuffle_follows_pyg_under_the_same_seed",
        "arguments::input_id_follows_the_shuffle",
    ),
    "sampler": (
        "arguments::sampler_and_batch_sampler", "companions::imbalanced_sampler",
        "progress::samplers_that_draw_are_replayed",
    ),
    "batch_sampler": ("arguments::sampler_and_batch_sampler",),
    "num_workers": (
        "arguments::workers_and_prefetch_do_not_matter",
        "epoch::no_thread_is_left_after_an_epoch",
        "hetero::threads_prefetching_and_seeds_of_many_types",
    ),
    "drop_last": ("arguments::drop_last",),
    "pin_memory": ("small_print::keywords_of_dataloader",),
    "timeout": ("epoch::timeout", "small_print::keywords_of_dataloader"),
    "worker_init_fn": ("epoch::worker_init_fn_runs_once_in_each_producer",),
    "multiprocessing_context": ("small_print::keywords_of_dataloader",),
    "generator": ("arguments::generator_decides_the_order",),
    "prefetch_factor": ("arguments::prefetch_factor_is_prefetch",),
    "persistent_workers": (
        "epoch::persistent_workers_keep_their_threads", "small_print::keywords_of_dataloader",
    ),
    "in_order": ("small_print::keywords_of_dataloader",),
}  # fmt: skip

# What has no signature to compare with. ###########################################################

BATCH: Table = {
    "n_id: global ids, seeds first; a user's own is kept": (
        "drop_in::order_of_discovery", "assemble::a_users_own_n_id_and_e_id_are_kept_and_filtered",
        "hetero_full::any_graph_equals_the_reference",
    ),
    "e_id: columns of the user's edge_index": (
        "drop_in::order_of_discovery", "hetero_full::any_graph_equals_the_reference",
        "assemble::int32_graph", "arguments::transform_sampler_output_may_drop_the_edge_ids",
    ),
    "edge_index: a plain tensor of the input's dtype": (
        "assemble::types_and_places", "assemble::int32_graph", "assemble::edge_index_class",
        "assemble::a_graph_without_edges_or_without_edge_index",
    ),
    "adj_t: a SparseTensor": ("assemble::adj_t", "assemble::adj_t_equals_pyg"),
    "batch_size: number of seeds, of node loaders": (
        "arguments::input_nodes", "one_body::fields_of_every_type",
        "small_print::seeds_of_links_are_sorted_and_single",
    ),
    "input_id: positions, or nodes of a mask": ("arguments::input_nodes", "one_body::seeds"),
    "input_type": ("one_body::seeds",),
    "batch: the seed of each node, if disjoint": (
        "drop_in::disjoint", "one_body::subgraphs",
        "assemble::a_users_own_batch_and_seed_time_vanish",
    ),
    "seed_time": ("one_body::times", "link::temporal"),
    "num_sampled_nodes and num_sampled_edges": (
        "drop_in::order_of_discovery", "hetero_full::any_graph_equals_the_reference",
        "companions::edges_and_nodes_are_grouped_by_hop", "drop_in::induced",
        "drop_in::bidirectional",
    ),
    "_orig_edge_index: on request": ("small_print::the_original_edges_are_kept_on_request",),
    "edge_label_index, edge_label, edge_label_time": (
        "link::homogeneous_equals_pyg", "link::binary_negatives", "link::temporal",
    ),
    "src_index, dst_pos_index, dst_neg_index": ("link::triplets",),
    "attributes of nodes": (
        "assemble::attributes_of_any_dtype_and_shape", "assemble::layouts_of_x",
        "assemble::attributes_along_another_dimension",
        "assemble::as_many_edges_as_nodes_goes_by_the_name",
        "one_body::fields_of_every_type",
    ),
    "attributes of edges": (
        "assemble::attributes_of_any_dtype_and_shape", "one_body::fields_of_every_type",
        "drop_in::bidirectional",
    ),
    "num_nodes: where the data stores it": (
        "assemble::num_nodes_only_where_the_data_stores_it", "one_body::fields_of_every_type",
    ),
    "everything else: by reference": (
        "assemble::everything_else_is_passed_on_by_reference", "one_body::fields_of_every_type",
        "assemble::the_users_data_is_not_changed", "assemble::batch_of_graphs_as_the_graph",
    ),
    "NumPy arrays and memory maps": ("assemble::numpy_attributes_become_tensors",),
    "lists as long as the nodes: refused": (
        "assemble::lists_as_long_as_the_nodes_are_refused_as_in_pyg",
    ),
    "TensorFrame": ("small_print::tensor_frames",),
    "remote stores": (
        "from_stores::full_neighbourhoods_are_those_of_the_data", "from_stores::homogeneous_stores",
        "from_stores::links_and_custom_class",
    ),
    "order of nodes and edges, isolated seeds": (
        "drop_in::real_graph_equals_pyg", "drop_in::any_graph_equals_pyg",
        "hetero_full::debian_hetero_equals_pyg", "hetero_full::whole_debian_hetero_equals_pyg",
        "hetero_full::any_graph_equals_pyg", "assemble::isolated_seeds_stay",
    ),
    "duplicated seeds": (
        "arguments::duplicated_seeds_each_expand", "arguments::copies_of_a_seed_draw_on_their_own",
    ),
    "seeds of links: sorted, each once": ("small_print::seeds_of_links_are_sorted_and_single",),
    "torch.manual_seed governs": (
        "arguments::manual_seed_governs", "arguments::a_new_loader_follows_manual_seed",
        "progress::manual_seed_governs_without_a_seed",
    ),
}  # fmt: skip
LOADER_OBJECT: Table = {
    "len and dataset": ("arguments::the_loader_as_an_object", "arguments::in_order_by_default"),
    "a call with positions": ("arguments::call_takes_positions", "arguments::calls_draw_anew"),
    "collate_fn and filter_fn": ("arguments::collate_fn_and_filter_fn_are_halves_of_a_call",),
    "_get_iterator": ("small_print::get_iterator",),
    "its attributes, class and repr": ("arguments::the_loader_as_an_object",),
    "pickle, epochs, two iterators": (
        "epoch::pickle", "arguments::two_iterators_at_a_time", "arguments::manual_seed_governs",
        "epoch::a_loader_works_in_a_child_process",
    ),
    "enable_cpu_affinity": (
        "affinity::cpu_affinity_pins_producers_and_not_the_user",
        "affinity::affinity_errors_are_pygs",
    ),
    "enable_multithreading": ("affinity::multithreading_leaves_torchs_threads_alone",),
    "enable_memory_log": ("small_print::memory_log",),
}  # fmt: skip
CLASSES: Table = {
    "NodeLoader with our sampler": (
        "companions::our_sampler_in_pygs_node_loader",
        "companions::our_sampler_in_pygs_worker_processes",
    ),
    "LinkLoader with our sampler": ("link::the_sampler_works_in_pygs_own_loader",),
    "BaseSampler: anybody's in our loader": (
        "companions::another_sampler_in_our_loader", "companions::pygs_sampler_in_our_loader",
    ),
    "NodeSamplerInput": (
        "small_print::slices_of_the_input", "companions::sampler_output_of_our_sampler",
    ),
    "EdgeSamplerInput": ("small_print::metadata_of_links",),
    "SamplerOutput": (
        "companions::sampler_output_of_our_sampler", "small_print::seed_node",
        "small_print::outputs_are_merged_by_pyg",
        "small_print::the_original_edges_are_kept_on_request",
    ),
    "HeteroSamplerOutput": ("small_print::outputs_are_merged_by_pyg", "one_body::seeds"),
    "metadata by position": ("small_print::metadata_of_links", "small_print::slices_of_the_input"),
    "NegativeSampling": ("link::the_law_of_negatives", "link::bad_input"),
    "NumNeighbors": ("one_body::fan_outs", "one_body::bad_fan_outs"),
    "Duplicated edges, loops, hubs, no edges": (
        "drop_in::any_graph_equals_pyg", "hetero_full::any_graph_equals_pyg",
    ),
}  # fmt: skip
COMPANIONS: Table = {
    "PrefetchLoader and CachedLoader": ("companions::cached_and_prefetch_loader",),
    "ZipLoader": ("companions::zip_loader",),
    "ImbalancedSampler": ("companions::imbalanced_sampler",),
    "trim_to_layer": (
        "companions::trim_to_layer_computes_the_same_for_the_seeds", "one_body::trim_to_layer",
    ),
    "to_hetero and HeteroConv": ("one_body::models_train_unchanged",),
    "BasicGNN.inference": ("companions::basic_gnn_inference",),
    "training": ("companions::training_on_full_neighbourhoods_equals_pyg",),
    "PNAConv.get_degree_histogram": ("companions::pna_degree_histogram",),
    "LightningNodeData": ("lightning::node_data_with_other_fan_outs_for_evaluation",),
    "LightningLinkData": ("lightning::link_data",),
}  # fmt: skip

NOT_OFFERED = {
    "HGTLoader": "another algorithm, a fixed number of nodes for each type; PyG's own needs no us",
    "BidirectionalNeighborSampler": "for homogeneous graphs, node by node in Python",
    "ShaDowKHopSampler": "another algorithm",
    "DistNeighborLoader": "part of torch_geometric.distributed, which is deprecated",
    "DistLinkNeighborLoader": "part of torch_geometric.distributed, which is deprecated",
}

SIGNATURES = {
    ("torch_geometric.loader", "NeighborLoader"): NEIGHBOR_LOADER,
    ("torch_geometric.loader", "LinkNeighborLoader"): LINK_NEIGHBOR_LOADER,
    ("torch_geometric.sampler", "NeighborSampler"): NEIGHBOR_SAMPLER,
    ("torch.utils.data", "DataLoader"): DATA_LOADER,
}
OTHERS = {
    "batch": BATCH,
    "loader object": LOADER_OBJECT,
    "classes": CLASSES,
    "companions": COMPANIONS,
}
