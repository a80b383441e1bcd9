"""Return codes, errors and the structures that the stand-in's calls take and give."""

_NAMES = {
    -1: "BadParam", -6: "NotSupported", -11: "Timeout", -12: "VerMismatch", -13: "UnknownField",
    -14: "NoData", -17: "NoPermission", -18: "GpuIsLost", -21: "ConnectionNotValid",
    -24: "MaxLimit", -25: "LibraryNotFound", -26: "DuplicateKey", -29: "RequiresRoot",
    -33: "ModuleNotLoaded", -36: "ProfilingNotSupported", -37: "ProfilingLibraryError",
    -38: "ProfilingMultiPass", -54: "Paused", -56: "NvmlNotLoaded", -57: "NvmlDriverTimeout",
    -67: "GpusDetached",
}  # fmt: skip

DCGM_ST_OK = 0
DCGM_OPERATION_MODE_AUTO = 1
DCGM_GROUP_EMPTY = 1
DCGM_FV_FLAG_LIVE_DATA = 1


class DCGMError(Exception):
    """A factory: DCGMError(-21) is a DCGMError_ConnectionNotValid."""

    def __new__(cls, value):
        kind = dcgmExceptionClass(value) if cls is DCGMError else cls
        made = Exception.__new__(kind)
        made.value = value
        return made

    def __init__(self, value):
        super().__init__(value)

    def __str__(self):
        return _NAMES.get(self.value, f"error {self.value}")


_classes = {code: type(f"DCGMError_{name}", (DCGMError,), {}) for code, name in _NAMES.items()}
globals().update({kind.__name__: kind for kind in _classes.values()})


def dcgmExceptionClass(error_code):
    return _classes.get(error_code, DCGMError)


class c_dcgmGroupEntityPair_t:
    def __init__(self, entityGroupId=0, entityId=0):
        self.entityGroupId, self.entityId = entityGroupId, entityId
