"""Counters from the driver alone: NVML's GPU performance monitoring (GPM), Hopper and later.

The very counters that DCGM reports on these GPUs, without a daemon, without root, and without
taking them from a profiler. GPM gives differences of two samples, so what it says is the mean
from one scrape to the next. Clocks, power and throttle reasons are glances: a thread takes one
a second, and the mean of them stands for the same time.
"""

import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from detector.metric import COUNTERS, usable
from detector.reading import Dropped, Reading, Scrape
from detector.telemetry.nvml_errors import NOT_SUPPORTED, NOTHING, OF_DRIVER, explain
from detector.telemetry.source import SourceError

# GPM's metric -> DCGM's field: percent become ratios, MiB/s become B/s (nvml.h).
_PERCENT, _MIB = 0.01, float(2**20)
RATIOS = {1: 1001, 2: 1002, 3: 1003, 4: 1016, 5: 1004, 6: 1015, 7: 1014, 9: 1013, 10: 1005,
          11: 1006, 12: 1007, 13: 1008}  # fmt: skip
RATES = {20: 1009, 21: 1010, 60: 1012, 61: 1011}
_TENSOR, _CLOCK, _MAX_CLOCK = 1004, 100, 113

# nvml.h: the two samples must be at least 100 ms apart.
_APART_S = 0.1
_GLANCE_S = 1.0

_PROFILE = re.compile(r"MIG (?:\d+c\.)?(\S+)")


@dataclass(slots=True)
class _Sampled:
    """The two buffers of one GPU or instance; the first holds what the last scrape took."""

    buffers: list[Any]
    taken_s: float | None = None


@dataclass(slots=True)
class _Glances:
    clocks: list[float] = field(default_factory=list)
    no_clock: str = ""
    powers: list[float] = field(default_factory=list)
    bits: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpu:
    handle: Any
    index: int
    uuid: str
    model: str
    minor: str


@dataclass(slots=True)
class _Found:
    """What one scrape finds; ``begun`` are entities of which it took the first sample."""

    readings: list[Reading] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    failing: str = ""
    begun: set[str] = field(default_factory=set)

    def lacks(self, entity: str, counter: str, reason: str, raw: str = "") -> None:
        """Note why a counter is not there."""
        self.dropped.append(Dropped(gpu=entity, metric=counter, raw=raw, reason=reason))

    def lacks_profiling(self, entity: str, reason: str) -> None:
        """Note why there is no monitoring."""
        self.failing = "no_profiling"
        self.lacks(entity, COUNTERS[_TENSOR].name, reason)


