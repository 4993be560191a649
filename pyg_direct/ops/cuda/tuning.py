"""The numbers of the CUDA backend that only a measurement can tell, all in one place.

They are estimates, of which an H100 has measured some. `benchmarks/gpu/constants.py` says which
stage of ``python -m benchmarks gpu`` measures each of them. None of them changes a batch.
"""

from __future__ import annotations

# Rows of a table in host memory that is larger are read by ascending ids. The GPU reaches host
# memory through translations of its pages, of which it has few at hand: in random order nearly
# every row of a large table costs a walk through the page tables.
SORTED_TABLE_BYTES = 4 << 30

# PCIe 5 x16, and the latency of a read of host memory, at the upper end. A slower link is filled by
# fewer. `python -m pyg_direct.info` measures it, and keeps the result for later processes. On an
# H100 1,536 to 2,048 threads, with 98 to 131 KB under way, read 97 % of what more of them read.
LINK_BYTES_UNDER_WAY = int(64e9 * 1.6e-6)

# A thread that gathers has its reads under way for one part in so many of its time, and waits for
# ids or stores in the others.
GATHER_DUTY = 3

# Blocks of a kernel that samples from host memory. With a read of 32 bytes a thread, 32 blocks of
# 256 threads have 2.5 times as much under way as LINK_BYTES_UNDER_WAY, and leave the rest of the
# multiprocessors to training. A link that was measured to need more gets more. On an H100 a hop of
# 2,048 seeds took as long with 8 blocks as with 128.
HOST_BLOCKS = 32

# Blocks of any other kernel of sampling, and of one that computes prefix sums.
MAX_BLOCKS = 1024
MAX_SCAN_BLOCKS = 256

# A hop is done by one block if no step of it takes the block's threads more rounds. A round waits
# for memory, about a microsecond; a launch that is saved is some microseconds of the host. On an
# H100 batches of 8 to 128 seeds took 0.50 to 0.58 ms by one block, 0.68 to 0.71 ms by many.
ONE_BLOCK_ROUNDS = 48


def host_blocks(bytes_under_way: int | None) -> int:
    """Return how many blocks of a kernel may sample from host memory at the same time.

    Args:
        bytes_under_way: that were measured to fill the link; None if they were not measured.

    Example: a link that takes four times as much as PCIe 5 x16 gets 128 blocks.
    """
    wanted = -(-HOST_BLOCKS * (bytes_under_way or 0) // LINK_BYTES_UNDER_WAY)
    return max(HOST_BLOCKS, wanted)
