"""What ranks send each other to make batches: rows, hops and lists of neighbors."""
