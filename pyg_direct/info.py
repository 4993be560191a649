"""Run ``python -m pyg_direct.info``."""

from .tools.command import run_as

if __name__ == "__main__":
    run_as("info")
