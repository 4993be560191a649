"""Run ``python -m pyg_direct.plan``."""

from .tools.plan import main

if __name__ == "__main__":
    main()
