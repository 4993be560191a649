"""Ids in host memory are copies of the tensor that they are asked for."""

import torch

from pyg_direct.ops.ids import HostIds
from pyg_direct.ops.streams import Streams


class FakeStreams(Streams):
    def record_stream(self, tensors):
        pass

    def record_event(self):
        return None


def test_a_tensor_with_the_number_of_a_freed_one() -> None:
    """`id` gives the numbers of freed objects again, so those with copies are kept."""
    ids = HostIds(lambda tensor: tensor.clone().to("cpu"), FakeStreams())
    for value in range(200):
        tensor = torch.full((2,), value)
        got = ids.of(tensor.as_subclass(OnDevice))
        assert got.tolist() == [value] * 2
        del tensor, got


class OnDevice(torch.Tensor):
    """A tensor that says that it is not on the host."""

    @property
    def device(self):
        return torch.device("meta")

    def clone(self):
        return self.as_subclass(torch.Tensor).clone()
