"""Run ``python -m pyg_direct.generate``."""

from .tools.generate import main

if __name__ == "__main__":
    main()