class Gpm:
    """The GPUs of this node; a :class:`detector.telemetry.worker.Reader`.

    Parameters
    ----------
    nvml
        The module ``pynvml``.
    clock, pause
        Monotonic seconds, and how to let some pass.
    """

    def __init__(
        self,
        nvml: Any,
        *,
        host: str,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._nvml, self._host, self._clock, self._pause = nvml, host, clock, pause
        self._ready = False
        self._sampled: dict[str, _Sampled] = {}
        self._glances: dict[str, _Glances] = {}
        self._gpus: tuple[_Gpu, ...] = ()
        self._lock = threading.Lock()  # over _gpus and _glances
        self._over = threading.Event()

    def start(self) -> None:
        """Glance once a second from now on, in a thread."""
        threading.Thread(target=self._keep_glancing, name="glance", daemon=True).start()

    def read(self, now_ms: int) -> Scrape:
        """Return the means since the last call; nothing of what is sampled for the first time.

        Raises
        ------
        SourceError
            When the driver has no GPU to read.
        """
        found = _Found()
        try:
            gpus = self._list(found)
            self.glance()
            for gpu in gpus:
                try:
                    self._read_gpu(gpu, now_ms, found)
                except self._nvml.NVMLError as error:
                    self._lost(gpu.uuid, error, found)
        except self._nvml.NVMLError as error:
            raise SourceError(explain(error)) from None
        if not (found.readings or found.begun):
            raise SourceError(
                f"{found.dropped[0].gpu}: {found.dropped[0].reason}"
                if found.dropped
                else "the driver has no GPUs here; nvidia-smi -L shows those that it has"
            )
        self._drop_gone({one.entity for one in found.readings} | found.begun)
        return Scrape(
            target="localhost", asked_ms=now_ms, readings=tuple(found.readings),
            dropped=tuple(found.dropped), failing=found.failing,
        )  # fmt: skip

    def glance(self) -> None:
        """Note clock, power and throttle reasons of each GPU as they are now."""
        with self._lock:
            for gpu in self._gpus:
                seen = self._glances.setdefault(gpu.uuid, _Glances())
                clock, seen.no_clock = self._value(
                    _CLOCK, 1.0, "nvmlDeviceGetClockInfo", gpu.handle, self._nvml.NVML_CLOCK_SM
                )
                power, no_power = self._value(155, 1e-3, "nvmlDeviceGetPowerUsage", gpu.handle)
                bits, no_bits = self._value(
                    112, 1.0, "nvmlDeviceGetCurrentClocksEventReasons", gpu.handle
                )
                seen.clocks += [] if seen.no_clock else [clock]
                seen.powers += [] if no_power else [power]
                if not no_bits:
                    seen.bits = (seen.bits or 0) | int(bits)

    def close(self) -> None:
        """Stop glancing and give samples and library back."""
        self._over.set()
        with self._lock:
            self._gpus = ()
        self._drop_gone(set())
        if self._ready:
            with suppress(self._nvml.NVMLError):  # gone with the driver
                self._nvml.nvmlShutdown()

    def _keep_glancing(self) -> None:
        while not self._over.wait(_GLANCE_S):
            self.glance()

    def _list(self, found: _Found) -> tuple[_Gpu, ...]:
        nvml, gpus = self._nvml, []
        if not self._ready:
            nvml.nvmlInit()
            self._ready = True
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                gpus.append(
                    _Gpu(
                        handle=handle, index=index, uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
                        model=_text(nvml.nvmlDeviceGetName(handle)), minor=self._minor(handle),
                    )
                )  # fmt: skip
            except nvml.NVMLError as error:
                self._lost(f"GPU {index}", error, found)
        with self._lock:
            self._gpus = tuple(gpus)
            known = {gpu.uuid for gpu in gpus}
            self._glances = {uuid: g for uuid, g in self._glances.items() if uuid in known}
        return tuple(gpus)

    def _minor(self, handle: Any) -> str:
        try:
            return str(self._nvml.nvmlDeviceGetMinorNumber(handle))
        except self._nvml.NVMLError:  # not told in some virtual machines
            return ""

    def _read_gpu(self, gpu: _Gpu, now_ms: int, found: _Found) -> None:
        """Read a GPU, or each of its instances."""
        if no_gpm := self._no_gpm(gpu):
            found.lacks_profiling(gpu.uuid, no_gpm)
        device = self._device_values(gpu, found)
        instances = tuple(self._instances(gpu)) if self._divided(gpu) else (("", ""),)
        if not instances:
            found.lacks(
                gpu.uuid, "mig", "MIG is on, and there is no instance; nvidia-smi mig -lgi"
            )
        for instance, profile in instances:
            entity = f"{gpu.uuid}/{instance}" if instance else gpu.uuid
            values = dict(device)
            if instance:
                # Power, energy and use are the whole GPU's.
                for name in ("power_w", "power_limit_w", "energy_j", "gpu_util_pct"):
                    values.pop(name, None)
            if not no_gpm:
                try:
                    values |= self._profiled(gpu, instance, entity, found)
                except self._nvml.NVMLError as error:
                    if error.value in NOTHING:
                        raise
                    found.lacks_profiling(entity, explain(error))
            if entity not in found.begun:
                found.readings.append(
                    Reading(
                        uuid=gpu.uuid, instance=instance, profile=profile, host=self._host,
                        index=str(gpu.index), model=gpu.model, time_ms=now_ms, own_clock=True,
                        values=values, reporter="nvml",
                        labels={"minor_number": gpu.minor} if gpu.minor else {},
                    )
                )  # fmt: skip

    def _no_gpm(self, gpu: _Gpu) -> str:
        """Return why a GPU has no monitoring; "" where it has."""
        try:
            if self._nvml.nvmlGpmQueryDeviceSupport(gpu.handle).isSupportedDevice:
                return ""
        except self._nvml.NVMLError as error:
            if error.value in NOTHING:
                raise
            if error.value != NOT_SUPPORTED:
                return explain(error)
        return (
            f"the driver has no GPM for {gpu.model}, which begins with Hopper and driver 520; "
            'use type = "dcgm"'
        )

    def _device_values(self, gpu: _Gpu, found: _Found) -> dict[str, float]:
        nvml, handle = self._nvml, gpu.handle
        with self._lock:
            seen = self._glances.pop(gpu.uuid, _Glances())
        values: dict[str, float] = {}
        if seen.clocks:
            values["sm_clock_mhz"] = fmean(seen.clocks)
        elif seen.no_clock:
            found.lacks(gpu.uuid, "sm_clock_mhz", seen.no_clock)
        if seen.powers:
            values["power_w"] = fmean(seen.powers)
        if seen.bits is not None:
            values["clock_event_bits"] = float(seen.bits)
        for field_id, scale, call, *more in (
            (_MAX_CLOCK, 1.0, "nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
            (164, 1e-3, "nvmlDeviceGetEnforcedPowerLimit"),
            (156, 1e-3, "nvmlDeviceGetTotalEnergyConsumption"),
            (150, 1.0, "nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            (203, 1.0, "nvmlDeviceGetUtilizationRates"),
        ):
            value, reason = self._value(field_id, scale, call, handle, *more)
            if not reason:
                values[COUNTERS[field_id].name] = value
            elif field_id == _MAX_CLOCK:
                found.lacks(gpu.uuid, COUNTERS[field_id].name, reason)
        return values

    def _value(
        self, field_id: int, scale: float, name: str, *arguments: Any
    ) -> tuple[float, str]:
        """Return one value past the filter; NaN and why where there is none."""
        call: Callable[..., Any] | None = getattr(self._nvml, name, None)
        if call is None:
            return math.nan, f"this pynvml has no {name}; pip install 'ofuwatch[nvml]'"
        try:
            raw = call(*arguments)
        except self._nvml.NVMLError as error:
            return math.nan, explain(error)
        return usable(COUNTERS[field_id], getattr(raw, "gpu", raw), scale)

    def _divided(self, gpu: _Gpu) -> bool:
        try:
            return bool(self._nvml.nvmlDeviceGetMigMode(gpu.handle)[0])
        except self._nvml.NVMLError:
            return False

    def _instances(self, gpu: _Gpu) -> Iterator[tuple[str, str]]:
        """Yield id and profile of each GPU instance; several devices may be of one."""
        nvml, seen = self._nvml, set()
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu.handle)):
            try:
                device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, index)
                number = str(nvml.nvmlDeviceGetGpuInstanceId(device))
                match = _PROFILE.search(_text(nvml.nvmlDeviceGetName(device)))
            except nvml.NVMLError:  # no instance has this place
                continue
            if number not in seen:
                seen.add(number)
                yield number, match[1] if match else ""

    def _profiled(
        self, gpu: _Gpu, instance: str, entity: str, found: _Found
    ) -> dict[str, float]:
        """Return what GPM says of the time since the last sample; nothing for the first."""
        nvml, known = self._nvml, self._sampled.get(entity)
        first = known is None
        if known is None:
            buffers = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
            known = self._sampled[entity] = _Sampled(buffers=buffers)
        if known.taken_s is not None:
            self._pause(max(0.0, known.taken_s + _APART_S - self._clock()))
        before, now = known.buffers
        had, known.taken_s = known.taken_s is not None, None
        if instance:
            nvml.nvmlGpmMigSampleGet(gpu.handle, int(instance), now)
        else:
            nvml.nvmlGpmSampleGet(gpu.handle, now)
        known.buffers, known.taken_s = [now, before], self._clock()
        if first:
            found.begun.add(entity)
        asked = RATIOS if instance else RATIOS | RATES
        return self._between(before, now, asked, entity, found) if had else {}

    def _between(
        self, before: Any, now: Any, asked: Mapping[int, int], entity: str, found: _Found
    ) -> dict[str, float]:
        request = self._nvml.c_nvmlGpmMetricsGet_t()
        request.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(asked)
        request.sample1, request.sample2 = before, now
        for place, metric in enumerate(asked):
            request.metrics[place].metricId = metric
        self._nvml.nvmlGpmMetricsGet(request)
        values = {}
        for place, metric in enumerate(asked):
            answer, counter = request.metrics[place], COUNTERS[asked[metric]]
            scale = _MIB if metric in RATES else _PERCENT
            value, reason = usable(counter, answer.value, scale)
            raw = str(answer.value)
            if answer.nvmlReturn != 0:
                raw, reason = "", explain(self._nvml.NVMLError(answer.nvmlReturn))
            if not reason:
                values[counter.name] = value
            elif asked[metric] == _TENSOR:
                found.lacks(entity, counter.name, reason, raw)
        return values

    def _drop_gone(self, entities: set[str]) -> None:
        for entity in self._sampled.keys() - entities:
            self._free(self._sampled.pop(entity))

    def _free(self, sampled: _Sampled) -> None:
        for buffer in sampled.buffers:
            with suppress(self._nvml.NVMLError):  # gone with the driver
                self._nvml.nvmlGpmSampleFree(buffer)

    def _lost(self, which: str, error: Any, found: _Found) -> None:
        """Note a GPU that cannot be read; raise what is the driver's own trouble."""
        if error.value in OF_DRIVER:
            raise error
        found.lacks(which, "gpu", explain(error))


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
