"""Run ``python -m pyg_direct.info``."""

from .tools.command import report, run_as  # noqa: F401

if __name__ == "__main__":
    run_as("info")
