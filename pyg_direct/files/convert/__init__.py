"""Files of edges and features to a saved graph, in bounded memory."""
