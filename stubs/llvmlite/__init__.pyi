"""The few names of llvmlite that this package uses."""

from . import binding as binding
from . import ir as ir
