"""The CPU kernels: serial, compiled by numba, and free of the GIL while they run."""
