"""NVML over a JSON file with a clock of its own: {"now_s", "gpus": [...], "driver": code}."""

import json
import os
import time
from types import SimpleNamespace

NVML_CLOCK_SM = 1
NVML_TEMPERATURE_GPU = 0
NVML_GPM_METRICS_GET_VERSION = 1
NVML_GPM_METRIC_MAX = 477
# A GPU's and an instance's metrics; traffic is the GPU's alone.
_OF_GPU_ONLY = (20, 21, 60, 61)


class NVMLError(Exception):
    def __new__(cls, value):
        made = Exception.__new__(cls)
        made.value = value
        return made

    def __str__(self):
        return f"error {self.value}"


_library = {"ready": False}
_samples = set()


def _state():
    with open(os.environ["PYNVML_STANDIN"], encoding="utf-8") as file:
        return json.load(file)


def _ask():
    now = _state()
    if now.get("hang"):
        time.sleep(3600)
    if not _library["ready"]:
        raise NVMLError(1)
    if now.get("driver"):
        raise NVMLError(now["driver"])
    return now


def _gpu(handle):
    gpu = _ask()["gpus"][handle.index]
    if gpu.get("lost"):
        raise NVMLError(15)
    return gpu


def _told(handle, name):
    gpu = _gpu(handle)
    # Who it is, the driver still knows.
    if gpu.get("reset") and name not in ("uuid", "name", "minor"):
        raise NVMLError(16)
    value = gpu.get(name)
    if value is None:
        raise NVMLError(3)
    return value


def nvmlInit():
    if _state().get("driver"):
        raise NVMLError(_state()["driver"])
    _library["ready"] = True


def nvmlShutdown():
    _ask()
    _library["ready"] = False


def nvmlDeviceGetCount():
    return len(_ask()["gpus"])


def nvmlDeviceGetHandleByIndex(index):
    handle = SimpleNamespace(index=index, mig=None)
    _gpu(handle)
    return handle


def nvmlDeviceGetUUID(handle):
    return _told(handle, "uuid")


def nvmlDeviceGetName(handle):
    if handle.mig is not None:
        return f"{_told(handle, 'name')} MIG {handle.mig['profile']}"
    return _told(handle, "name")


def nvmlDeviceGetMinorNumber(handle):
    return _told(handle, "minor")


def nvmlDeviceGetClockInfo(handle, type):
    value = _told(handle, "clock")
    return _at(value, _state()["now_s"]) if isinstance(value, list) else value


def nvmlDeviceGetMaxClockInfo(handle, type):
    return _told(handle, "max_clock")


def nvmlDeviceGetPowerUsage(handle):
    return _told(handle, "power_mw")


def nvmlDeviceGetEnforcedPowerLimit(handle):
    return _told(handle, "limit_mw")


def nvmlDeviceGetTotalEnergyConsumption(handle):
    return _told(handle, "energy_mj")


def nvmlDeviceGetTemperature(handle, sensor):
    return _told(handle, "temp")


def nvmlDeviceGetUtilizationRates(handle):
    return SimpleNamespace(gpu=_told(handle, "util"), memory=0)


def nvmlDeviceGetCurrentClocksEventReasons(handle):
    value = _told(handle, "bits")
    return _at(value, _state()["now_s"]) if isinstance(value, list) else value


def nvmlDeviceGetMigMode(device):
    return [int(bool(_told(device, "instances"))), 0]


def nvmlDeviceGetMaxMigDeviceCount(device):
    return 7


def nvmlDeviceGetMigDeviceHandleByIndex(device, index):
    instances = _told(device, "instances")
    if index >= len(instances) or instances[index] is None:
        raise NVMLError(6)
    return SimpleNamespace(index=device.index, mig=instances[index])


def nvmlDeviceGetGpuInstanceId(device):
    return device.mig["id"]


def nvmlGpmQueryDeviceSupport(device):
    if _gpu(device).get("reset"):
        raise NVMLError(16)
    return SimpleNamespace(version=1, isSupportedDevice=int(_gpu(device).get("gpm", True)))


def nvmlGpmSampleAlloc():
    _ask()
    sample = SimpleNamespace(at_s=None, entity=None)
    _samples.add(id(sample))
    return sample


def nvmlGpmSampleFree(gpmSample):
    _samples.discard(id(gpmSample))


def nvmlGpmSampleGet(device, gpmSample):
    gpmSample.metrics, gpmSample.at_s = _told(device, "metrics"), _ask()["now_s"]
    gpmSample.entity = (device.index, None)
    return gpmSample


def nvmlGpmMigSampleGet(device, gpuInstanceId, gpmSample):
    found = next(
        one for one in _told(device, "instances") if one and one["id"] == gpuInstanceId
    )
    gpmSample.metrics, gpmSample.at_s = found["metrics"], _ask()["now_s"]
    gpmSample.entity = (device.index, gpuInstanceId)
    return gpmSample


class c_nvmlGpmMetricsGet_t:
    def __init__(self):
        self.version = self.numMetrics = 0
        self.sample1 = self.sample2 = None
        self.metrics = [
            SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0, metricInfo=None)
            for _ in range(NVML_GPM_METRIC_MAX)
        ]


def nvmlGpmMetricsGet(metricsGet):
    first, second = metricsGet.sample1, metricsGet.sample2
    if metricsGet.version != 1 or first.at_s is None or first.entity != second.entity:
        raise NVMLError(2)
    if second.at_s - first.at_s < 0.1 and not _state().get("still"):
        raise NVMLError(2)
    for metric in metricsGet.metrics[: metricsGet.numMetrics]:
        told = second.metrics.get(str(metric.metricId))
        if told is None or (first.entity[1] is not None and metric.metricId in _OF_GPU_ONLY):
            metric.nvmlReturn = 3
        elif isinstance(told, list):
            # The mean over whole seconds between the two samples.
            steps = range(int(first.at_s), int(second.at_s))
            metric.value = sum(_at(told, s) for s in steps) / len(steps)
        else:
            metric.value = told
    return metricsGet


def _at(steps, now_s):
    return [value for since_s, value in steps if since_s <= now_s][-1]
