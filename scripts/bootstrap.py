"""Makes the project's own .venv, and its locks. Standard library only: it runs before all else.

``bootstrap.py`` makes or repairs the environment, and returns at once when nothing changed;
``bootstrap.py current`` only says, by its exit code, whether anything changed;
``bootstrap.py lock`` writes requirements/*.txt anew from pyproject.toml;
``bootstrap.py lock-check`` says whether pyproject.toml changed since they were written.
Nothing is installed outside ``.venv``; no right of root is needed.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
UV = VENV / "bin" / "uv"
LOCKS = ROOT / "requirements"
STAMP = VENV / "ofuwatch-setup"  # what the finished set-up was made from
UNFINISHED = VENV / "ofuwatch-setup-unfinished"  # there while a set-up runs

# What decides the content of .venv; a change of any of them installs anew.
SOURCES = ("requirements/uv.txt", "requirements/dev.txt", "pyproject.toml")

PREFIX = "# Locked from the dependencies in pyproject.toml with fingerprint "


def main(arguments: list[str]) -> int:
    """Do what the command line says and return the exit code."""
    match arguments:
        case []:
            return ensure()
        case ["current"]:
            return 0 if is_current() else 1
        case ["lock"]:
            return lock()
        case ["lock-check"]:
            return lock_check()
        case _:
            return complain("usage: bootstrap.py [current | lock | lock-check]")


def ensure() -> int:
    """Make the environment what the locks say; a second call finds it so and does nothing."""
    if is_current():
        return 0
    # Two makes at once would install into one another's way: the second waits for the first.
    with (ROOT / "pyproject.toml").open() as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        return 0 if is_current() else install()


def is_current() -> bool:
    """Whether the environment was finished from the files that are here now."""
    return PYTHON.exists() and STAMP.exists() and STAMP.read_text() == fingerprint()


def fingerprint() -> str:
    """Hash of all that decides the environment; the folder too, for scripts name it."""
    digest = hashlib.sha256(str(ROOT).encode())
    for source in SOURCES:
        digest.update((ROOT / source).read_bytes())
    return digest.hexdigest()


def install() -> int:
    """Install uv, the locked packages and the project, saying so; 0 when all went well."""
    began = time.monotonic()
    if not is_sound():
        shutil.rmtree(VENV, ignore_errors=True)
        say(f"making .venv with Python {sys.version.split()[0]} ({sys.executable})")
        if run(sys.executable, "-m", "venv", str(VENV)):
            shutil.rmtree(VENV, ignore_errors=True)
            return complain(
                "could not make a virtual environment; on Debian and Ubuntu install"
                f" python{sys.version_info[0]}.{sys.version_info[1]}-venv and try again"
            )
    STAMP.unlink(missing_ok=True)
    UNFINISHED.touch()
    say("installing the locked packages into .venv (about 700 MB on disk, only this once)")
    uv = (str(UV), "pip")
    steps = (
        (str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--quiet",
         "install", "--require-hashes", "-r", "requirements/uv.txt"),
        (*uv, "sync", "--python", str(PYTHON), "--require-hashes", "requirements/dev.txt"),
        # The project itself, editable. Its build needs hatchling, which the lock holds:
        # without isolation nothing is fetched that the lock does not name.
        (*uv, "install", "--python", str(PYTHON), "--quiet", "--offline", "--no-deps",
         "--no-build-isolation", "--reinstall-package", "ofuwatch", "--editable", "."),
    )  # fmt: skip
    for step in steps:
        if run(*step):
            return complain(
                "the set-up stopped; see the lines above. It needs PyPI (or the index that pip"
                " and uv are set up for). Run the same make again to repair it"
            )
    UNFINISHED.unlink()
    STAMP.write_text(fingerprint())
    say(f"ready after {time.monotonic() - began:.0f} s; next time this takes no time")
    return 0


def is_sound() -> bool:
    """Whether .venv can be built upon: no set-up broke off in it; its Python and pip run."""
    if UNFINISHED.exists() or not PYTHON.exists():
        return False
    probe = "import sys, pip; sys.exit(sys.version_info < (3, 11))"
    return run(str(PYTHON), "-c", probe, quiet=True) == 0


def lock() -> int:
    """Write the three locks anew: newest versions that pyproject.toml allows, with hashes."""
    outputs = {
        "uv.txt": ("--group", "uv"),
        "service.txt": ("pyproject.toml",),
        # Development runs on the very versions that the service is locked to.
        "dev.txt": ("pyproject.toml", "--group", "dev", "-c", "requirements/service.txt"),
    }
    for name, inputs in outputs.items():
        target = LOCKS / name
        # No index address, host or path goes into a lock: it installs from any index.
        flags = (
            "--universal", "--python-version", "3.11", "--generate-hashes", "--upgrade",
            "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links",
        )  # fmt: skip
        command = (str(UV), "pip", "compile", *inputs, *flags, "--quiet", "-o", str(target))
        if run(*command):
            return complain(f"could not resolve requirements/{name}; see the lines above")
        target.write_text(f"{PREFIX}{dependencies()}\n{target.read_text()}")
        say(f"wrote requirements/{name}")
    return 0


def lock_check() -> int:
    """Return 0 when every lock was written from the dependencies that pyproject.toml has."""
    expected = PREFIX + dependencies()
    for name in ("uv.txt", "service.txt", "dev.txt"):
        lines = (LOCKS / name).read_text().splitlines()
        if not lines or lines[0] != expected:
            return complain(
                f"requirements/{name} is older than the dependencies in pyproject.toml;"
                " run `make lock` and commit what it writes"
            )
    return 0


def dependencies() -> str:
    """Hash of what pyproject.toml says of Python and packages, and nothing else of it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = (
        project["project"]["requires-python"],
        project["project"]["dependencies"],
        project["dependency-groups"],
    )
    return hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()[:16]


def run(*command: str, quiet: bool = False) -> int:
    """Run a command in the project's folder and return its exit code."""
    sink = subprocess.DEVNULL if quiet else None
    # A set PYTHONHOME or an activated environment would turn pip and uv elsewhere.
    kept = {k: v for k, v in os.environ.items() if k not in {"PYTHONHOME", "VIRTUAL_ENV"}}
    return subprocess.run(
        command, cwd=ROOT, env=kept, stdout=sink, stderr=sink, check=False
    ).returncode


def say(line: str) -> None:
    """Print one line of progress."""
    sys.stdout.write(f"set-up: {line}\n")
    sys.stdout.flush()


def complain(line: str) -> int:
    """Print one line that says what to do, and return exit code 1."""
    sys.stderr.write(f"set-up: {line}\n")
    return 1


if __name__ == "__main__":
    try:
        raise SystemExit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        raise SystemExit(complain("interrupted; the next make repairs it")) from None
