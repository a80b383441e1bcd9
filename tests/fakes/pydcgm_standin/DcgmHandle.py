"""The connection."""

import standin_engine
from dcgm_structs import DCGM_OPERATION_MODE_AUTO
from DcgmSystem import DcgmSystem


class DcgmHandle:
    def __init__(
        self, handle=None, ipAddress=None, opMode=DCGM_OPERATION_MODE_AUTO,
        persistAfterDisconnect=False, unixSocketPath=None, timeoutMs=0,
    ):  # fmt: skip
        if ipAddress is None and unixSocketPath is None:
            standin_engine.note("embedded")
        standin_engine.note("connect", ipAddress, unixSocketPath)
        self.handle = standin_engine.Link()

    def GetSystem(self):
        return DcgmSystem(self)

    def Shutdown(self):
        standin_engine.note("shutdown")
        self.handle.ask()
