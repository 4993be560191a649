"""Graphs that no machine holds: writing them in parts, and sampling from parts on several ranks."""
