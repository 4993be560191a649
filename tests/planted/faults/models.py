"""Faults in users' models on batches and on whole graphs."""

from __future__ import annotations

from ..fault import Fault

FAULTS: list[Fault] = []
