"""What is known between two passes: cursors, who is silent, who is forgotten, cold starts."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from detector.analysis.baselines import Level, Model, columns
from detector.analysis.change import Candidate, Confirmed, Estimate, Rejected
from detector.analysis.judge import Content
from detector.analysis.watch import Watch, observe, packed, start
from detector.fleet import Job
from detector.incident.incident import Incident, State
from detector.incident.ledger import Saved, shard_of
from detector.series import Batch, Duration
from detector.state import FleetState, restore

T = 1_790_000_000_000
HOUR = 3_600_000
DAY = 24 * HOUR
SILENT = Duration.parse("15m")


def batch(**times: list[int]) -> Batch:
    """Return one entry for each time after T, ms, by job."""
    lengths = [len(at) for at in times.values()]
    flat = np.array([T + at for each in times.values() for at in each], np.int64)
    return Batch(
        jobs=tuple(times),
        job=np.repeat(np.arange(len(times)), lengths),
        times_ms=flat,
        fields={"ofu": np.full(len(flat), 0.4)},
    )


def incident(job: str, *, resolved_ms: int | None = None) -> Incident:
    level = Estimate(value=0.4, low=0.4, high=0.4)
    return Incident(
        id=f"of {job}", cluster="c", job=Job(id=job), kind="unexplained", family="performance",
        metric="ofu", direction="down", cause="excursion",
        state=State.OPEN if resolved_ms is None else State.RESOLVED, revision=1,
        severity="error", confidence=1.0, rule="unexplained", summary="", onset_ms=T,
        onset_low_ms=T, onset_high_ms=T, detected_ms=T, resolved_ms=resolved_ms, before=level,
        after=level, relative_change=0.0,
    )  # fmt: skip


def refuse(job: str, candidate: Candidate) -> Confirmed | Rejected:
    """Refuse whatever is raised."""
    del job, candidate
    return Rejected(reason="for the test")


def watched(watch: Watch, entries: Batch) -> Watch:
    return observe(watch, entries, entries.fields["ofu"], confirm=refuse).watch


def test_cursors_and_steps_follow_each_job_through_batches_of_any_size() -> None:
    at_once = FleetState(watches={}).moved(batch(a=[0, 10, 30], b=[5]))
    assert at_once.cursors == {"a": T + 30, "b": T + 5}
    assert at_once.steps == {"a": 20}
    bit_by_bit = FleetState(watches={})
    for part in (batch(a=[0], b=[5]), batch(a=[10]), batch(a=[30]), batch()):
        bit_by_bit = bit_by_bit.moved(part)
    assert bit_by_bit == at_once
    assert at_once.watermark_ms == T + 30
    assert FleetState(watches={}).watermark_ms == 0


def silent(*, last: dict[str, int], live: str, step_ms: int = 10_000) -> tuple[str, ...]:
    state = FleetState(
        watches={},
        cursors={job: T + at for job, at in last.items()},
        steps=dict.fromkeys(last, step_ms),
        incidents={live: (incident(live),)},
    )
    return state.silent(SILENT)


def test_a_job_is_silent_when_the_fleet_went_on_without_it() -> None:
    assert silent(last={"j": 0, "other": SILENT + 1}, live="j") == ("j",)
    assert silent(last={"j": 0, "other": SILENT}, live="j") == ()


def test_nobody_is_silent_when_all_collection_stopped_or_nothing_is_wrong() -> None:
    assert silent(last={"j": 0}, live="j") == ()
    assert silent(last={"j": 0, "other": DAY}, live="other") == ()


def test_a_slow_job_is_given_twenty_of_its_own_steps() -> None:
    last = {"j": 0, "other": 15 * HOUR}
    assert silent(last=last, live="j", step_ms=HOUR) == ()
    assert silent(last=last, live="j", step_ms=HOUR // 2) == ("j",)


def test_a_resolved_incident_makes_no_job_silent() -> None:
    state = FleetState(
        watches={},
        cursors={"j": T, "other": T + DAY},
        incidents={"j": (incident("j", resolved_ms=T),)},
    )
    assert state.silent(SILENT) == ()


def test_jobs_and_incidents_that_are_long_over_are_forgotten_step_by_step() -> None:
    model = Model(name="ofu", metric="ofu", family="performance", baseline=Level())
    entries = batch(old=[0], gone=[9 * DAY], here=[9 * DAY + 7 * HOUR])
    state = FleetState(
        watches={"ofu": watched(start(model), entries)},
        incidents={
            "old": (incident("old"),),
            "gone": (incident("gone", resolved_ms=T + 8 * DAY),),
            "here": (incident("here", resolved_ms=T + 9 * DAY),),
        },
    ).moved(entries)
    tidy = replace(state, steps=dict.fromkeys(state.cursors, 10)).tidied()
    assert tidy.watches["ofu"].jobs == ("here",)
    assert tidy.cursors.keys() == {"gone", "here"}
    assert tidy.steps.keys() == {"here"}
    # What is live is never forgotten; what was resolved is kept for a day.
    assert tidy.incidents.keys() == {"old", "here"}
    assert tidy.tidied() == tidy


def saved_of(state: FleetState, shard: int, **changes: object) -> Saved:
    jobs = state.by_shard([shard])[shard]
    states, cursors, kept = state.packed(jobs)
    found = {"shard": shard, "states": states, "cursors": cursors, "kept": kept, **changes}
    return Saved(**found)  # type: ignore[arg-type]


def grown(content: Content, *jobs: str) -> FleetState:
    """Return a fleet that has seen fifty samples of each job."""
    entries = batch(**{job: list(range(0, 500_000, 10_000)) for job in jobs})
    state = restore(content)
    watches = {
        name: watched(watch, entries) if watch.model.metric == "ofu" else watch
        for name, watch in state.watches.items()
    }
    return replace(state, watches=watches).moved(entries)


def two_shards() -> tuple[str, str]:
    first = "a"
    second = next(f"b{k}" for k in range(99) if shard_of(f"b{k}") != shard_of(first))
    return first, second


def test_what_was_saved_comes_back_bit_for_bit(content: Content) -> None:
    jobs = two_shards()
    state = grown(content, *jobs)
    back = restore(
        content,
        [
            saved_of(state, shard_of(job), incidents=(incident(job), incident(job)))
            for job in jobs
        ],
    )
    assert back.packed(jobs) == state.packed(jobs)
    assert {job: len(items) for job, items in back.incidents.items()} == dict.fromkeys(jobs, 2)


@pytest.mark.parametrize("damage", ["junk", "missing", "unknown", "cut", "empty"])
def test_a_shard_that_cannot_be_read_starts_cold_with_its_incidents_and_no_other_does(
    content: Content, damage: str
) -> None:
    jobs = broken, fine = two_shards()
    state = grown(content, *jobs)
    states = dict(saved_of(state, shard_of(broken)).states)
    match damage:
        case "junk":
            states["ofu"] = b"\xff\x00junk"
        case "missing":
            del states["ofu"]
        case "unknown":
            states["of yesterday"] = states["ofu"]
        case "cut":
            states["ofu"] = states["ofu"][:-20]
        case "empty":
            states["ofu"] = b""
    back = restore(
        content,
        [
            saved_of(state, shard_of(broken), states=states, incidents=(incident(broken),)),
            saved_of(state, shard_of(fine)),
        ],
    )
    assert back.cursors == {fine: state.cursors[fine]}
    assert all(watch.jobs in ((), (fine,)) for watch in back.watches.values())
    assert back.packed([fine]) == state.packed([fine])
    assert back.incidents.keys() == {broken}


def test_a_state_of_another_version_starts_cold(content: Content) -> None:
    state = grown(content, "a")
    old = dict(saved_of(state, shard_of("a")).states)
    ofu = state.watches["ofu"].state
    assert isinstance(ofu, columns.Columns)
    old["ofu"] = msgspec.msgpack.encode((["a"], columns.packed(ofu, 999)))
    assert restore(content, [saved_of(state, shard_of("a"), states=old)]).cursors == {}


def test_nothing_saved_is_an_empty_fleet(content: Content) -> None:
    state = restore(content)
    assert state.watches.keys() == {model.name for model in content.models}
    assert (state.cursors, state.incidents, state.watermark_ms) == ({}, {}, 0)
    assert restore(content, [Saved(shard=0)]).packed([]) == state.packed([])


def test_jobs_are_grouped_by_the_shards_asked_for() -> None:
    first, second = two_shards()
    state = FleetState(watches={}).moved(batch(**{first: [0], second: [0]}))
    assert state.by_shard([shard_of(first)]) == {shard_of(first): [first]}


def test_accepting_an_incident_touches_the_watch_of_its_metric_alone(content: Content) -> None:
    state = grown(content, "a")
    after = state.accepting([incident("a")])
    changed = {
        watch.model.metric
        for name, watch in after.watches.items()
        if watch is not state.watches[name]
    }
    assert changed == {"ofu"}
    assert packed(state.watches["ofu"], ["a"]) == packed(
        grown(content, "a").watches["ofu"], ["a"]
    )
