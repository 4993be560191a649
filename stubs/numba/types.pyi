from typing import Any

class Type: ...

class Array(Type):
    dtype: Any

void: Any
intp: Any

def __getattr__(name: str) -> Any: ...
