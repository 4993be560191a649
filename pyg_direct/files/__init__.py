"""Graphs in files: the saved format, and what writes and reads it."""
