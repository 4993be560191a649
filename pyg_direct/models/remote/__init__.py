"""Rows from other ranks (cooperative batches) or from a cache of earlier steps (`reuse`)."""
