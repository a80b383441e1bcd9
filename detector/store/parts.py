"""Parts of jobs' scrapes, as collectors have them, into the inbox and the jobs' keys."""

from collections.abc import Sequence

import numpy as np
import redis

from detector.analysis.aggregate import Part
from detector.fleet import Job
from detector.series import ContextEvent
from detector.store.entries import encode, pack_gpus
from detector.store.history import History
from detector.store.keys import Keys, is_job
from detector.store.server import Command, Server


class Parts:
    """Takes what a collector found.

    Raises
    ------
    StoreError
        From every method, when the server cannot be used; the same may be given again.
    """

    def __init__(self, client: redis.Redis, keys: Keys, history: History) -> None:
        self._server = Server(client)
        self._key = keys.inbox
        self._history = history

    def post(self, parts: Sequence[Part]) -> None:
        """Write each part as its host's entry of the inbox, in one round trip."""
        replies = self._server.pipeline(
            [self._command(part) for part in parts if is_job(part.job)]
        )
        for reply in replies:
            if isinstance(reply, redis.RedisError):
                msg = f"{self._key} is no stream: {reply}"
                raise OSError(msg)

    def _command(self, part: Part) -> Command:
        fields = dict(part.fields) | {"gpus": float(part.gpus)}
        flat: list[str | bytes] = ["job", part.job, "host", part.host or "?"]
        flat += ["ts", str(part.time_ms), *encode(part.ofu, fields)]
        if part.roster:
            flat += ["u", ",".join(gpu.uuid for gpu in part.roster)]
            flat += ["g", pack_gpus(np.array(part.gpu_ofu, dtype=np.float64))]
        if not part.fresh:
            flat += ["held", "1"]
        if part.faults:
            flat += ["q", ",".join(f"{name}:{n}" for name, n in sorted(part.faults.items()))]
        return ["XADD", self._key, "*", *flat]

    def introduce(self, jobs: Sequence[Job]) -> None:
        """Write who jobs are; what others wrote about them stays."""
        self._history.introduce(job for job in jobs if is_job(job.id))

    def announce(self, events: Sequence[tuple[str, ContextEvent]]) -> None:
        """Write what happened to jobs."""
        for job, event in events:
            if is_job(job):
                self._history.announce(job, event)
