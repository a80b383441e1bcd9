"""What there is."""

from types import SimpleNamespace

import standin_engine


class DcgmSystemDiscovery:
    def __init__(self, dcgmHandle):
        self._handle = dcgmHandle

    def GetAllGpuIds(self):
        now = self._handle.handle.ask()
        return [one["id"] for one in now["gpus"]]

    def GetAllSupportedGpuIds(self):
        now = self._handle.handle.ask()
        return [one["id"] for one in now["gpus"] if one.get("supported", True)]

    def GetGpuAttributes(self, gpuId):
        now = self._handle.handle.ask()
        gpu = next(one for one in now["gpus"] if one["id"] == gpuId)
        if gpu.get("nameless"):
            standin_engine.refuse(-18)
        return SimpleNamespace(
            identifiers=SimpleNamespace(uuid=gpu["uuid"], deviceName=gpu["name"])
        )

    def GetGpuStatus(self, gpuId):
        now = self._handle.handle.ask()
        return next(one.get("status", 1) for one in now["gpus"] if one["id"] == gpuId)


class DcgmSystem:
    def __init__(self, dcgmHandle):
        self._handle = dcgmHandle
        self.discovery = DcgmSystemDiscovery(dcgmHandle)

    def UpdateAllFields(self, waitForUpdate):
        self._handle.handle.ask()
