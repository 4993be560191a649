"""What every result file of a benchmark says."""

ENVIRONMENT = {
    "versions": "python torch torch_geometric torch_sparse pyg_lib numba numpy pyg_direct",
    "machine": "cpu_model cores memory_bytes kernel transparent_huge_pages libc load_average_1min",
}


def check_environment(result):
    assert "commit" in result
    for key, names in ENVIRONMENT.items():
        assert set(result[key]) == set(names.split())
