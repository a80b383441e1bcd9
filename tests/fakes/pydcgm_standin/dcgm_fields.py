"""Fields by number, and names as the two generations of them have them."""

import warnings

import standin_engine

DCGM_FE_GPU, DCGM_FE_GPU_I, DCGM_FE_GPU_CI = 1, 4, 5
_NEW = {"DCGM_FI_PROF_TENSOR_UTIL_RATIO": 1004}
_OLD = {"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 1004, "DCGM_FI_DEV_SM_CLOCK": 100}


def __getattr__(name):
    new = standin_engine.state().get("version", "4.5") >= "4.6"
    if name in _OLD:
        if new:
            warnings.warn(f"{name} is deprecated", DeprecationWarning, stacklevel=2)
        return _OLD[name]
    if name in _NEW and new:
        return _NEW[name]
    raise AttributeError(name)


class _Meta:
    def __init__(self, number):
        self.fieldId = number


def DcgmFieldGetById(fieldId):
    return _Meta(fieldId) if standin_engine.known(fieldId) else None
