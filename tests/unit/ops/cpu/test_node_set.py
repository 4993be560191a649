"""A set of the nodes of one batch."""

import numpy as np

from pyg_direct.ops.cpu.scratch import NodeSet


def test_bits_of_two_types() -> None:
    """Nodes 3 and 63 of the first type, whose bits begin at 0, and node 1 of the one from 70 on."""
    lists = np.array([3, 63, 9, 9, 1]), np.array([0, 4]), np.array([2, 1])
    nodes = NodeSet(np.array([0, 70, 129]))
    nodes.remove(*lists)
    assert len(nodes.words) == 0, "nothing is taken before it is used"
    nodes.add(*lists)
    assert nodes.words.tolist() == [1 << 3 | 1 << 63, 1 << (71 - 64), 0]
    nodes.remove(*lists)
    assert not nodes.words.any()
