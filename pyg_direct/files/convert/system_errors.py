"""Errors of the system that libraries report as exceptions of their own."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from .packages import convert_package

NAMED = (errno.ENOSPC, errno.EDQUOT, errno.EACCES)


@contextmanager
def as_os_errors() -> Iterator[None]:
    """Raise failures to read and write as an OSError, whichever library met them.

    Raises:
        OSError: in place of DuckDB's IOException, and of whatever says that too many files are
            open; that names the limit.
    """
    try:
        yield
    except Exception as error:
        text = str(error)
        if os.strerror(errno.EMFILE) in text:
            raise OSError(errno.EMFILE, _too_many_files(text)) from error
        if not isinstance(error, convert_package("duckdb").IOException):
            raise
        code = next((code for code in NAMED if os.strerror(code) in text), errno.EIO)
        raise OSError(code, text) from error


def _too_many_files(text: str) -> str:
    limit = "too few files"
    if os.name == "posix":
        import resource

        limit = f"at most {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} files"
    return (
        f"This process may have {limit} open, and the conversion needs more ({text}). Raise the "
        f"limit, such as with ulimit -n 4096, and run it again: it goes on from where it was"
    )
