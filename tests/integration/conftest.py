"""What programs that run as a whole need."""

import pytest
import torch


@pytest.fixture(scope="module")
def one_thread():
    """Toys gain nothing from threads, which on a busy machine wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # of the child processes
        yield
    torch.set_num_threads(before)
