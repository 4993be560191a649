"""Run ``python -m pyg_direct.info``."""

from .tools.info import main

if __name__ == "__main__":
    main()
