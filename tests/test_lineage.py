"""Runs that continue one another: what is inherited, what is told, and that no cut matters."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from detector.analysis.judge import Content
from detector.fleet import Gpu, Job
from detector.incident.incident import Incident
from detector.incident.ledger import SHARDS
from detector.incident.lifecycle import Policy
from detector.replay import Replayed, replay
from detector.series import Duration, FloatArray, Wanted, Window
from detector.state import FleetState, restore
from detector.store.memory import MemoryHistories, MemoryLedger
from detector.store.recording import Recording
from detector.tick import Settings
from tests import passes
from tests.passes import histories

T = 1_790_000_000_000
STEP_MS = 30_000
HOUR_MS = 3_600_000
HOUR = HOUR_MS // STEP_MS
LEVEL = 0.42
LATER_MS = T + 7 * HOUR_MS
SETTINGS = Settings(cluster="test", policy=Policy())


def series(
    hours: float, *, level: float = LEVEL, seed: int, phases: int = 0, ramp_s: float = 0.0
) -> FloatArray:
    """Return a job's OFU, noise 1 %; each half hour it evaluates for ``phases`` samples."""
    count = round(hours * HOUR)
    values = level * (1 + 0.01 * np.random.default_rng(seed).standard_normal(count))
    for start in range(HOUR // 2, count, HOUR // 2):
        values[start : start + phases] *= 0.6
    if ramp_s:
        values *= np.minimum(1, 0.3 + 0.7 * np.arange(count) * STEP_MS / 1000 / ramp_s)
    return values.astype(np.float32).astype(np.float64)


def recording(
    job: str, values: FloatArray, *, start_ms: int = T, lineage: str = "", gpus: int = 0,
    fields: Mapping[str, FloatArray] | None = None, precision: str = "", labels: str = "",
) -> Recording:  # fmt: skip
    about = Job(
        id=job, name="llm", lineage=tuple(lineage.split()), precision=precision,
        labels={"image": labels} if labels else {},
        roster=tuple(Gpu(uuid=f"G{k}", host=f"n{k // 8}") for k in range(gpus)),
    )  # fmt: skip
    times_ms = start_ms + STEP_MS * (1 + np.arange(len(values), dtype=np.int64))
    window = Window(times_ms=times_ms, fields={"ofu": values, **(fields or {})})
    return Recording(job=about, window=window)


def replayed(content: Content, *recordings: Recording) -> Replayed:
    return replay(
        {item.job.id: item for item in recordings}, content, cluster="test", policy=Policy()
    )


def before(**more: str) -> Recording:
    return recording("a", series(6, seed=1, phases=8), **more)  # type: ignore[arg-type]


def told(found: Replayed, job: str = "b") -> list[Incident]:
    return [item for item in found.incidents if item.job.id == job]


def play(
    source: MemoryHistories,
    ledger: MemoryLedger,
    content: Content,
    *,
    until_ms: int,
    settings: Settings = SETTINGS,
) -> FleetState:
    """Run passes from what was saved until nothing is left to read."""
    return passes.play(source, ledger, content, until_ms=until_ms, settings=settings)[0]


def origin(state: FleetState, job: str = "b") -> tuple[str, str, Collection[str]]:
    """Return the run that a job took over from, why not all of it, and which levels."""
    found = state.kept[job].origin
    assert found is not None
    return found.run, found.why, sorted(found.levels)


# -- slow from the first sample on -----------------------------------------------------------


def test_a_successor_that_is_slow_from_its_first_sample_is_told_once(content: Content) -> None:
    slow = recording(
        "b", series(4, level=0.75 * LEVEL, seed=2, phases=8), start_ms=LATER_MS, lineage="a",
        labels="v2",
    )  # fmt: skip
    (incident,) = told(replayed(content, before(labels="v1"), slow))
    assert (incident.kind, incident.cause) == ("slow_from_start", "lineage")
    assert incident.relative_change == pytest.approx(-0.25, abs=0.01)
    assert incident.before.value == pytest.approx(LEVEL, rel=0.01)
    assert incident.onset_ms == LATER_MS + STEP_MS
    assert 15 * 60_000 <= incident.detected_ms - LATER_MS <= 20 * 60_000
    assert incident.features["from_start"] == 1
    assert incident.earlier is not None
    assert (incident.earlier.id, incident.earlier.until_ms) == ("a", T + 6 * HOUR_MS)
    assert incident.earlier.differs == {"image": ("v1", "v2")}
    assert "compared with the earlier run llm (a)" in incident.summary
    assert "image v1 -> v2" in incident.summary


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ramp_s", [0, 600, 1200])
@pytest.mark.parametrize("relative", [0.98, 1.0, 1.02])
def test_a_healthy_successor_is_never_told_not_even_while_it_warms_up(
    seed: int, ramp_s: int, relative: float, content: Content
) -> None:
    values = series(3, level=relative * LEVEL, seed=10 + seed, phases=8, ramp_s=ramp_s)
    healthy = recording("b", values, start_ms=LATER_MS, lineage="a")
    assert told(replayed(content, before(), healthy)) == []


def test_a_slow_run_that_warms_up_first_is_told_at_its_plateau(content: Content) -> None:
    values = series(3, level=0.85 * LEVEL, seed=3, phases=8, ramp_s=1200)
    slow = recording("b", values, start_ms=LATER_MS, lineage="a")
    (incident,) = told(replayed(content, before(), slow))
    assert incident.kind == "slow_from_start"
    assert incident.relative_change == pytest.approx(-0.15, abs=0.02)


def test_a_faster_successor_is_a_rise_that_nobody_is_told_of(content: Content) -> None:
    fast = recording(
        "b", series(3, level=1.2 * LEVEL, seed=4, phases=8), start_ms=LATER_MS, lineage="a"
    )
    found = replayed(content, before(), fast)
    assert told(found) == []
    assert [(job, metric) for job, metric, _ in found.shifts] == [("b", "ofu")]


def test_a_successor_back_at_the_earlier_level_recovers(content: Content) -> None:
    values = np.concatenate(
        [series(1, level=0.7 * LEVEL, seed=5), series(1, level=LEVEL, seed=6)]
    )
    found = replayed(content, before(), recording("b", values, start_ms=LATER_MS, lineage="a"))
    (incident,) = told(found)
    assert incident.resolve_reason == "recovered"


def test_other_metrics_are_held_to_the_earlier_run_as_well(content: Content) -> None:
    def with_tokens(
        job: str, hours: float, tokens: float, seed: int, **more: object
    ) -> Recording:
        ofu = series(hours, seed=seed)
        work = tokens * series(hours, level=1.0, seed=seed + 50)
        return recording(job, ofu, fields={"tokens": work}, **more)  # type: ignore[arg-type]

    found = replayed(
        content,
        with_tokens("a", 6, 9000, 1),
        with_tokens("b", 3, 6300, 2, start_ms=LATER_MS, lineage="a"),
    )
    (incident,) = told(found)
    assert (incident.metric, incident.cause) == ("tokens", "lineage")
    assert incident.features["throughput_change"] == pytest.approx(-0.3, abs=0.02)


# -- what is inherited -----------------------------------------------------------------------


@pytest.mark.parametrize("lineage", ["", "a"])
def test_habits_of_the_earlier_run_are_no_news_in_the_next_one(
    lineage: str, content: Content
) -> None:
    # Evaluations of 11 min: longer than what an unknown phase is given at that age.
    values = series(1.4, seed=7)
    values[HOUR // 2 : HOUR // 2 + 22] *= 0.6
    earlier = recording("a", series(6, seed=1, phases=22))
    found = replayed(
        content, earlier, recording("b", values, start_ms=LATER_MS, lineage=lineage)
    )
    assert len(told(found)) == (0 if lineage else 1)


def test_a_young_run_with_a_lineage_is_judged_as_fast_as_an_old_one(content: Content) -> None:
    def delay(*, lineage: str, healthy_hours: float) -> int:
        values = np.concatenate(
            [series(healthy_hours, seed=8), series(1.0, level=0.7 * LEVEL, seed=9)]
        )
        found = replayed(
            content, before(), recording("b", values, start_ms=LATER_MS, lineage=lineage)
        )
        (incident,) = told(found)
        return incident.detected_ms - round(LATER_MS + healthy_hours * HOUR_MS)

    old, young, blind = (
        delay(lineage=lineage, healthy_hours=hours)
        for lineage, hours in (("", 5), ("a", 0.6), ("", 0.6))
    )
    assert young <= old + 2 * STEP_MS
    assert young < blind


@pytest.mark.parametrize(
    ("there", "here", "why"),
    [
        ({"gpus": 8}, {"gpus": 16}, "GPUs 16, was 8"),
        ({"precision": "bf16"}, {"precision": "fp8"}, "precision fp8, was bf16"),
    ],
)
def test_another_size_or_precision_inherits_habits_and_no_level(
    there: dict[str, int], here: dict[str, int], why: str, content: Content
) -> None:
    earlier = recording("a", series(6, seed=1, phases=22), **there)  # type: ignore[arg-type]
    values = series(1.4, level=0.6 * LEVEL, seed=7)
    values[HOUR // 2 : HOUR // 2 + 22] *= 0.6
    later = recording("b", values, start_ms=LATER_MS, lineage="a", **here)  # type: ignore[arg-type]
    assert told(replayed(content, earlier, later)) == []
    state = play(
        histories([earlier, later]), MemoryLedger(), content, until_ms=T + 99 * HOUR_MS
    )
    assert origin(state) == ("a", f"another level is expected: {why}", [])


def test_a_count_of_gpus_that_only_the_entries_tell_is_compared_before_anybody_hears(
    content: Content,
) -> None:
    def sized(job: str, values: FloatArray, gpus: int, **more: object) -> Recording:
        counts = {"gpus": np.full(len(values), float(gpus))}
        return recording(job, values, fields=counts, **more)  # type: ignore[arg-type]

    half = np.concatenate(
        [series(3, level=0.7 * LEVEL, seed=2), series(1, level=0.4 * LEVEL, seed=3)]
    )
    found = replayed(
        content,
        sized("a", series(6, seed=1), 64),
        sized("b", half, 128, start_ms=LATER_MS, lineage="a"),
    )
    assert any("128 GPUs report" in outcome.reason for _, _, outcome in found.rejected)
    # The run stands on its own level then, and its own fall is found from there.
    (incident,) = told(found)
    assert incident.before.value == pytest.approx(0.7 * LEVEL, rel=0.02)


@pytest.mark.parametrize(
    ("lineage", "why"),
    [
        ("b", "b is the job itself"),
        ("nobody", "nobody is not known"),
        ("b a", "b is the job itself"),
        ("c", "c is not known"),
        ("short", "short never had a settled level"),
        ("running", "running had not ended"),
    ],
)
def test_a_lineage_that_leads_nowhere_is_no_error_and_says_why(
    lineage: str, why: str, content: Content
) -> None:
    source = histories(
        [
            before(),
            recording("short", series(0.02, seed=2)),
            recording("running", series(9, seed=3)),
            recording("b", series(2, seed=4), start_ms=LATER_MS, lineage=lineage),
            recording("c", series(2, seed=5), start_ms=LATER_MS + HOUR_MS, lineage="b"),
        ]
    )
    ledger = MemoryLedger()
    state = play(source, ledger, content, until_ms=T + 99 * HOUR_MS)
    run_, told_why, levels = origin(state)
    assert told_why == why
    assert run_ == ("a" if lineage.endswith("a") else "")
    assert bool(levels) == bool(run_)
    assert ledger.incidents == {}


def test_two_jobs_of_one_name_without_a_lineage_share_nothing(content: Content) -> None:
    slow = recording("b", series(3, level=0.7 * LEVEL, seed=2), start_ms=LATER_MS)
    assert told(replayed(content, before(), slow)) == []


def test_a_run_that_died_in_its_warm_up_passes_on_the_level_before_it(content: Content) -> None:
    crashed = recording(
        "b", series(0.05, level=0.5 * LEVEL, seed=2), start_ms=LATER_MS, lineage="a"
    )
    slow = recording(
        "c", series(2, level=0.7 * LEVEL, seed=3), start_ms=LATER_MS + HOUR_MS, lineage="b"
    )
    (incident,) = told(replayed(content, before(), crashed, slow), "c")
    assert incident.kind == "slow_from_start"
    assert incident.earlier is not None
    assert incident.earlier.id == "a"


def test_after_a_fall_that_was_told_the_next_run_is_held_to_the_level_before_it(
    content: Content,
) -> None:
    fell = np.concatenate([series(5, seed=1), series(1, level=0.6 * LEVEL, seed=2)])
    still = recording("b", series(2, level=0.6 * LEVEL, seed=3), start_ms=LATER_MS, lineage="a")
    (incident,) = told(replayed(content, recording("a", fell), still))
    assert incident.before.value == pytest.approx(LEVEL, rel=0.01)
    assert incident.earlier is not None
    assert incident.earlier.until_ms <= T + 5 * HOUR_MS + 2 * STEP_MS


# -- laws ------------------------------------------------------------------------------------


def chain() -> tuple[Recording, ...]:
    """Three runs in a row, the last one slow, and one that runs all the time."""
    return (
        before(),
        recording("b", series(3, seed=2, phases=8), start_ms=LATER_MS, lineage="a"),
        recording(
            "c", series(3, level=0.8 * LEVEL, seed=3, phases=8),
            start_ms=LATER_MS + 4 * HOUR_MS, lineage="b a",
        ),
        recording("other", series(15, seed=4)),
    )  # fmt: skip


END_MS = T + 20 * HOUR_MS


def outcome(ledger: MemoryLedger) -> list[Incident]:
    """Return what was found; whether it was too old to be told depends on the wall's time."""
    found = [msgspec.structs.replace(item, quiet=False) for item in ledger.incidents.values()]
    return sorted(found, key=lambda item: item.id)


def test_what_is_inherited_does_not_depend_on_how_the_samples_were_cut(
    content: Content,
) -> None:
    whole = MemoryLedger()
    expected = play(histories(chain(), slice_entries=10**6), whole, content, until_ms=END_MS)
    assert [item.job.id for item in outcome(whole)] == ["c"]
    assert origin(expected, "c") == ("b", "", ["ofu"])
    for entries in (53, 360):
        cut = MemoryLedger()
        state = play(histories(chain(), slice_entries=entries), cut, content, until_ms=END_MS)
        assert outcome(cut) == outcome(whole)
        assert state.kept == expected.kept
        assert state.packed(["b", "c"]) == expected.packed(["b", "c"])


def test_a_cold_start_over_all_histories_equals_a_life_in_step_with_time(
    content: Content,
) -> None:
    cold, warm = MemoryLedger(), MemoryLedger()
    expected = play(histories(chain()), cold, content, until_ms=END_MS)
    source = histories(chain())
    for minute in range(0, 20 * 60 + 1, 75):  # restored from what was saved each time
        state = play(source, warm, content, until_ms=T + minute * 60_000)
    assert outcome(warm) == outcome(cold)
    assert state.kept == expected.kept


def test_what_a_run_taught_outlives_its_columns_and_a_restart(content: Content) -> None:
    settings = replace(SETTINGS, silent=Duration(900_000))
    late_ms = T + 30 * HOUR_MS
    source = histories(
        [
            before(),
            recording("other", series(40, seed=4)),
            recording("b", series(2, level=0.8 * LEVEL, seed=3), start_ms=late_ms, lineage="a"),
        ]
    )
    ledger = MemoryLedger()
    play(source, ledger, content, until_ms=T + 29 * HOUR_MS, settings=settings)
    # Tidied after that pass; the next one, quiet as it is, saves what was kept.
    state = play(source, ledger, content, until_ms=T + 29 * HOUR_MS, settings=settings)
    state = restore(content, ledger.load(range(SHARDS)))
    assert "a" not in state.watches["ofu"].index
    assert state.kept["a"].taught.keys() == {"ofu"}
    play(source, ledger, content, until_ms=late_ms + 2 * HOUR_MS, settings=settings)
    (incident,) = outcome(ledger)
    assert incident.kind == "slow_from_start"
    assert incident.before.value == pytest.approx(LEVEL, rel=0.01)


def test_what_is_kept_is_small_and_goes_with_the_cursors(content: Content) -> None:
    state = play(histories(chain()), MemoryLedger(), content, until_ms=END_MS)
    day_ms = 24 * HOUR_MS
    gone = replace(state, cursors={**state.cursors, "other": END_MS + 2 * day_ms}).tidied()
    assert gone.kept.keys() == {"a", "b", "c"}
    assert all(len(msgspec.msgpack.encode(item)) < 1000 for item in gone.kept.values())
    assert gone.tidied() == gone
    over = replace(gone, cursors={**gone.cursors, "other": END_MS + 9 * day_ms}).tidied()
    assert over.kept == {}


def test_a_lost_history_leaves_the_remembered_level_to_compare_with(content: Content) -> None:
    class Forgetful(MemoryHistories):
        def windows(self, wanted: Sequence[Wanted]) -> list[Window]:
            return super().windows(
                [
                    replace(item, span=replace(item.span, end_ms=item.span.start_ms))
                    if item.job == "a"
                    else item
                    for item in wanted
                ]
            )

    items = (
        before(),
        recording("b", series(2, level=0.8 * LEVEL, seed=3), start_ms=LATER_MS, lineage="a"),
    )
    source = Forgetful(
        {item.job.id: item.window for item in items},
        jobs={item.job.id: item.job for item in items},
    )
    ledger = MemoryLedger()
    play(source, ledger, content, until_ms=END_MS)
    (incident,) = outcome(ledger)
    assert incident.relative_change == pytest.approx(-0.2, abs=0.01)
