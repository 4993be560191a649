"""Programs that measure pyg_direct against PyG's own loader; their results are the report."""

import os

# What means a GPU names it; all else compares on the CPU, also on a machine that has a GPU.
os.environ.setdefault("PYG_DIRECT_DEVICE", "cpu")
