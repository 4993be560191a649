"""Programs that show pyg_direct at work, and the graphs and models that they share."""
