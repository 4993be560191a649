from types import TracebackType

class Device:
    attributes: dict[str, int]
    def __init__(self, device: int | None = ...) -> None: ...
    def __enter__(self) -> Device: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

class ExternalStream:
    def __init__(self, ptr: int, device_id: int = ...) -> None: ...
    def __enter__(self) -> ExternalStream: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

class Stream:
    @staticmethod
    def from_external(stream: object) -> ExternalStream: ...

class runtime:  # noqa: N801
    @staticmethod
    def runtimeGetVersion() -> int: ...  # noqa: N802
