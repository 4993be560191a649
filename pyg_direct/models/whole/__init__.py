"""Models over all nodes of a graph, layer by layer (`inference`)."""
