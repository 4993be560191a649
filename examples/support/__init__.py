"""What the programs in `examples` share."""
