"""GPUs as the driver reports them, through NVIDIA's `nvidia-ml-py` (the extra ``nvml``).

NVML knows the share of time in which anything ran on a GPU (utilisation), and its memory. Without profiling
it does not know SM and DRAM activity, so the activity read here is an upper bound. A GPU in MIG mode and its
instances have no utilisation; only their memory is known. Any call may fail: then a number is missing, or the
reading has no GPUs.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from kvwatch.core.model.gpu import MAX_GPUS, Gpu, GpuReading, distinct_gpus
from kvwatch.sidecar.daemon_threads import CallTimeout, IsolatedCall

SOURCE = "nvml"
NO_LIBRARY = "the NVML library is not installed: pip install 'kvwatch[nvml]'"
_TIMEOUT_S = 5.0
_CLOSE_TIMEOUT_S = 0.2
_T = TypeVar("_T")


def import_pynvml() -> Any:
    """The module `pynvml`; ImportError if it is not installed."""
    return importlib.import_module("pynvml")


class Nvml:
    """Reads the GPUs that the driver shows."""

    name = SOURCE

    def __init__(
        self, interval_s: float, load: Callable[[], Any] = import_pynvml, timeout_s: float = _TIMEOUT_S
    ) -> None:
        self._interval_s = interval_s
        self._load = load
        self._timeout_s = timeout_s
        self._call = IsolatedCall("kvwatch nvml")
        self._library: Any = None
        """Set while it is initialised; one thread at a time uses it."""

    async def read(self) -> GpuReading:
        """The GPUs now, or the reason why there are none. Never raises."""
        try:
            gpus = await self._call.run(self._gpus, self._timeout_s)
        except ImportError:
            return self._failed(NO_LIBRARY)
        except CallTimeout as timeout:
            return self._failed(f"the driver hangs: {timeout}")
        except Exception as error:  # noqa: BLE001 - any failure of a driver becomes a reading
            line = (" ".join(str(error).split()) or type(error).__name__)[:200]
            return self._failed(f"the driver can't be read: {line}")
        if not gpus:
            return self._failed("the driver shows no GPU")
        return GpuReading(gpus, SOURCE, "", self._interval_s)

    async def close(self) -> None:
        """Shuts the library down, unless the driver hangs."""
        if self._library is not None:
            with contextlib.suppress(Exception):  # the end of the process releases the driver, too
                await self._call.run(self._shut_down, _CLOSE_TIMEOUT_S)

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
                self._shut_down()  # a driver that was reloaded needs a new nvmlInit
            raise

    def _shut_down(self) -> None:
        library, self._library = self._library, None
        if library is not None:
            library.nvmlShutdown()


def _device(library: Any, index: int) -> Iterator[Gpu]:
    """A GPU, or its MIG instances; nothing if the GPU is lost."""
    handle = _optional(library, library.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        return
    mode = _optional(library, library.nvmlDeviceGetMigMode, handle)
    instances = list(_instances(library, handle, index)) if mode and mode[0] else []
    yield from instances or [_gpu(library, handle, str(index))]


def _instances(library: Any, handle: Any, index: int) -> Iterator[Gpu]:
    """The MIG instances of a GPU; their numbers have gaps."""
    for number in range(_optional(library, library.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        part = _optional(library, library.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
        if part is None:
            continue
        id_ = _optional(library, library.nvmlDeviceGetGpuInstanceId, part)
        yield _gpu(library, part, f"{index}/{number if id_ is None else id_}")


def _gpu(library: Any, handle: Any, label: str) -> Gpu:
    rates = _optional(library, library.nvmlDeviceGetUtilizationRates, handle)
    memory = _optional(library, library.nvmlDeviceGetMemoryInfo, handle)
    return Gpu(
        label=label,
        uuid=_text(_optional(library, library.nvmlDeviceGetUUID, handle)),
        name=_text(_optional(library, library.nvmlDeviceGetName, handle)),
        utilization=None if rates is None or not 0 <= rates.gpu <= 100 else rates.gpu / 100,
        memory_used_bytes=None if memory is None else float(memory.used),
        memory_free_bytes=None if memory is None else float(memory.free),
    )


def _optional(library: Any, call: Callable[..., _T], *args: Any) -> _T | None:
    """The result of a call; None if the driver has none."""
    try:
        return call(*args)
    except library.NVMLError:
        return None


def _text(value: str | bytes | None) -> str:
    """A text of the library, which is bytes before version 11.5."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value or ""
