"""Reports of jobs about themselves, into the inbox: there they join the job's scrape."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import redis

from detector.metric import METRICS
from detector.store.keys import Keys, is_job
from detector.store.server import Server


class _Report(Protocol):
    @property
    def job(self) -> str: ...
    @property
    def time_ms(self) -> int: ...
    @property
    def values(self) -> Mapping[str, float]: ...


class Intake:
    """Writes reports into ``ofu:in``.

    Raises
    ------
    StoreError
        From :meth:`post`, when the server cannot be used; then none or some were taken.
    """

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._server = Server(client)
        self._key = keys.inbox

    def post(self, reports: Sequence[_Report]) -> None:
        """Write all of them as one transaction."""
        replies = self._server.atomic([self._command(report) for report in reports])
        for answer in replies:
            if isinstance(answer, redis.RedisError):
                msg = f"{self._key} is no stream: {answer}"
                raise OSError(msg)

    def _command(self, report: _Report) -> list[str]:
        fields = ["XADD", self._key, "*", "job", report.job, "ts", str(report.time_ms)]
        for name, value in report.values.items():
            fields += [METRICS[name].field, f"{value:.7g}"]
        return fields

    @staticmethod
    def is_job(job: str) -> bool:
        """Whether a job can have this id."""
        return is_job(job)
