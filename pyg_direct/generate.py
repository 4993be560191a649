"""Run ``python -m pyg_direct.generate``."""

from .tools.command import run_as

if __name__ == "__main__":
    run_as("generate")
