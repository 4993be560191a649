"""Run ``python -m pyg_direct.audit``."""

from .tools.audit import main

if __name__ == "__main__":
    main()
