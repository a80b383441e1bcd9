"""Who runs where: what the labels of the counters say, and what the schedulers say, in one.

Labels come first: they were written where the counter was read, when it was read. A scheduler
knows what no label says: when a job began and ended to the second, who it belongs to, which
earlier run it continues, and on a fleet without labels which job it is at all.
"""

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import replace

import msgspec

from detector.fleet import Fleet, Job, Placements, host_key
from detector.reading import Reading, Scrape
from detector.series import ContextEvent, Interval
from detector.telemetry.heard import Answer, Heard
from detector.telemetry.hpc import HpcDirectory
from detector.telemetry.identity import IdentitySettings, minor_of
from detector.telemetry.kubernetes import Kubernetes
from detector.telemetry.runs import lineage
from detector.telemetry.scheduler import Census, Run, Scheduler
from detector.telemetry.scheduler_settings import KubernetesSettings, SlurmSettings
from detector.telemetry.slurm import Slurm
from detector.telemetry.whose import Said, Whose

# Values of a GPU that was not seen just before are a mean of so long: the interval at which
# dcgm-exporter collects unless it is told otherwise.
_COLLECTED_MS = 30_000
# One that was not seen for longer is seen anew. Chosen: one collection may fail.
_LONGEST_MS = 2 * _COLLECTED_MS
# How long a round waits for schedulers. Chosen: sources may take half of a round's 10 s before.
_PATIENCE_S = 4.0
# And for the first answer of one, which has all of its pods' owners to ask for.
_FIRST_PATIENCE_S = 30.0
# Labels may lag so long behind a scheduler that says a job is over. Chosen: two collections.
_LATE_MS = 60_000
# GPUs that are no longer seen are forgotten after so long.
_REMEMBER_MS = 600_000
# Runs are remembered for their successors as long as the detector remembers their levels.
_RUNS_MS = 8 * 24 * 3_600_000
# Jobs that only labels describe are remembered up to so many; chosen, some 5 MB.
_MOST_SHOWN = 10_000
# Words of exporters for who a job belongs to (AMD's and the Slurm job exporter's).
_OWNER = ("job_user", "user")
_TEAM = ("account", "exported_namespace", "namespace")


