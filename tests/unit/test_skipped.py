"""A run of the tests says at its end how to run what it skipped."""

import conftest


def test_tests_are_counted_by_what_they_lack() -> None:
    reasons = [
        "('a.py', 1, 'Skipped: needs torch_sparse')",
        "('a.py', 2, \"Skipped: PyG's own sampler needs pyg-lib for this\")",
        "('b.py', 3, 'Skipped: needs a CUDA device')",
        "('c.py', 4, 'Skipped: needs fork')",
    ]
    own, gpu = conftest.skipped_lines(reasons)
    assert own.startswith("2 skipped tests compare with PyG's own samplers: install torch_sparse")
    assert gpu.startswith("1 skipped tests need a GPU: PYG_DIRECT_REQUIRE_GPU=1 python -m pytest")
    assert conftest.skipped_lines([]) == []
