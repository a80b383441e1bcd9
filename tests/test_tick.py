"""Laws of the pass: it may be cut, repeated, interrupted and restarted, and nothing changes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from msgspec.structs import replace as replace_job

from detector.analysis.judge import Content
from detector.demo.synth import SyntheticJob, scenario
from detector.fleet import Job
from detector.incident.incident import Incident, State
from detector.incident.ledger import SHARDS, Action, Commit, Saved, shard_of
from detector.incident.lifecycle import Policy
from detector.incident.route import Destination
from detector.series import Batch, Duration, Wanted, Window
from detector.state import restore
from detector.store.memory import MemoryHistories, MemoryLedger
from detector.tick import Settings, run
from tests import passes
from tests.passes import histories

START_MS = 1_790_000_000_000
HOUR_MS = 3_600_000
CADENCE_MS = 30_000
END_MS = START_MS + 4 * HOUR_MS
SETTINGS = Settings(
    cluster="test",
    policy=Policy(),
    destinations=(Destination(name="pager", severity="warning"),),
)


@pytest.fixture(scope="module")
def jobs() -> tuple[SyntheticJob, ...]:
    """Four calm jobs: one falls for good, one for a while, one hangs, one is healthy."""
    rng = np.random.default_rng(7)
    return tuple(
        scenario(
            rng,
            cause=cause,
            id=name,
            start_ms=START_MS,
            length_ms=3 * HOUR_MS,
            cadence_ms=CADENCE_MS,
            gpus=8,
            calm=True,
        )
        for name, cause in (
            ("falls", "debug_flag"),
            ("dips", "transient_drop"),
            ("hangs", "hang"),
            ("healthy", None),
        )
    )


play = partial(passes.play, until_ms=END_MS, settings=SETTINGS)


def told(ledger: MemoryLedger) -> list[Incident]:
    return sorted(ledger.incidents.values(), key=lambda item: item.id)


def test_each_fault_is_found_once_and_the_healthy_job_is_left_alone(
    jobs: tuple[SyntheticJob, ...], content: Content
) -> None:
    ledger = MemoryLedger()
    play(histories(jobs), ledger, content)
    by_job = {item.job.id: item for item in told(ledger)}
    assert sorted(by_job) == ["dips", "falls", "hangs"]
    assert len(told(ledger)) == 3
    assert by_job["falls"].kind == "debug_flag_stall"
    assert by_job["falls"].state is State.OPEN
    assert by_job["hangs"].kind == "hang"
    assert by_job["dips"].state is State.RESOLVED
    assert by_job["dips"].resolve_reason == "recovered"


def test_the_result_does_not_depend_on_how_the_samples_were_cut(
    jobs: tuple[SyntheticJob, ...], content: Content
) -> None:
    whole, cut = MemoryLedger(), MemoryLedger()
    play(histories(jobs), whole, content)
    play(histories(jobs, slice_entries=7), cut, content)
    assert told(cut) == told(whole)


def test_a_restart_from_what_was_saved_changes_nothing(
    jobs: tuple[SyntheticJob, ...], content: Content
) -> None:
    whole, broken = MemoryLedger(), MemoryLedger()
    play(histories(jobs), whole, content)
    source = histories(jobs)
    for hour in range(1, 5):
        play(source, broken, content, until_ms=START_MS + hour * HOUR_MS)
    assert told(broken) == told(whole)


def test_a_state_that_was_lost_makes_no_second_incident(
    jobs: tuple[SyntheticJob, ...], content: Content
) -> None:
    ledger = MemoryLedger()
    play(histories(jobs), ledger, content)
    first = told(ledger)
    known = [Saved(shard=shard_of(item.job.id), incidents=(item,)) for item in first]
    _, reports = play(histories(jobs), ledger, content, state=restore(content, known))
    assert [step for report in reports for step in report.transitions] == []
    assert told(ledger) == first


class Interrupted(MemoryLedger):
    """A ledger that fails at chosen commits, before or after they are written."""

    def __init__(self, *, failing: Collection[int], written: bool) -> None:
        super().__init__()
        self.failing, self.written, self.count = failing, written, 0

    def commit(self, commits: Sequence[Commit]) -> None:
        self.count += 1
        fails = self.count in self.failing
        if not fails or self.written:
            super().commit(commits)
        if fails:
            msg = "the store went away"
            raise OSError(msg)


@pytest.mark.parametrize("written", [False, True])
def test_a_pass_whose_commit_failed_is_repeated_without_a_trace(
    jobs: tuple[SyntheticJob, ...], content: Content, *, written: bool
) -> None:
    whole = MemoryLedger()
    play(histories(jobs, slice_entries=20), whole, content)
    broken = Interrupted(failing=range(2, 40, 3), written=written)
    source = histories(jobs, slice_entries=20)
    state, more = restore(content), True
    while more:
        try:
            state, report = run(
                state,
                histories=source,
                ledger=broken,
                content=content,
                settings=SETTINGS,
                now_ms=END_MS,
                checkpoint=range(SHARDS),
            )
            more = report.more
        except OSError:
            continue
    assert told(broken) == told(whole)


class Poisonous(MemoryHistories):
    """Histories in which one job's windows cannot be read for a reason of its own."""

    def windows(self, wanted: Sequence[Wanted]) -> list[Window]:
        if any(item.job == "falls" for item in wanted):
            msg = "an entry that nobody thought of"
            raise ValueError(msg)
        return super().windows(wanted)


