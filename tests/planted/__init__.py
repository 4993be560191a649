"""Faults that are planted one at a time in a copy of the tree, to see which tests notice them."""
