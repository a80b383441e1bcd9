"""Which runs continue which: the runs of one training, one after the other."""

from collections.abc import Iterable

from detector.telemetry.scheduler import Run

# Earlier runs that a new one names; the detector asks no more of them either.
_MOST = 8


def lineage(run: Run, others: Iterable[Run]) -> tuple[str, ...]:
    """Return the ids of the runs that ``run`` continues, latest first.

    They have its key and ended before it began. A key under which runs go on side by side is a
    sweep's, not a training's: nothing says which of them a new one would continue.
    """
    start = run.job.start_ms
    if not run.key or start is None:
        return ()
    kin = [one for one in others if one.key == run.key and one.job.id != run.job.id]
    if any(_began(one) <= start and (one.end_ms is None or one.end_ms > start) for one in kin):
        return ()
    earlier = sorted(
        (one for one in kin if one.end_ms is not None and one.end_ms <= start),
        key=lambda one: (one.end_ms or 0, one.job.id),
        reverse=True,
    )
    found: list[str] = []
    for place, one in enumerate(earlier):
        before = earlier[place + 1 : place + 2]
        if before and (before[0].end_ms or 0) > _began(one):
            break
        found.append(one.job.id)
    return tuple(found[:_MOST])


def _began(run: Run) -> int:
    return run.job.start_ms or 0
