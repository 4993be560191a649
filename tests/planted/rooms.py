"""The default tests that a fault in each room is shown to after the nearest ones."""

from __future__ import annotations

from collections.abc import Mapping

ROOMS: Mapping[str, tuple[str, ...]] = {
    "face": ("tests/architecture", "tests/unit/tools", "tests/loader/test_swapped.py"),
    "core": (
        "tests/unit/core",
        "tests/loader/test_bad_arguments.py",
        "tests/loader/test_bad_input.py",
    ),
    "kernels": (
        "tests/unit/ops/cpu",
        "tests/unit/graph",
        "tests/loader/test_drop_in.py",
        "tests/loader/test_weighted.py",
        "tests/loader/test_recorded_batches.py",
        "tests/kernels/test_cuda_kernels.py",
        "tests/kernels/test_cuda_attributes.py",
        "tests/kernels/test_cuda_excluded.py",
        "tests/statistics/test_statistics.py",
    ),
    "cuda": (
        "tests/kernels",
        "tests/loader/test_cuda_loader.py",
        "tests/loader/test_labor.py",
        "tests/reference/test_features.py",
    ),
    "graph": (
        "tests/unit/graph",
        "tests/unit/files",
        "tests/loader/test_drop_in.py",
        "tests/loader/test_hetero.py",
    ),
    "ops": ("tests/unit/ops", "tests/loader/test_places.py", "tests/loader/test_places_of_ids.py"),
    "ops/cpu": (
        "tests/unit/ops/cpu",
        "tests/unit/files",
        "tests/kernels/test_seam.py",
        "tests/loader/test_drop_in.py",
    ),
    "ops/cuda": ("tests/unit/ops/cuda", "tests/kernels", "tests/loader/test_cuda_loader.py"),
    "ops/host": (
        "tests/unit/ops/host",
        "tests/unit/loaders",
        "tests/statistics/test_family_laws.py",
    ),
    "sampling": ("tests/unit/sampling", "tests/loader"),
    "batch": (
        "tests/unit/batch",
        "tests/loader/test_drop_in.py",
        "tests/loader/test_places_of_ids.py",
    ),
    "files": ("tests/unit/files",),
    "loading": ("tests/unit/loading", "tests/loader"),
    "loaders": ("tests/unit/loaders", "tests/statistics/test_family_laws.py", "tests/loader"),
    "models": (
        "tests/unit/models",
        "tests/loader/test_accelerated_batches.py",
        "tests/integration/test_cooperative_models.py",
    ),
    "exchange": (
        "tests/unit/partitions",
        "tests/unit/ranks",
        "tests/unit/loading/test_shared_rows.py",
        "tests/integration/test_parts_of_ranks.py",
    ),
    "ranks": ("tests/unit/ranks", "tests/loader/test_ranks.py", "tests/integration/test_ranks.py"),
    "tools": ("tests/unit/tools",),
}
