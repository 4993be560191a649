"""Layer-wise inference on all nodes of a graph (`inference`)."""
