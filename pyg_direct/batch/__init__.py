"""From sampled ids to PyG's `Data` and `HeteroData`."""
