"""The driver of this node, asked directly (NVML): no DCGM, no daemon, no root; from Hopper on.

Needs the extra ``nvml`` (``nvidia-ml-py``). Runs in a worker that can be killed, since calls
into the driver block when a GPU has fallen off its bus.
"""

import importlib
import socket

import msgspec

from detector.series import Duration, below, refuse
from detector.telemetry.source import SourceError, one_line
from detector.telemetry.worker import NodeSource, Reader, serve

# What of GPM is used, and older bindings lack.
_CALLS = (
    "c_nvmlGpmMetricsGet_t", "nvmlGpmMetricsGet", "nvmlGpmMigSampleGet",
    "nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleGet",
)  # fmt: skip


class NvmlSettings(
    msgspec.Struct,
    tag_field="type",
    tag="nvml",
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
):
    """``[[source]]`` with ``type = "nvml"``.

    What is read stands for the time from one collection to the next.

    Attributes
    ----------
    host
        What this node is called in readings; "" for its host name.
    deadline
        How long the driver may take to answer before the process that asks it is killed.
    """

    name: str = "nvml"
    host: str = ""
    deadline: Duration = Duration.parse("8s")

    def __post_init__(self) -> None:
        """Refuse a deadline that a start cannot keep."""
        # Chosen: a driver without persistence mode takes seconds to wake each GPU up.
        refuse(below("deadline", self.deadline, Duration(5_000)))


def build(settings: NvmlSettings) -> NodeSource:
    """Return the source; its process starts with the first scrape."""
    return NodeSource(
        settings.name,
        "detector.telemetry.nvml",
        settings={"host": settings.host or socket.gethostname()},
        target="localhost",
        deadline_s=settings.deadline / 1000,
        hint="if it lasts, nvidia-smi -pm 1 (a driver that sleeps takes seconds to wake), or "
        "dmesg | grep Xid for a GPU that has fallen off its bus",
        settle_s=1.0,  # a glance or two, and far more than the 100 ms between two samples
    )


def _reader(line: bytes) -> Reader:
    from detector.telemetry.nvml_reader import Gpm

    told = msgspec.json.decode(line)
    try:
        nvml = importlib.import_module("pynvml")
    except ModuleNotFoundError:
        msg = "the Python module pynvml is not there; pip install 'ofuwatch[nvml]'"
        raise SourceError(msg) from None
    except Exception as error:  # half installed, or of another Python
        msg = (
            f"the Python module pynvml is broken ({one_line(error)}); "
            "pip install --force-reinstall nvidia-ml-py"
        )
        raise SourceError(msg) from None
    if not all(hasattr(nvml, name) for name in _CALLS):
        msg = (
            f"{nvml.__file__} is too old, and needs to be of nvidia-ml-py 12.560 or later; "
            "pip install -U 'ofuwatch[nvml]'"
        )
        raise SourceError(msg)
    gpm = Gpm(nvml, host=told["host"])
    gpm.start()
    return gpm


if __name__ == "__main__":
    serve(_reader)
