"""What every room may use: types, arguments, settings, units and threads."""
