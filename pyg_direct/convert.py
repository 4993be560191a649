"""Run ``python -m pyg_direct.convert``."""

from .tools.convert import main

if __name__ == "__main__":
    main()
