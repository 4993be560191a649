"""The commands: what a machine has, what fits on it, and files of graphs."""
