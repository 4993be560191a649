"""Everything that has to be measured and checked on a GPU."""
