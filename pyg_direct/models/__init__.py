"""Users' models: cut into one-hop parts (`cutter`), run over all nodes (`inference`)."""
