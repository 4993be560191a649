"""Faults between pieces that are right by themselves: files, times and weights, states, models."""

from __future__ import annotations

from ..fault import Fault

CACHE = "pyg_direct/loading/cache.py"
COMPRESSED = "pyg_direct/graph/compressed.py"
GATHER = "pyg_direct/batch/gather.py"
LINKS = "pyg_direct/loaders/link_loader.py"
PROGRESS = "pyg_direct/loading/progress.py"
SAVE = "pyg_direct/files/save.py"

OF_CACHE = "tests/unit/loading/test_cache.py"
OF_COMPRESSED = "tests/unit/graph/test_compressed.py"
OF_GATHER = "tests/unit/batch/test_gather.py"
STATES = "tests/unit/loading/test_states.py"
MATRIX = "tests/reference/test_matrix.py"

FAULTS = [
    Fault(
        "times of edges of which the first type has none are opened as times of nodes",
        SAVE,
        "of_nodes = not (csc.times.base == EDGE_TIME).any()",
        "of_nodes = csc.times.base[0] != EDGE_TIME",
        f"{MATRIX}::test_every_typed_batch_keeps_what_is_promised",
    ),
    Fault(
        "edges of another type that took their place in an opened graph are not drawn",
        COMPRESSED,
        "        and index.relation == relation\n",
        "",
        OF_COMPRESSED,
    ),
    Fault(
        "an adj_t that was set on an opened graph is ignored",
        COMPRESSED,
        "        and not others\n",
        "",
        OF_COMPRESSED,
    ),
    Fault(
        "rows that parts or ranks gave ignore feature_dtype",
        GATHER,
        "converted(kept[attribute.name], self.feature_dtype)",
        "kept[attribute.name]",
        OF_GATHER,
    ),
    Fault(
        "ordered attributes with other positions have rows of other nodes",
        GATHER,
        "roles = [a for a in attributes if given[a.name].positions is positions]",
        "roles = list(attributes)",
        OF_GATHER,
    ),
    Fault(
        "a tensor that asks for a gradient is gathered without one after a batch without gradients",
        GATHER,
        "not (value.is_complex() or value.requires_grad)",
        "not value.is_complex()",
        OF_GATHER,
    ),
    Fault(
        "rows of a graph in an order are cached by the visits of other nodes",
        CACHE,
        "return torch.empty_like(visits).index_copy_(0, positions, visits)",
        "return visits[positions]",
        OF_CACHE,
    ),
    Fault(
        "of a table in an order the rows of other nodes are cached",
        "pyg_direct/batch/assemble.py",
        "by = None if table is positions else positions",
        "by = None",
        OF_CACHE,
    ),
    Fault(
        "batches of links are expected to have half of their ends",
        CACHE,
        " * len(ends)\n",
        "\n",
        OF_CACHE,
    ),
    Fault(
        "times of edges of an opened graph are taken for times of nodes",
        COMPRESSED,
        "if csc.times is not None and not (csc.times.base == EDGE_TIME).any():",
        "if csc.times is not None:",
        OF_COMPRESSED,
    ),
    Fault(
        "presampling draws from the generator of the user's samplers",
        CACHE,
        "with torch.random.fork_rng(devices=[]):",
        "with torch.no_grad():",
        OF_CACHE,
    ),
    Fault(
        "a state that is not compared keeps the sampler's epoch",
        PROGRESS,
        "self.sampler_epoch = sampler_epoch if strict else None",
        "self.sampler_epoch = sampler_epoch",
        f"{STATES}::test_the_epoch_of_a_sampler_is_compared_where_a_state_is",
    ),
    Fault(
        "a state of links with other weights of negatives is taken",
        LINKS,
        "            tensors += [negatives.src_weight, negatives.dst_weight]\n",
        "            pass\n",
        f"{STATES}::test_a_state_of_another_loader",
    ),
    Fault(
        "a state of links with other windows is taken",
        LINKS,
        "[*tensors, *bounds]",
        "[*tensors]",
        f"{STATES}::test_a_state_of_another_loader",
    ),
    Fault(
        "buffers that differ from those of the plain model are not seen",
        "pyg_direct/models/certificate.py",
        "    for name, theirs in expected.buffers.items():\n",
        "    for name, theirs in list(expected.buffers.items())[:0]:\n",
        "tests/unit/models/test_certificate.py::test_in_what_outcomes_differ",
    ),
    Fault(
        "counts that a model asks for are kept from it",
        "pyg_direct/models/accelerate.py",
        "if name in parameters and parameters[name].default is None:",
        "if name in parameters:",
        "tests/unit/models/test_accelerate_arguments.py::test_counts_that_a_model_asks_for_are_left_to_it",
    ),
]
