"""The HPC job mapping: files in which a prolog says which job has which GPU of this host.

The directory is the one that dcgm-exporter reads. A file is named after a GPU's number as DCGM
gives it, ``3``, or after an instance of it, ``3.7``; each line is the id of a job.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from detector.fleet import Placement
from detector.telemetry.scheduler import Census, Run, SchedulerError

_NAME = re.compile(r"(\d+)(?:\.(\d+))?", re.ASCII)
_LONGEST = 1 << 16  # bytes of one file; a GPU has a handful of jobs
_KEEP_MS = 60_000  # a local directory that cannot be read is wrong at once, but for an outage


class HpcDirectory:
    """The mapping of one host.

    Parameters
    ----------
    host
        This host, as the readings name it.
    """

    name = "hpc"
    every_ms = 0  # at each round: a few small files, as new as the readings
    keep_ms = _KEEP_MS

    def __init__(self, directory: str, *, host: str) -> None:
        self._directory = Path(directory)
        self._host = host
        self._since: dict[tuple[str, str, str], int] = {}
        self._looked_ms = 0

    def look(self, now_ms: int) -> Census:
        """Return who has which GPU.

        Raises
        ------
        SchedulerError
            When the directory cannot be read.
        """
        try:
            holds = dict(self._holds())
        except OSError as error:
            msg = (
                f"job mapping {self._directory} cannot be read: {error.strerror}; let the "
                "prolog make it, or set hpc_directory to where it is"
            )
            raise SchedulerError(msg) from None
        # A job that was not there the last time began in between; the file's time says when.
        self._since = {
            hold: self._since.get(hold, min(max(written_ms, self._looked_ms), now_ms))
            for hold, written_ms in holds.items()
        }
        self._looked_ms = now_ms
        return Census(
            placements=tuple(
                Placement(
                    job=job, host=self._host, index=index, instance=instance, start_ms=since_ms
                )
                for (index, instance, job), since_ms in sorted(self._since.items())
            )
        )

    def past(self, now_ms: int) -> tuple[Run, ...]:
        """Return nothing: files tell of no past."""
        return ()

    def close(self) -> None:
        """Nothing is open."""

    def _holds(self) -> Iterator[tuple[tuple[str, str, str], int]]:
        for file in self._directory.iterdir():
            match = _NAME.fullmatch(file.name)
            if match is None:
                continue
            try:
                with file.open("rb") as opened:
                    content = opened.read(_LONGEST)
                    written_ms = os.fstat(opened.fileno()).st_mtime_ns // 1_000_000
            except OSError:  # the epilog removed it since, or it is a folder
                continue
            for line in content.decode("utf-8", "replace").splitlines():
                if job := line.strip():
                    yield (match[1], match[2] or "", job), written_ms
