"""Lazy tensors, whose rows are computed when they are read."""
