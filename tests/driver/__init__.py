"""A GPU without a GPU; see README.md."""
