"""Programs that measure pyg_direct against PyG's own loader; their results are the report."""
