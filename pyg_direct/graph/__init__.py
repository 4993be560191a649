"""PyG data and stores, as a graph in compressed sparse columns (CSC)."""
