"""The peers' own environment: ``.venv/peers``, made from requirements/bench.txt."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "bench.txt"
HOME = ROOT / ".venv" / "peers"


def python(say: Callable[[str], None]) -> Path:
    """Return the peers' Python; installs what the lock says when that is not there yet.

    Raises
    ------
    RuntimeError
        When the packages could not be installed.
    """
    stamp, wanted = HOME / "lock", hashlib.sha256(LOCK.read_bytes()).hexdigest()
    interpreter = HOME / "bin" / "python"
    if stamp.exists() and stamp.read_text() == wanted:
        return interpreter
    say(f"installing the peers into {HOME.relative_to(ROOT)} (only this once)")
    uv = str(ROOT / ".venv" / "bin" / "uv")
    for step in (
        (uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(HOME)),
        (uv, "pip", "sync", "--quiet", "--python", str(interpreter), "--require-hashes",
         str(LOCK)),
    ):  # fmt: skip
        if subprocess.run(step, check=False).returncode:
            msg = (
                f"the peers could not be installed from {LOCK}; run `make setup` and try again"
            )
            raise RuntimeError(msg)
    stamp.write_text(wanted)
    return interpreter


def told(interpreter: Path, arguments: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the lines of ``benchmarks.detection.peers`` as they come.

    Raises
    ------
    RuntimeError
        When it ends in failure.
    """
    command = (str(interpreter), "-m", "benchmarks.detection.peers", *arguments)
    # One thread each: the benchmark shares the cores out itself. What old packages say of new
    # Pythons is not our subject.
    ours = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, **ours}
    )
    assert process.stdout is not None  # it is a pipe
    with process:
        for line in process.stdout:
            yield json.loads(line)
    if process.returncode:
        msg = f"the peers broke off with code {process.returncode}; see the lines above"
        raise RuntimeError(msg)
