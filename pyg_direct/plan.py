"""Run ``python -m pyg_direct.plan``."""

from .tools.command import run_as

if __name__ == "__main__":
    run_as("plan")
