"""DCGM's own Python bindings: where they are, and what their errors mean for an operator.

They are on no package index. NVIDIA's DCGM packages bring them, as flat modules in a folder
that is on nobody's path; bindings and library must be of one major version.
"""

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detector.telemetry.source import SourceError, one_line

# Where NVIDIA's packages put them: datacenter-gpu-manager-4-core, datacenter-gpu-manager.
PLACES = (
    "/usr/share/datacenter-gpu-manager-4/bindings/python3",
    "/usr/local/dcgm/bindings/python3",
)
_PACKAGES = "datacenter-gpu-manager-4-core (DCGM 3: datacenter-gpu-manager)"

_VERSION = "nv-hostengine --version tells which DCGM runs: set bindings to its folder"
_LOG = "journalctl -u nvidia-dcgm on the node says more"

# DCGM's return codes (dcgm_structs), by what is to be done.
# The connection, or the engine behind it, which may be paused: then no answer is one.
LOST = frozenset({-21, -11, -54, -56, -57})
NO_PROFILING = frozenset({-6, -17, -29, -33, -36})
CONTENTION, MULTI_PASS, PAUSED, NO_COUNTERS, NO_LIBRARY = -37, -38, -54, -36, -25
GONE = frozenset({-18, -67})  # a GPU that was lost, or taken from the engine

# Code -> what it is; what is to be done.
_TODO = {
    -6: "this GPU or engine does not support it; dcgmi discovery -l",
    -11: "the host engine did not answer in time; if it lasts, systemctl restart nvidia-dcgm",
    -12: f"bindings and host engine are of different versions; {_VERSION}",
    -13: f"the host engine does not know a field, being of another version; {_VERSION}",
    -17: "not permitted; let the host engine run as root (systemctl cat nvidia-dcgm)",
    -18: "a GPU is lost; dmesg | grep Xid on the node, then reboot it",
    -19: "a GPU must be reset; nvidia-smi --gpu-reset",
    -21: "no host engine answers there; systemctl start nvidia-dcgm, but not where a "
    'dcgm-exporter has an engine of its own: there use type = "exporter"',
    -24: "the host engine has no room for more groups; systemctl restart nvidia-dcgm",
    -25: f"libdcgm was not found; install {_PACKAGES}, or add its folder to LD_LIBRARY_PATH",
    -29: "profiling counters of GPUs before Hopper need a host engine that runs as root; "
    "systemctl cat nvidia-dcgm shows User=, which must be root",
    -33: "the profiling module is not loaded; install datacenter-gpu-manager-4-proprietary "
    "(DCGM 3: it is in datacenter-gpu-manager), then systemctl restart nvidia-dcgm",
    -34: "somebody else uses it; if it lasts, systemctl restart nvidia-dcgm",
    -36: "this GPU has no profiling counters; dcgmi profile --list -i 0 says which have",
    -37: "another profiler holds the counters; end it (Nsight, ncu, CUPTI), and they come back",
    -38: "these counters cannot be sampled together; dcgmi profile --list -i 0 says which can",
    -44: "the driver is too old for it; update the driver",
    -54: "profiling is paused; dcgmi profile --resume",
    -56: "the host engine runs without the driver; systemctl restart nvidia-dcgm",
    -57: "the driver does not answer the host engine; dmesg | grep -e Xid -e NVRM",
    -67: "GPUs are detached from the host engine; systemctl restart nvidia-dcgm",
}
# Of a GPU that the engine lists, takes watches of, and gives no sample of.
SILENT = "the host engine delivers nothing of it; dmesg | grep Xid on the node, then reboot it"


@dataclass(frozen=True, slots=True)
class Bindings:
    """The modules that are used of them."""

    pydcgm: Any
    structs: Any
    fields: Any
    agent: Any


def find(configured: str = "") -> Bindings:
    """Return the bindings: of the configured folder, else importable as they are, else found.

    A folder is appended, not put in front: their names are so plain (``logger``) that they
    would shadow others'.

    Raises
    ------
    SourceError
        When they are nowhere, or broken; with what to install.
    """
    for folder in (configured,) if configured else ("", *PLACES):
        if folder and not (Path(folder) / "pydcgm.py").is_file():
            continue
        if folder:
            sys.path.append(folder)
        elif importlib.util.find_spec("pydcgm") is None:
            continue
        found = _imported(folder)
        told = str(Path(found.pydcgm.__file__).parent)
        if configured and Path(told).resolve() != Path(configured).resolve():
            msg = f"PYTHONPATH has other DCGM bindings, in {told}; take them off it"
            raise SourceError(msg)
        return found
    if configured:
        msg = f"no DCGM bindings (pydcgm.py) in {configured}; set bindings to their folder"
        raise SourceError(msg)
    msg = (
        f"no DCGM bindings (pydcgm.py) on PYTHONPATH nor in {' or '.join(PLACES)}; install "
        f"{_PACKAGES}, or set bindings to their folder"
    )
    raise SourceError(msg)


# pydcgm first: the others import each other in circles, and only it knows where to begin.
_MODULES = ("pydcgm", "dcgm_structs", "dcgm_fields", "dcgm_agent")


def _imported(folder: str) -> Bindings:
    try:
        return Bindings(*map(importlib.import_module, _MODULES))
    except Exception as error:  # of another Python, half installed, or cut short
        broken = f"the DCGM bindings {folder or 'on PYTHONPATH'} are broken"
        msg = f"{broken} ({one_line(error)}); install {_PACKAGES} again"
        raise SourceError(msg) from None


def explain(error: Exception) -> str:
    """Return one line: what DCGM said, what that is, and what to do about it."""
    code = code_of(error)
    said = " ".join(str(error).split()) or type(error).__name__
    if code is None:
        return said
    return f"{said} ({code}): {of_code(code)}" if code in _TODO else f"{said} ({code}); {_LOG}"


def of_code(code: int) -> str:
    """Return what a code that is known here is, and what to do about it."""
    return _TODO[code]


def code_of(error: Exception) -> int | None:
    """Return DCGM's return code of an exception of its bindings; None where it has none."""
    code = getattr(error, "value", None)
    return code if isinstance(code, int) else None
