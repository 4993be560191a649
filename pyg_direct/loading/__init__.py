"""Epochs: producer threads, order of batches, resuming."""
