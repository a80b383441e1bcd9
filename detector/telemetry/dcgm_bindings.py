"""DCGM's own Python bindings: where they are, and what their errors mean for an operator.

They are on no package index. NVIDIA's DCGM packages bring them, as flat modules in a folder
that is on nobody's path; bindings and library must be of one major version.
"""

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detector.telemetry.source import SourceError

# Where NVIDIA's packages put them: datacenter-gpu-manager-4-core, datacenter-gpu-manager.
PLACES = (
    "/usr/share/datacenter-gpu-manager-4/bindings/python3",
    "/usr/local/dcgm/bindings/python3",
)

# DCGM's return codes (dcgm_structs), by what is to be done.
LOST = frozenset({-21, -11, -54, -56, -57})  # the connection, or the engine behind it
NO_PROFILING = frozenset({-6, -17, -29, -33, -36})
CONTENTION = -37
MULTI_PASS = -38
NO_DATA, NOT_SUPPORTED, GPU_LOST, DETACHED = -14, -6, -18, -67

_TODO = {
    -6: "this GPU or engine does not support it",
    -11: "the host engine did not answer in time: if it lasts, `systemctl restart nvidia-dcgm`",
    -12: "bindings and host engine are of different versions: set bindings to the folder of "
    "the installed DCGM",
    -13: "the host engine does not know a field: install bindings and engine of one version",
    -17: "not permitted: run the host engine as root",
    -18: "a GPU is lost: see `dmesg` for its Xid, and reboot the node",
    -19: "a GPU must be reset: `nvidia-smi --gpu-reset`",
    -21: "no host engine answers there: `systemctl start nvidia-dcgm`, or set address",
    -24: "the host engine has no room for more groups: end what else watches, or restart it",
    -25: "libdcgm was not found: install datacenter-gpu-manager-4-core (or add its folder to "
    "LD_LIBRARY_PATH)",
    -29: "profiling counters need a host engine that runs as root",
    -33: "the profiling module is not loaded: install datacenter-gpu-manager-4-proprietary and "
    "restart nvidia-dcgm",
    -34: "somebody else uses it",
    -36: "this GPU has no profiling counters",
    -37: "another profiler (Nsight, CUPTI) holds the counters: end it, or wait",
    -38: "these counters cannot be sampled together on this GPU",
    -44: "the driver is too old for it",
    -54: "profiling is paused: `dcgmi profile --resume`",
    -56: "the host engine runs without the driver: `systemctl restart nvidia-dcgm`",
    -57: "the driver does not answer the host engine: see `dmesg`",
    -67: "GPUs are detached from the host engine",
}


@dataclass(frozen=True, slots=True)
class Bindings:
    """The modules that are used of them."""

    pydcgm: Any
    structs: Any
    fields: Any
    agent: Any


def find(configured: str = "") -> Bindings:
    """Return the bindings: importable as they are, else from a folder, which is appended.

    Appended, not put in front: their names are so plain (``logger``) that they would shadow
    others'.

    Raises
    ------
    SourceError
        When they are nowhere, or broken; with what to install.
    """
    for folder in (None, *_folders(configured)):
        if folder is not None:
            sys.path.append(folder)
        try:
            return Bindings(*map(importlib.import_module, _MODULES))
        except ModuleNotFoundError as error:
            if folder is not None:
                sys.path.remove(folder)
            if error.name != "pydcgm":
                msg = f"DCGM's Python bindings are incomplete: no module {error.name!r}"
                raise SourceError(msg) from None
    if configured:
        msg = f"no DCGM bindings (pydcgm.py) in {configured}: set bindings to their folder"
        raise SourceError(msg)
    msg = (
        "no DCGM bindings (pydcgm.py) on PYTHONPATH nor in "
        f"{' or '.join(PLACES)}: install datacenter-gpu-manager-4-core, or set bindings"
    )
    raise SourceError(msg)


# pydcgm first: the others import each other in circles, and only it knows where to begin.
_MODULES = ("pydcgm", "dcgm_structs", "dcgm_fields", "dcgm_agent")


def _folders(configured: str) -> Iterator[str]:
    for place in (configured,) if configured else PLACES:
        if (Path(place) / "pydcgm.py").is_file():
            yield place


def explain(error: Exception) -> str:
    """Return one line: what DCGM said, and what to do about it."""
    code = code_of(error)
    said = " ".join(str(error).split()) or type(error).__name__
    todo = _TODO.get(code) if code is not None else None
    return f"{said} ({code}): {todo}" if todo else said


def code_of(error: Exception) -> int | None:
    """Return DCGM's return code of an exception of its bindings; None where it has none."""
    code = getattr(error, "value", None)
    return code if isinstance(code, int) else None
