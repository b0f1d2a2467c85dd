"""GPUs as the driver itself tells of them, through NVIDIA's `nvidia-ml-py` (the extra ``nvml``).

NVML knows what share of time something ran on a GPU (utilisation) and its memory; of SM and memory activity it
knows nothing without profiling, so all activity read here is an upper bound. A GPU in MIG mode has no utilisation,
its parts neither: of those only memory is known. Any call may fail, on its own or altogether, and each that does
is a number that is missing or a reading without GPUs.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar, cast

from kvwatch.core.model.gpu import MAX_GPUS, Gpu, GpuReading, distinct_gpus
from kvwatch.sidecar.polling.isolated_call import CallTimeout, IsolatedCall

SOURCE = "nvml"
NO_LIBRARY = "the library for it is not installed: pip install 'kvwatch[nvml]'"
_TIMEOUT_S = 5.0
_PARTING_S = 0.2
_T = TypeVar("_T")


class Library(Protocol):
    """What is used of the module `pynvml`. Handles are opaque; errors are `NVMLError`."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...  # noqa: N802 - the library's own names
    def nvmlShutdown(self) -> None: ...  # noqa: N802
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...  # noqa: N802
    def nvmlDeviceGetUUID(self, handle: Any) -> str | bytes: ...  # noqa: N802
    def nvmlDeviceGetName(self, handle: Any) -> str | bytes: ...  # noqa: N802
    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any: ...  # noqa: N802
    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any: ...  # noqa: N802
    def nvmlDeviceGetMigMode(self, handle: Any) -> list[int]: ...  # noqa: N802
    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Any, index: int) -> Any: ...  # noqa: N802
    def nvmlDeviceGetGpuInstanceId(self, device: Any) -> int: ...  # noqa: N802


def installed() -> Library:
    """The library; ImportError without it."""
    return cast("Library", importlib.import_module("pynvml"))


class Nvml:
    """Reads the GPUs that the driver shows."""

    name = SOURCE

    def __init__(
        self, interval_s: float, load: Callable[[], Library] = installed, timeout_s: float = _TIMEOUT_S
    ) -> None:
        self._interval_s = interval_s
        self._load = load
        self._timeout_s = timeout_s
        self._aside = IsolatedCall("kvwatch nvml")
        self._library: Library | None = None
        """Set while it is initialised; touched by one thread at a time."""

    async def read(self) -> GpuReading:
        """The GPUs now, or why none can be read. Never raises."""
        try:
            gpus = await self._aside.call(self._gpus, self._timeout_s)
        except ImportError:
            return self._failed(NO_LIBRARY)
        except CallTimeout as hangs:
            return self._failed(f"the driver hangs: {hangs}")
        except Exception as error:  # noqa: BLE001 - whatever a driver can do ends as a reading
            return self._failed(f"the driver can't be read: {_line(error)}")
        return (
            GpuReading(gpus, SOURCE, "", self._interval_s)
            if gpus
            else self._failed("the driver shows no GPU")
        )

    async def close(self) -> None:
        """Lets go of the driver, if it does not hang."""
        if self._library is None:
            return
        try:
            await self._aside.call(self._shut, _PARTING_S)
        except Exception:  # noqa: BLE001 - the process ends, and the driver lets go by itself
            return

    def _failed(self, reason: str) -> GpuReading:
        return GpuReading(source=SOURCE, reason=reason, interval_s=self._interval_s)

    # -- in a thread -----------------------------------------------------------------------------------------------

    def _gpus(self) -> tuple[Gpu, ...]:
        library = self._library
        if library is None:
            library = self._load()
            library.nvmlInit()
            self._library = library
        try:
            count = min(library.nvmlDeviceGetCount(), MAX_GPUS)
            return distinct_gpus(gpu for index in range(count) for gpu in _device(library, index))
        except Exception:
            with contextlib.suppress(Exception):
                self._shut()  # so that a driver that was reloaded meanwhile is initialised anew
            raise

    def _shut(self) -> None:
        library, self._library = self._library, None
        if library is not None:
            library.nvmlShutdown()


def _device(library: Library, index: int) -> Iterator[Gpu]:
    """A GPU, or its parts if it is divided; nothing if it is lost."""
    handle = _asked(library, lambda: library.nvmlDeviceGetHandleByIndex(index))
    if handle is None:
        return
    mode = _asked(library, lambda: library.nvmlDeviceGetMigMode(handle))
    parts = list(_parts(library, handle, index)) if mode and mode[0] else []
    yield from parts or [_gpu(library, handle, str(index))]


def _parts(library: Library, handle: Any, index: int) -> Iterator[Gpu]:
    """The MIG instances of a GPU; there are gaps among their numbers."""
    for number in range(_asked(library, lambda: library.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0):
        part = _asked(library, lambda n=number: library.nvmlDeviceGetMigDeviceHandleByIndex(handle, n))  # type: ignore[misc]
        if part is None:
            continue
        id_ = _asked(library, lambda p=part: library.nvmlDeviceGetGpuInstanceId(p))  # type: ignore[misc]
        yield _gpu(library, part, f"{index}/{number if id_ is None else id_}")


def _gpu(library: Library, handle: Any, label: str) -> Gpu:
    rates = _asked(library, lambda: library.nvmlDeviceGetUtilizationRates(handle))
    memory = _asked(library, lambda: library.nvmlDeviceGetMemoryInfo(handle))
    return Gpu(
        label=label,
        uuid=_text(_asked(library, lambda: library.nvmlDeviceGetUUID(handle))),
        name=_text(_asked(library, lambda: library.nvmlDeviceGetName(handle))),
        utilization=None if rates is None or not 0 <= rates.gpu <= 100 else rates.gpu / 100,
        memory_used_bytes=None if memory is None else float(memory.used),
        memory_free_bytes=None if memory is None else float(memory.free),
    )


def _asked(library: Library, ask: Callable[[], _T]) -> _T | None:
    """An answer; None where the driver has none."""
    try:
        return ask()
    except library.NVMLError:
        return None


def _text(said: str | bytes | None) -> str:
    """What the library says: text, or bytes before version 11.5."""
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else said or ""


def _line(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:200]
