"""Users' models: in training steps (`step`), over all nodes (`whole`), with rows from elsewhere."""
