"""What NVML's return codes say: whose trouble it is, and what is to be done."""

from typing import Any

_UNINITIALIZED, _DRIVER_NOT_LOADED, _NO_LIBRARY, _MISMATCH = 1, 9, 12, 18
NOT_SUPPORTED, _LOST, _RESET = 3, 15, 16
_TODO = {
    _UNINITIALIZED: "the driver went away; nvidia-smi says whether it is back",
    NOT_SUPPORTED: "this GPU or driver does not have it; nvidia-smi -q shows N/A there too",
    4: "not permitted; let this user open /dev/nvidia* (ls -l /dev/nvidia*)",
    8: "a GPU lacks power; see that its power cables are in place",
    _DRIVER_NOT_LOADED: "no NVIDIA driver is loaded; modprobe nvidia",
    _NO_LIBRARY: "no NVIDIA driver here (libnvidia-ml.so.1); install it, or in a container "
    "pass the GPUs in",
    13: "the driver is too old for it; update the driver",
    _LOST: "the GPU is lost; dmesg | grep Xid on the node, then reboot it",
    _RESET: "the GPU must be reset; nvidia-smi --gpu-reset",
    _MISMATCH: "the driver was updated, and an older one is still loaded; reboot the node",
}
_LOG = "; dmesg | grep -e Xid -e NVRM on the node says more"

# The driver's own trouble, not that of one GPU.
OF_DRIVER = frozenset({_UNINITIALIZED, _DRIVER_NOT_LOADED, _NO_LIBRARY, _MISMATCH})
# After which nothing can be read of a GPU, or of any.
NOTHING = OF_DRIVER | {_LOST, _RESET}


def explain(error: Any) -> str:
    """Return what an ``NVMLError`` says, and what is to be done."""
    todo = _TODO.get(error.value)
    return f"NVML: {error} ({error.value})" + (f": {todo}" if todo else _LOG)
