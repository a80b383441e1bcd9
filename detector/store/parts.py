"""Parts of jobs' scrapes, as collectors have them, into the inbox and the jobs' keys."""

from collections import defaultdict
from collections.abc import Sequence
from math import isnan

import numpy as np
import redis

from detector.analysis.aggregate import Merged, Part, merge
from detector.fleet import Job
from detector.series import ContextEvent
from detector.store.entries import entry_ms
from detector.store.history import History, Sample
from detector.store.keys import Keys, is_job
from detector.store.letters import written
from detector.store.server import Server


class Parts:
    """Takes what a collector found.

    Raises
    ------
    StoreError
        From every method, when the server cannot be used; the same may be given again.
    """

    def __init__(self, client: redis.Redis, keys: Keys, history: History) -> None:
        self._server = Server(client)
        self._keys, self._key = keys, keys.inbox
        self._history = history

    def post(self, parts: Sequence[Part]) -> None:
        """Write each part as its host's entry of the inbox, in one round trip.

        An id that no key can be made of is refused there, and told.
        """
        flats = written(parts)
        replies = self._server.pipeline(["XADD", self._key, "*", *flat] for flat in flats)
        for reply in replies:
            if isinstance(reply, redis.RedisError):
                msg = f"{self._key} is no stream: {reply}"
                raise OSError(msg)

    def introduce(self, jobs: Sequence[Job]) -> None:
        """Write who jobs are; what others wrote about them stays."""
        self._history.introduce(job for job in jobs if is_job(job.id))

    def newest(self, jobs: Sequence[str]) -> dict[str, int]:
        """Return the time of the newest entry, ms, of the jobs that have one."""
        known = [job for job in jobs if is_job(job)]
        replies = self._server.pipeline(
            ["XREVRANGE", self._keys.samples(job), "+", "-", "COUNT", 1] for job in known
        )
        return {
            job: entry_ms(reply[0][0])
            for job, reply in zip(known, replies, strict=True)
            if isinstance(reply, list) and reply
        }

    def fill(self, parts: Sequence[Part]) -> None:
        """Write parts that are whole scrapes into the histories, each job's oldest first.

        GPUs that a job's roster has not yet come at its end, as live.
        """
        by_job: defaultdict[str, list[Part]] = defaultdict(list)
        for part in parts:
            if is_job(part.job):
                by_job[part.job].append(part)
        samples: list[Sample] = []
        for job, told in self._history.describe_many(by_job).items():
            known = {gpu.uuid for gpu in told.roster}
            seen = {gpu.uuid: gpu for part in by_job[job] for gpu in part.roster}
            new = [gpu for uuid, gpu in seen.items() if uuid not in known]
            roster = self._history.enrol(job, new).roster if new else told.roster
            for part in by_job[job]:
                if (merged := merge([part], roster)) is not None:
                    samples.append(_sample(part, merged))
        self._history.write_many(
            [one for one in samples if not isnan(one.ofu) or one.fields["unusable"]]
        )

    def announce(self, events: Sequence[tuple[str, ContextEvent]]) -> None:
        """Write what happened to jobs."""
        for job, event in events:
            if is_job(job):
                self._history.announce(job, event)


def _sample(part: Part, merged: Merged) -> Sample:
    counts = {"gpus": float(merged.gpus), "unusable": float(merged.unusable)}
    fields = {**merged.fields, **counts}
    gpus = np.array(merged.gpu_ofu) if merged.gpu_ofu else None
    return Sample(job=part.job, time_ms=part.time_ms, ofu=merged.ofu, fields=fields, gpus=gpus)
