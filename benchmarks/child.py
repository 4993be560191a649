"""What one call takes in a new process: time, and memory beyond what was in use before it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

# Runs in older checkouts, too, so it uses nothing of this one.
MEASURED = """
import gc, json, sys, time
from pathlib import Path

def status(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])

def measured(call):
    gc.collect()
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    wall, cpu = time.perf_counter(), time.process_time()
    kept = call()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(json.dumps({
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        "peak_extra_bytes": status("VmHWM") - before,
        "kept_extra_bytes": status("VmRSS") - before,
    }))
"""


def measure_in_child(code: str, *arguments: object, checkout: Path) -> dict[str, float]:
    """Run code in a new process and return what its one call of `measured` took.

    Args:
        code: calls ``measured(call)``, whose result is alive when memory is read.
        *arguments: are its `sys.argv[1:]`.
        checkout: whose package it imports.

    Returns:
        wall_seconds, cpu_seconds, peak_extra_bytes and kept_extra_bytes.

    Raises:
        subprocess.CalledProcessError: the code failed.
    """
    command = [sys.executable, "-W", "ignore", "-c", MEASURED + code, *map(str, arguments)]
    done = subprocess.run(command, cwd=checkout, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))
