from typing import Any

_nrt_python: Any
