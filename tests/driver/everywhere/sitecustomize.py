"""Prepares every Python process for the stand-in that has this folder on PYTHONPATH.

For commands that start processes of their own, which `tests.driver.start` does not reach.
"""

import os

if os.environ.get("STANDIN_EVERYWHERE"):
    from tests.driver import start

    start.install()
