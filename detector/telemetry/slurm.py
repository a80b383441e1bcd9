"""Slurm: which job has which GPUs of which host, by ``squeue`` or by slurmrestd.

Both are asked for the jobs that run and for those that ended lately; ``sacct`` (or slurmdbd,
by slurmrestd) is asked once, for the runs before ours. The forms that they answer in are
:mod:`detector.telemetry.slurm_json`'s.
"""

import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from detector.series import iso
from detector.telemetry.rest import Rest, json_of, secret
from detector.telemetry.scheduler import Census, Run, SchedulerError
from detector.telemetry.scheduler_settings import SlurmSettings
from detector.telemetry.slurm_json import read_jobs, read_past, text

# Every state but those that wait: they are most of a queue, and have no GPUs. All are known
# since 21.08; 21.08 and 22.05 ignore filters beside --json.
_STATES = ("RUNNING", "SUSPENDED", "STOPPED", "COMPLETING", "COMPLETED", "CANCELLED", "FAILED",
           "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE",
           "OUT_OF_MEMORY")  # fmt: skip

# Bound of an answer: 40,000 jobs of 6.3 KB, the size of one in 23.11.
_LONGEST = 1 << 28
_PIECE = 1 << 16
_TOLD = 300  # characters of an error that are shown

# slurmrestd's versions from Slurm 21.08 on, newest first; each release serves three or more.
_VERSIONS = tuple(f"v0.0.{number}" for number in range(46, 35, -1))


