"""Lazy values: rows of tensors that are computed when somebody reads them."""
