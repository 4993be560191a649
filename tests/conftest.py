"""Skips what needs a GPU where there is none, unless a GPU was promised."""

from __future__ import annotations

import os

import pytest
import torch

REQUIRE_VARIABLE = "PYG_DIRECT_REQUIRE_GPU"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is None or torch.cuda.is_available():
        return
    if os.environ.get(REQUIRE_VARIABLE) == "1":
        pytest.fail(f"{REQUIRE_VARIABLE}=1, but torch finds no CUDA device.", pytrace=False)
    pytest.skip("needs a CUDA device")
