"""Two GPUs in one process: which of them is used."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch

import pyg_direct

from .. import loaders, standin
from ..batches import devices_of, difference, epoch, take

Outcomes = Iterator[tuple[str, str]]
GATHERED_BY_THE_CONSUMER = "features on the GPU"  # in a thread that never chose a device


def only_the_second_device(schedule: str) -> Outcomes:
    """Batches on cuda:1 open no context on cuda:0, whatever thread makes them."""
    standin.set_schedule("eager")
    expected = epoch(loaders.on_cpu("node"))
    standin.set_schedule(schedule)
    for place in (GATHERED_BY_THE_CONSUMER, *loaders.PLACES):
        found = epoch(_on_the_second(place))
        yield place, difference(found, expected)
        opened = standin.contexts()
        yield f"{place}: contexts", "" if opened == [1] else f"on devices {opened}"


def _on_the_second(place: str) -> Any:
    if place != GATHERED_BY_THE_CONSUMER:
        return loaders.loader("node", place, device="cuda:1")
    data = loaders.graph()
    data.x = data.x.to("cuda:1")
    return loaders.node(lambda: data)(device="cuda:1")


def two_devices(schedule: str) -> Outcomes:
    """Two loaders over one graph on two devices, batch by batch in turn."""
    given = {"num_neighbors": [5, 3], "input_nodes": torch.arange(loaders.SEEDS), **loaders.COMMON}
    data = loaders.graph()
    expected = epoch(pyg_direct.NeighborLoader(data, device="cpu", **given))
    for name in ("default", "host", "no prefetch"):
        both = [
            pyg_direct.NeighborLoader(data, device=f"cuda:{d}", **given, **loaders.PLACES[name])
            for d in (0, 1)
        ]
        found = [[take(batch) for batch in pair] for pair in zip(*both, strict=True)]
        for device in (0, 1):
            torch.cuda.synchronize(device)
            ours = [pair[device] for pair in found]
            lies = devices_of(ours) == {torch.device("cuda", device)}
            problem = difference(ours, expected) or ("" if lies else "on another device")
            yield f"{name}, cuda:{device}", problem


def decided_by_the_model(schedule: str) -> Outcomes:
    """With device=None batches follow the model, to the second device as well."""
    expected = epoch(loaders.on_cpu("node"))
    yield "no model", "" if not devices_of(epoch(loaders.loader("node", "default"))) else "on a GPU"
    model = torch.nn.Linear(8, 8).to("cuda:1")
    loader = loaders.loader("node", "default")
    found = epoch(loader)
    follows = devices_of(found) == {model.weight.device}
    yield "model", difference(found, expected) or ("" if follows else "on another device")
    del model, loader, found
    gc.collect()


CHECKS = (only_the_second_device, two_devices, decided_by_the_model)
