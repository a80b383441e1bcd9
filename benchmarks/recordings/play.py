"""Recordings and their disturbed copies, played as ``ofuwatch replay`` plays them."""

from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

from rich.progress import Progress

from benchmarks.detection.ours import content
from benchmarks.recordings.disturb import disturbed
from benchmarks.recordings.labelled import Judged, Labelled, judge
from detector.fleet import Job
from detector.incident.incident import Incident
from detector.incident.lifecycle import Policy
from detector.replay import replay
from detector.store.recording import Recording

# Copies of a part are folded side by side: about as fast as one alone.
_COPIES_A_PART = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A copy of a recording, what was done to it, and what the alerts on it are worth.

    Attributes
    ----------
    copy
        0 is the recording as it is.
    """

    name: str
    copy: int
    done: tuple[str, ...]
    judged: Judged


def played(
    recordings: list[Labelled], *, copies: int, seed: int, workers: int, progress: Progress
) -> list[Played]:
    """Return every recording as it is and in so many disturbed copies, judged."""
    numbers = range(copies + 1)
    parts = [numbers[k : k + _COPIES_A_PART] for k in range(0, len(numbers), _COPIES_A_PART)]
    task = progress.add_task("recordings", total=len(numbers) * len(recordings))
    found: list[Played] = []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(play, recordings, part, seed=seed) for part in parts]
        for done in as_completed(waiting):
            found += done.result()
            progress.advance(task, len(done.result()))
    return sorted(found, key=lambda item: (item.name, item.copy))


def play(recordings: list[Labelled], copies: range, *, seed: int) -> list[Played]:
    """Return these copies of the recordings, judged as ``ofuwatch replay`` judges them."""
    made = {
        f"{recording.name}.{copy}": (copy, *disturbed(recording, copy, seed=seed))
        if copy
        else (copy, recording, ())
        for recording in recordings
        for copy in copies
    }
    replayed = replay(
        {
            key: Recording(job=Job(id=key), window=item.window)
            for key, (_, item, _) in made.items()
        },
        content(),
        cluster="benchmark",
        policy=Policy(),
    )
    if replayed.poisoned:
        job, why = next(iter(replayed.poisoned.items()))
        msg = f"the detector broke on {job}: {why}"
        raise RuntimeError(msg)
    told: dict[str, list[Incident]] = {key: [] for key in made}
    for incident in replayed.incidents:
        told[incident.job.id].append(incident)
    return [
        Played(name=item.name, copy=copy, done=done, judged=judge(item, told[key]))
        for key, (copy, item, done) in made.items()
    ]