def test_a_poison_job_is_set_aside_and_the_others_are_judged(
    jobs: tuple[SyntheticJob, ...], content: Content
) -> None:
    source = Poisonous(
        {item.job.id: item.window for item in jobs},
        jobs={item.job.id: item.job for item in jobs},
    )
    ledger = MemoryLedger()
    _, reports = play(source, ledger, content)
    assert {item.job.id for item in told(ledger)} == {"dips", "hangs"}
    poisoned = {job: why for report in reports for job, why in report.poisoned.items()}
    assert poisoned == {"falls": "ValueError: an entry that nobody thought of"}
    asides = {item for report in reports for item in report.rejects}
    assert {(item.job, item.reason) for item in asides} == {("falls", "poison")}


class Counting(MemoryHistories):
    """Histories that count how often they are asked for windows, and for how many."""

    trips = stretches = 0

    def windows(self, wanted: Sequence[Wanted]) -> list[Window]:
        self.trips += 1
        self.stretches += len(wanted)
        return super().windows(wanted)


def test_a_pass_reads_the_windows_of_many_jobs_together(
    jobs: tuple[SyntheticJob, ...], content: Content
) -> None:
    (falls,) = (item for item in jobs if item.job.id == "falls")
    trips = []
    for count in (1, 30):
        names = [f"falls-{k}" for k in range(count)]
        source = Counting(
            dict.fromkeys(names, falls.window),
            jobs={name: replace_job(falls.job, id=name) for name in names},
            slice_entries=10_000,
        )
        _, reports = play(source, MemoryLedger(), content)
        assert len({job for report in reports for job, _ in report.confirmed}) == count
        trips.append(source.trips)
        assert source.stretches >= count
    assert trips[1] == trips[0]


class Asking(MemoryLedger):
    """A ledger through which people ask for something once."""

    def __init__(self, before: MemoryLedger, actions: Sequence[Action]) -> None:
        super().__init__()
        self.incidents = dict(before.incidents)
        self._waiting = list(actions)

    def actions(self, shards: Collection[int]) -> Mapping[int, Sequence[Action]]:
        asked = [action for action in self._waiting if action.incident in self.incidents]
        self._waiting = []
        return {shard_of(self.incidents[action.incident].job.id): [action] for action in asked}


def test_what_people_call_expected_becomes_the_baseline(
    jobs: tuple[SyntheticJob, ...], content: Content
) -> None:
    falls = [item for item in jobs if item.job.id == "falls"]
    ledger = MemoryLedger()
    half_ms = START_MS + 5 * HOUR_MS // 2
    source = histories(falls)
    state, _ = play(source, ledger, content, until_ms=half_ms)
    (incident,) = told(ledger)
    action = Action(
        verb="resolve",
        incident=incident.id,
        actor="ada",
        time_ms=half_ms,
        reason="expected_change",
    )
    _, reports = play(source, Asking(ledger, [action]), content, state=state)
    steps = [step for report in reports for step in report.transitions]
    assert [(step.type, step.incident.resolve_reason) for step in steps] == [
        ("resolved", "expected_change")
    ]


def test_a_job_that_stops_reporting_ends_its_incident(
    jobs: tuple[SyntheticJob, ...], content: Content
) -> None:
    rng = np.random.default_rng(11)
    goes_on = scenario(
        rng,
        id="goes on",
        start_ms=START_MS,
        length_ms=4 * HOUR_MS,
        cadence_ms=CADENCE_MS,
        gpus=8,
        calm=True,
    )
    ledger = MemoryLedger()
    settings = replace(SETTINGS, silent=Duration.parse("15m"))
    play(histories([*jobs, goes_on]), ledger, content, settings=settings)
    ends = {item.job.id: item.resolve_reason for item in told(ledger)}
    assert ends == {"falls": "telemetry_lost", "hangs": "recovered", "dips": "recovered"}


def test_an_empty_fleet_is_no_trouble(content: Content) -> None:
    ledger = MemoryLedger()
    state, reports = play(histories([]), ledger, content)
    assert state.cursors == {}
    assert [report.entries for report in reports] == [0]


def test_entries_without_a_usable_value_move_the_cursor_on(content: Content) -> None:
    times = START_MS + 10_000 * np.arange(50)
    nothing = Window(times_ms=times, fields={"ofu": np.full(50, np.nan)})
    source = MemoryHistories({"blind": nothing}, jobs={"blind": _job("blind")})
    state, _ = play(source, MemoryLedger(), content)
    assert state.cursors == {"blind": int(times[-1])}


def _job(name: str) -> Job:
    return Job(id=name)


def test_a_pass_reads_entries_only_after_its_cursors(content: Content) -> None:
    asked: list[Mapping[str, int]] = []

    class Recorded(MemoryHistories):
        def increments(self, cursors: Mapping[str, int], *, now_ms: int) -> Batch:
            asked.append(dict(cursors))
            return super().increments(cursors, now_ms=now_ms)

    times = START_MS + 10_000 * np.arange(20)
    window = Window(times_ms=times, fields={"ofu": np.full(20, 0.4)})
    source = Recorded({"j": window}, jobs={"j": _job("j")}, slice_entries=8)
    play(source, MemoryLedger(), content)
    assert asked == [{}, {"j": int(times[7])}, {"j": int(times[15])}]
