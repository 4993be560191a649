"""Graphs in files: the saved format, its writers and its readers."""