class Slurm:
    """The scheduler Slurm.

    Parameters
    ----------
    cluster
        What it is called where it does not say so itself.
    """

    name = "slurm"

    def __init__(
        self,
        settings: SlurmSettings,
        *,
        cluster: str = "",
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._environ = environ
        self._version = settings.version
        self._rest = (
            Rest(
                settings.url,
                ca_file=settings.ca_file,
                timeout_ms=settings.timeout,
                longest=_LONGEST,
            )
            if settings.via == "slurmrestd"
            else None
        )

    @property
    def every_ms(self) -> int:
        """How often it is asked."""
        return self._settings.interval

    @property
    def keep_ms(self) -> int:
        """How long its last answer counts."""
        return self._settings.keep

    def look(self, now_ms: int) -> Census:
        """Return who runs where.

        Raises
        ------
        SchedulerError
            When it does not say.
        """
        if self._rest is None:
            where = "squeue"
            command = [
                self._settings.squeue,
                "--all",
                f"--states={','.join(_STATES)}",
                "--json",
            ]
            document = _decoded(self._said(command, where), where)
        else:
            where = "slurmrestd"
            document = self._asked(self._rest, "/slurm/{version}/jobs", {})
        try:
            return read_jobs(document, cluster=self._cluster)
        except ValueError as error:
            raise SchedulerError(_not_understood(where, document, error)) from None

    def past(self, now_ms: int) -> tuple[Run, ...]:
        """Return the runs of the last days.

        Raises
        ------
        SchedulerError
            When there is no accounting that says.
        """
        since = now_ms - self._settings.past
        if self._rest is None:
            if not self._settings.sacct:
                return ()
            start = iso(since // 1000 * 1000).rstrip("Z")
            command = [self._settings.sacct, "--allusers", f"--starttime={start}", "--json"]
            document = _decoded(self._said(command, "sacct", TZ="UTC"), "sacct")
        else:
            query = {"start_time": since // 1000}
            document = self._asked(self._rest, "/slurmdb/{version}/jobs", query)
        try:
            return read_past(document, cluster=self._cluster)
        except ValueError as error:
            raise SchedulerError(_not_understood("sacct", document, error)) from None

    def close(self) -> None:
        """Let go of the connection."""
        if self._rest is not None:
            self._rest.close()

    def _said(self, command: Sequence[str], what: str, **environ: str) -> bytes:
        env = {**self._environ, "LC_ALL": "C", **environ}
        return output(command, what=what, timeout_s=self._settings.timeout / 1000, environ=env)

    def _asked(self, rest: Rest, path: str, query: Mapping[str, int]) -> Any:
        """Return slurmrestd's answer, in the newest version that it serves."""
        settings = self._settings
        token = secret(
            file=settings.token_file,
            env=settings.token_env,
            environ=self._environ,
            what="slurm: token_file",
        )
        headers = {"X-SLURM-USER-TOKEN": token} if token else {}
        if settings.user:
            headers["X-SLURM-USER-NAME"] = settings.user
        for version in (self._version,) if self._version else _VERSIONS:
            answer = rest.get(path.format(version=version), query=query, headers=headers)
            if answer.status != 404 or self._version:
                break
        if answer.status == 404:
            served = f"{self._version} of" if self._version else "any known version of"
            msg = (
                f"slurmrestd at {rest.where} does not serve {served} {path.split('/')[1]}; see "
                "`slurmrestd -d list` and set version"
            )
            raise SchedulerError(msg)
        if answer.status in (401, 403):
            msg = (
                f"slurmrestd at {rest.where} refuses the token ({answer.status}); "
                "make a new one with `scontrol token lifespan=...` into token_file"
            )
            raise SchedulerError(msg)
        document = _checked(json_of(answer, f"slurmrestd at {rest.where}"), "slurmrestd")
        if answer.status != 200:
            msg = f"slurmrestd at {rest.where} answered {answer.status}"
            raise SchedulerError(msg)
        self._version = version
        return document


def output(
    command: Sequence[str], *, what: str, timeout_s: float, environ: Mapping[str, str]
) -> bytes:
    """Return what a command prints, or why it prints nothing of use.

    Raises
    ------
    SchedulerError
        When it is not there, fails, prints more than the bound, or is not done in time; it and
        what it started are killed then.
    """
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(environ),
                start_new_session=True,
            )
        except OSError as error:
            msg = (
                f"{command[0]} cannot be run ({error.strerror}); install Slurm's client, set "
                f"{what} to its path, or use slurmrestd"
            )
            raise SchedulerError(msg) from None
        try:
            printed = _printed(process, what=what, timeout_s=timeout_s)
        finally:
            _end(process)
        if process.returncode == 0:
            return printed
        errors.seek(0)
        raise SchedulerError(_failed(errors.read(1 << 14), printed, what, process.returncode))


def _printed(process: subprocess.Popen[bytes], *, what: str, timeout_s: float) -> bytes:
    """Read a command's output up to its end, the bound or the deadline."""
    assert process.stdout is not None
    deadline = time.monotonic() + timeout_s
    late = f"{what} was not done in {timeout_s:g} s and was stopped; is Slurm overloaded?"
    pieces, size = [], 0
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                raise SchedulerError(late)
            piece = os.read(process.stdout.fileno(), _PIECE)
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
            if size > _LONGEST:
                msg = f"{what} printed more than {_LONGEST >> 20} MiB and was stopped"
                raise SchedulerError(msg)
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise SchedulerError(late) from None
    return b"".join(pieces)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave nothing behind: neither the command nor what it started."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _failed(errors: bytes, printed: bytes, what: str, code: int) -> str:
    """Say in one line why a command failed, and what to do."""
    lines = (
        (errors.strip() or printed[: 1 << 12].strip()).decode("utf-8", "replace").splitlines()
    )
    told = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "")
    told = told.strip()[:_TOLD] or f"exit {code}"
    if "--json" in told and ("unrecognized" in told or "invalid option" in told):
        return (
            f"this {what} knows no --json ({told}): Slurm 21.08 or later is needed, or give "
            "counters a job label by dcgm-exporter's job mapping"
        )
    if "serializer" in told or "data_parser" in told or "plugin" in told.lower():
        return (
            f"{what} cannot write JSON ({told}); install Slurm's JSON plugin or use slurmrestd"
        )
    return f"{what} failed: {told}"


def _decoded(printed: bytes, what: str) -> Any:
    try:
        document = msgspec.json.decode(printed)
    except msgspec.DecodeError as error:
        start = printed[:40].decode("utf-8", "replace")
        msg = f"{what} printed no JSON ({error}): {start!r}"
        raise SchedulerError(msg) from None
    return _checked(document, what)


def _checked(document: Any, what: str) -> Any:
    """Return an answer that is not empty because of an error."""
    if not isinstance(document, Mapping):
        return document
    errors = document.get("errors")
    if not errors or not isinstance(errors, list) or document.get("jobs"):
        return document
    first = errors[0] if isinstance(errors[0], Mapping) else {}
    told = text(first.get("error")) or text(first.get("description")) or str(errors[0])
    msg = f"{what} answered with an error: {told[:_TOLD]}"
    raise SchedulerError(msg)


def _not_understood(where: str, document: Any, error: ValueError) -> str:
    meta = document.get("meta") if isinstance(document, Mapping) else None
    known = meta if isinstance(meta, Mapping) else {}
    release = known.get("slurm") or known.get("Slurm") or {}
    version = release.get("release", "unknown") if isinstance(release, Mapping) else "unknown"
    return f"{where}'s JSON is not understood: {error} (Slurm {version})"
