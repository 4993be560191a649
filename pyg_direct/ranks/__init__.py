"""Processes that work on one epoch: who they are, and what they exchange."""
