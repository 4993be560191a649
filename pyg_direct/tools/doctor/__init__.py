"""Diagnosis of a machine: hardware, drivers, packages and bandwidth."""
