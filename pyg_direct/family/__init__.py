"""PyG's other mini-batch methods: one module a method, on the parts that all loaders share."""
