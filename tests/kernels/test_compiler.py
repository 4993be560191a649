"""Kernels are compiled with their helpers, and helpers not a second time on their own."""

import numpy as np
from numba.core import event

from pyg_direct.kernels import jit
from pyg_direct.kernels.compiler import KernelCompiler


@jit.helper
def scaled(value, by):
    if by is None:  # known when compiling, so that the other branch need not make sense
        return value
    return value * by[0]


@jit.helper
def total(values, by):
    found = 0
    for i in range(values.shape[0]):
        found += scaled(values[i], by)
    return found


def fill(out, values, by):
    for i in range(out.shape[0]):
        out[i] = total(values[:], by) + i


def compiled():
    return jit._compiled(fill, pipeline_class=KernelCompiler, **jit.WITHOUT_COUNTS)


def library_of(dispatcher):
    (result,) = dispatcher.overloads.values()
    return result.library


def test_only_the_kernel_gets_machine_code():
    kernel, out = compiled(), np.zeros(3, np.int64)
    kernel(out, np.arange(4), None)
    assert out.tolist() == [6, 7, 8]
    assert library_of(kernel)._get_compiled_object()
    assert library_of(total)._compiled_object is None
    kernel(out, np.arange(4), np.array([10]))
    assert out.tolist() == [60, 61, 62]
    assert len(kernel.overloads) == len(total.overloads) == len(scaled.overloads) == 2


def test_passes_without_work_are_left_out():
    with event.install_recorder("numba:run_pass") as recorder:
        compiled()(np.zeros(3, np.int64), np.arange(4), None)
    names = {found.data["name"].split(" [")[0] for _, found in recorder.buffer}
    assert "pyg_direct_kernel_lowering" in names
    assert {"nopython_type_inference", "reconstruct_ssa", "dead_branch_prune"} < names
    assert not {"native_lowering", "nopython_rewrites", "literal_unroll"} & names