class _Seen(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A GPU's last reading, what its labels say, and which jobs those name."""

    reading: Reading
    said: tuple[Said, ...]
    named: tuple[str, ...]


class Register:
    """Says of every reading which jobs it is of, and of every job who it is.

    Parameters
    ----------
    cluster
        What the jobs' descriptions say where their scheduler names no cluster.
    patience_s
        How long a round waits for schedulers; what comes later counts in the next one.
    """

    def __init__(
        self,
        schedulers: Sequence[Scheduler] = (),
        identity: IdentitySettings = IdentitySettings(),  # noqa: B008 - frozen
        *,
        cluster: str = "",
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._patience_s = patience_s
        self._known = [Heard(scheduler=one) for one in schedulers]
        self.whose = Whose(identity=identity)  # as of the last readings
        self._cluster = cluster
        self._now_ms = 0
        # By target too: two exporters of one host collect, and name jobs, each in its own way.
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._runs: dict[str, Run] = {}
        self._lineages: dict[str, tuple[str, ...]] = {}
        self._shown: dict[str, Job] = {}
        self._met: set[str] = set()
        self._restarts: list[tuple[str, ContextEvent]] = []

    def refresh(self, now_ms: int) -> None:
        """Ask the schedulers that it is time to ask; what one does not say is kept a while.

        All at once: one that hangs costs a round its patience, and no other its answer.
        """
        self._now_ms = now_ms
        first = [known.ask(now_ms) for known in self._known]
        owed = [known.under_way for known in self._known if known.under_way]
        wait(owed, timeout=_FIRST_PATIENCE_S if any(first) else self._patience_s)
        for known in self._known:
            answer = known.hear()
            if answer is not None:
                for run in answer.past:
                    self._runs.setdefault(run.job.id, run)
                if answer.census is not None:
                    self._meet(known.scheduler.name, answer.census, answer)
        self._forget(now_ms)

    @property
    def troubles(self) -> tuple[str, ...]:
        """One line for all that schedulers do not answer: why, and what counts meanwhile."""
        return tuple(line for known in self._known for line in known.troubles(self._now_ms))

    def identify(self, scrapes: Iterable[Scrape]) -> tuple[Scrape, ...]:
        """Return the scrapes with the jobs of each reading, or between whom its GPU changed.

        Without whole GPUs that are read by instance too: those are the sum of their instances.
        """
        scrapes = tuple(scrapes)
        readings = [reading for scrape in scrapes for reading in scrape.readings]
        live = [known for known in self._known if known.fresh(self._now_ms)]
        self.whose = replace(
            self.whose,
            placements=Placements(one for known in live for one in known.holds.values()),
            fleet=_fleet(readings),
            # A job's other names stay true when its scheduler is silent, and after its end.
            aliases={
                name: job for known in self._known for name, (job, _) in known.aliases.items()
            },
        )
        return tuple(
            msgspec.structs.replace(
                scrape,
                readings=tuple(
                    self._identified(reading, scrape.target)
                    for reading in scrape.readings
                    if not self.whose.is_cut(reading)
                ),
            )
            for scrape in scrapes
        )

    def describe(self, jobs: Iterable[str]) -> tuple[Job, ...]:
        """Return who the jobs are, as far as their scheduler or their labels say it."""
        found = []
        for id in jobs:
            run = self._runs.get(id)
            shown = self._shown.get(id, Job(id=id))
            job = shown if run is None else run.job
            found.append(
                msgspec.structs.replace(
                    job,
                    owner=job.owner or shown.owner,
                    team=job.team or shown.team,
                    gpu_model=job.gpu_model or shown.gpu_model,
                    cluster=job.cluster or self._cluster,
                    lineage=self._lineages.get(id, ()),
                )
            )
        return tuple(found)

    def restarts(self) -> tuple[tuple[str, ContextEvent], ...]:
        """Return the restarts under the same id since the last call, to be announced."""
        found = tuple(self._restarts)
        self._restarts.clear()
        return found

    def met(self) -> frozenset[str]:
        """Return the jobs that a scheduler named for the first time since the last call."""
        found = frozenset(self._met)
        self._met.clear()
        return found

    def close(self) -> None:
        """Let go of the schedulers' connections."""
        for known in self._known:
            known.scheduler.close()

    def _meet(self, scheduler: str, census: Census, answer: Answer) -> None:
        now_ms = answer.asked_ms
        for run in census.runs:
            before = self._runs.get(run.job.id)
            self._runs[run.job.id] = run
            if before is None:
                self._met.add(run.job.id)
            if before is not None and before.serial != run.serial and run.end_ms is None:
                at = now_ms if run.job.start_ms is None else run.job.start_ms
                event = ContextEvent(
                    kind="restart",
                    span=Interval(start_ms=at, end_ms=at),
                    note=f"{run.why} by {scheduler}",
                    told_ms=now_ms,
                )
                self._restarts.append((run.job.id, event))
        listed = {run.job.id for run in census.runs}
        for id, run in self._runs.items():
            gone = run.end_ms is None and id not in listed
            if gone and run.job.scheduler == scheduler:
                # One that continues it at once began since then, and so after its end.
                end_ms = max(run.job.start_ms or 0, answer.before_ms)
                self._runs[id] = replace(run, end_ms=end_ms)
        for run in census.runs:
            if run.end_ms is None and run.job.id not in self._lineages:
                self._lineages[run.job.id] = lineage(run, self._runs.values())

    def _identified(self, reading: Reading, target: str) -> Reading:
        key = target, reading.entity
        before = self._seen.get(key)
        # Mostly labels say what they said before.
        same = before is not None and reading.label_sets == before.reading.label_sets
        said = before.said if before is not None and same else self.whose.said(reading)
        named = self._going_on(self.whose.named(reading, said), reading.time_ms)
        self._seen[key] = _Seen(reading=reading, said=said, named=named)
        held = self.whose.held(
            reading, start_ms=_since(reading, before), end_ms=reading.time_ms
        )
        others = named if before is None else before.named
        if others != named or held.handover:
            between = tuple(sorted({*named, *others, *held.handover}))
            return msgspec.structs.replace(reading, jobs=(), handover=between)
        jobs = named or held.jobs
        for job in jobs:
            self._show(job, reading)
        return msgspec.structs.replace(reading, jobs=jobs)

    def _going_on(self, named: tuple[str, ...], at_ms: int) -> tuple[str, ...]:
        """Leave out jobs that are long over: an epilog that failed leaves their label."""
        for job in named:
            run = self._runs.get(job)
            if run is not None and run.end_ms is not None and at_ms - run.end_ms > _LATE_MS:
                named = tuple(one for one in named if one != job)
        return named

    def _show(self, job: str, reading: Reading) -> None:
        if job not in self._shown:
            labels = reading.labels
            self._shown[job] = Job(
                id=job,
                owner=next(filter(None, (labels.get(key, "") for key in _OWNER)), ""),
                team=next(filter(None, (labels.get(key, "") for key in _TEAM)), ""),
                gpu_model=reading.model,
            )

    def _forget(self, now_ms: int) -> None:
        """Drop GPUs that are no longer seen, and runs that nobody continues any more."""
        if len(self._shown) > _MOST_SHOWN:
            self._shown.clear()  # those that go on are shown again by this round's readings
        for gpu in [
            key
            for key, seen in self._seen.items()
            if now_ms - seen.reading.time_ms > _REMEMBER_MS
        ]:
            del self._seen[gpu]
        for id in [
            id
            for id, run in self._runs.items()
            if run.end_ms is not None and now_ms - run.end_ms > _RUNS_MS
        ]:
            del self._runs[id]
            self._lineages.pop(id, None)
            self._shown.pop(id, None)


def _since(reading: Reading, before: _Seen | None) -> int:
    """Return since when holds may have changed: since the GPU was seen last."""
    last_ms = 0 if before is None else before.reading.time_ms
    recent = 0 <= reading.time_ms - last_ms <= _LONGEST_MS
    return last_ms if recent else reading.time_ms - _COLLECTED_MS


def _fleet(readings: Iterable[Reading]) -> Fleet:
    gpus: dict[str, set[str]] = {}
    minors: dict[str, int] = {}
    cut: set[str] = set()
    for reading in readings:
        gpus.setdefault(host_key(reading.host), set()).add(reading.uuid)
        if reading.instance:
            cut.add(reading.uuid)
        minor = minor_of(reading.labels)
        if minor is not None:
            minors[reading.uuid] = minor
    counts = {host: len(found) for host, found in gpus.items()}
    return Fleet(counts=counts, minors=minors, cut=cut)


def schedulers(
    slurm: SlurmSettings,
    kubernetes: KubernetesSettings,
    identity: IdentitySettings,
    *,
    cluster: str = "",
    host: str = "",
    environ: Mapping[str, str] = os.environ,
) -> tuple[Scheduler, ...]:
    """Return those who are to be asked, as their tables of config.toml say.

    Parameters
    ----------
    host
        What readings call this host; "" for its host name.
    """
    found: list[Scheduler] = []
    if identity.hpc_directory:
        found.append(HpcDirectory(identity.hpc_directory, host=host or socket.gethostname()))
    if slurm.via:
        found.append(Slurm(slurm, cluster=cluster, environ=environ))
    if kubernetes.url:
        found.append(Kubernetes(kubernetes, cluster=cluster, environ=environ))
    return tuple(found)
