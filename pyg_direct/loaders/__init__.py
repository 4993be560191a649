"""PyG's loaders and samplers by name and signature: one module a method."""
