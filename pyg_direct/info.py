"""Run ``python -m pyg_direct.info``."""

from .tools.info import main, report  # noqa: F401

if __name__ == "__main__":
    main()
