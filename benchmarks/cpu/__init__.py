"""Loaders on the CPU: speed and memory."""
