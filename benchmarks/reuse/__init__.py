"""Reuse of first-layer rows."""
