"""The kernels that a plan takes, each file compiled when one of its kernels is first needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from ...core.types import Csc, SamplingPlan
from .descriptor import Descriptor, resolved
from .launch import Kernel, Library, type_name
from .source import ONE_BLOCK_FILE, Parameter, declarations, instance_names, read_source
from .table import NodeTable

FILES = (
    "sample.cu",
    "relabel.cu",
    ONE_BLOCK_FILE,
    "weighted.cu",
    "labor.cu",
    "picks.cu",
    "emit.cu",
)


class PlanKernels(Mapping[str, Kernel]):
    """Kernels of one graph and plan, by name.

    Args:
        csc: the graph.
        plan: how it is sampled.
        library: of the device.
    """

    def __init__(self, csc: Csc, plan: SamplingPlan, library: Library) -> None:
        self._library = library
        perm = csc.indices if csc.perm is None else csc.perm
        self._types = {
            "P": type_name(csc.indptr.dtype),
            "I": type_name(csc.indices.dtype),
            "M": type_name(perm.dtype),
            "O": type_name(plan.id_dtype),
            "kHashed": str(NodeTable.is_hashed(csc.num_nodes, plan.disjoint)).lower(),
        }
        self._loaded: dict[str, Kernel] = {}
        self._file = _file_by_kernel()

    def __getitem__(self, name: str) -> Kernel:
        """Return a kernel, having compiled its file."""
        if name not in self._loaded:
            file = self._file[name]
            names = instance_names(read_source(file))
            types = {name: self._types[name] for name in names}
            self._loaded.update(self._library.load(file, **types))
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(self._file)

    def __len__(self) -> int:
        """Return how many kernels there are."""
        return len(self._file)

    def descriptor(self) -> Descriptor:
        """Return an empty descriptor of a batch: see cuda/batch.cuh."""
        fields = resolved(_batch_fields(), self._types)
        return Descriptor(fields, self._library.compiler.device)


@cache
def _file_by_kernel() -> Mapping[str, str]:
    return {kernel.name: file for file in FILES for kernel in declarations(read_source(file))}


@cache
def _batch_fields() -> tuple[Parameter, ...]:
    """Return the fields of a batch's descriptor, which all kernels declare alike."""
    (fields,) = {
        parameter.fields
        for file in FILES
        for kernel in declarations(read_source(file))
        for parameter in kernel.parameters
        if parameter.kind == "Descriptor"
    }
    return fields
