"""What a figure was measured on, and what a process has used."""

import os
import platform
import resource
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path


def machine() -> str:
    """Return one line: processor, cores, system, Python and the versions that matter."""
    system = f"{platform.system()} {platform.machine()}"
    versions = ", ".join(f"{name} {version(name)}" for name in ("numpy", "redis", "hiredis"))
    return (
        f"{os.cpu_count()} cores, {_processor()}, {system}, "
        f"CPython {platform.python_version()}, {versions}"
    )


def today() -> str:
    """Return the date, UTC."""
    return datetime.now(tz=UTC).date().isoformat()


def _processor() -> str:
    """Return the processor's name as the kernel gives it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


def resident_mb() -> float:
    """Return the memory that this process holds now, MB; its peak where only that is known."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1000
    return peak_mb()


def peak_mb() -> float:
    """Return the most memory that this process ever held, MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1000  # macOS counts bytes
