"""What PyG's loaders promise that no signature states; tests carry `@pytest.mark.pyg(name, ...)`.

Arguments of the constructors are names, too: `test_surface.py` takes those from PyG's signatures.
"""

SIGNATURES = (
    ("torch_geometric.loader", "NeighborLoader"),
    ("torch_geometric.loader", "LinkNeighborLoader"),
    ("torch_geometric.sampler", "NeighborSampler"),
    ("torch.utils.data", "DataLoader"),
)

BEHAVIOURS = {
    # Fields of a batch
    "batch.n_id": "global ids, seeds first; a user's own attribute of that name is kept",
    "batch.e_id": "columns of the user's edge_index",
    "batch.edge_index": "a plain tensor of the input's dtype",
    "batch.adj_t": "a SparseTensor",
    "batch.batch_size": "the number of seeds, of node loaders",
    "batch.input_id": "positions in input_nodes, or nodes of a mask",
    "batch.input_type": "the node or edge type of the seeds",
    "batch.batch": "the seed of each node, if disjoint",
    "batch.seed_time": "the time of each seed",
    "batch.num_sampled": "num_sampled_nodes and num_sampled_edges",
    "batch.orig_edge_index": "_orig_edge_index, on request",
    "batch.edge_label": "edge_label_index, edge_label, edge_label_time",
    "batch.triplets": "src_index, dst_pos_index, dst_neg_index",
    "batch.node_attributes": "rows of attributes of nodes, of any dtype and shape",
    "batch.edge_attributes": "rows of attributes of edges",
    "batch.num_nodes": "where the data stores it",
    "batch.by_reference": "everything else, by reference",
    "batch.numpy": "NumPy arrays and memory maps become tensors",
    "batch.lists_refused": "lists as long as the nodes are refused",
    "batch.tensor_frame": "TensorFrame attributes",
    "batch.remote_stores": "FeatureStore and GraphStore",
    "batch.order": "order of nodes and edges; isolated seeds",
    "batch.duplicated_seeds": "each expands on its own",
    "batch.link_seeds": "seed nodes of links: sorted, each once",
    "batch.manual_seed": "torch.manual_seed governs",
    # The loader as an object
    "loader.len": "len and dataset",
    "loader.call": "a call with positions",
    "loader.collate_fn": "collate_fn and filter_fn",
    "loader.get_iterator": "_get_iterator",
    "loader.attributes": "its attributes, class and repr",
    "loader.pickle": "pickle, epochs, two iterators",
    "loader.enable_cpu_affinity": "pins the producers",
    "loader.enable_multithreading": "threads of each producer",
    "loader.enable_memory_log": "PyG's hook",
    # Samplers and their inputs
    "sampler.in_node_loader": "NodeLoader with our sampler",
    "sampler.in_link_loader": "LinkLoader with our sampler",
    "sampler.foreign": "any BaseSampler in our loader",
    "sampler.node_input": "NodeSamplerInput",
    "sampler.edge_input": "EdgeSamplerInput",
    "sampler.output": "SamplerOutput",
    "sampler.hetero_output": "HeteroSamplerOutput",
    "sampler.metadata": "metadata by position",
    "sampler.negative_sampling": "NegativeSampling",
    "sampler.num_neighbors": "NumNeighbors",
    "sampler.odd_graphs": "duplicated edges, loops, hubs, no edges",
    # Together with other parts of PyG and of Lightning
    "with.prefetch_loader": "PrefetchLoader and CachedLoader",
    "with.zip_loader": "ZipLoader",
    "with.imbalanced_sampler": "ImbalancedSampler",
    "with.trim_to_layer": "trim_to_layer",
    "with.to_hetero": "to_hetero and HeteroConv",
    "with.basic_gnn_inference": "BasicGNN.inference",
    "with.training": "training on batches",
    "with.pna_degrees": "PNAConv.get_degree_histogram",
    "with.lightning_node_data": "LightningNodeData",
    "with.lightning_link_data": "LightningLinkData",
}

NOT_OFFERED = {
    "HGTLoader": "another algorithm, a fixed number of nodes for each type; PyG's own needs no us",
    "BidirectionalNeighborSampler": "for homogeneous graphs, node by node in Python",
    "ShaDowKHopSampler": "another algorithm",
    "DistNeighborLoader": "part of torch_geometric.distributed, which is deprecated",
    "DistLinkNeighborLoader": "part of torch_geometric.distributed, which is deprecated",
}
