"""Run ``python -m pyg_direct.audit``."""

from .tools.command import run_as

if __name__ == "__main__":
    run_as("audit")
