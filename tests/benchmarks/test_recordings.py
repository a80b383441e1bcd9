from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.recordings.disturb import DISTURBANCES, disturbed
from benchmarks.recordings.labelled import Event, Judged, Labelled, Told, judge, load
from benchmarks.recordings.play import Played, play
from benchmarks.recordings.report import by_cause, row, total, write
from detector.incident.incident import Incident
from detector.series import Window
from tests.incident.samples import incident

REAL = Path(__file__).parents[1] / "recordings" / "real"
STEP_MS = 10_000
START_MS = 1_700_000_000_000


def sample(k: float) -> float:
    """Time of the k-th sample of :func:`recording`, ms."""
    return START_MS + k * STEP_MS


def recording(n: int = 200, **changes: object) -> Labelled:
    """One fall from sample 100 to sample 150 that is right to tell until sample 110."""
    rng = np.random.default_rng(0)
    values = np.where((np.arange(n) >= 100) & (np.arange(n) < 150), 0.3, 0.4)
    window = Window(
        times_ms=START_MS + STEP_MS * np.arange(n, dtype=np.int64),
        fields={"ofu": values + rng.normal(0, 0.005, n)},
    )
    event = Event(
        kind="stall",
        change=-0.25,
        first_ms=sample(100),
        last_ms=sample(110),
        end_ms=sample(150),
        required=True,
    )
    return replace(
        Labelled(name="made", window=window, events=(event,), ignore=()),
        **changes,  # type: ignore[arg-type]
    )


def alert(k: float, **changes: object) -> Incident:
    return incident(detected_ms=int(sample(k)), **changes)


@pytest.mark.parametrize(
    ("at", "found", "wrong"),
    [(98.9, False, 1), (99, True, 0), (112, True, 0), (112.1, False, 0), (150.5, False, 1)],
)
def test_an_alert_is_right_from_one_sample_before_the_window_to_two_after(
    at: float, found: bool, wrong: int
) -> None:
    judged = judge(recording(), [alert(at)])
    assert judged.found == (found,)
    assert len(judged.wrong) == wrong


def test_more_alerts_until_the_end_of_the_event_are_the_same_event() -> None:
    assert judge(recording(), [alert(105), alert(140), alert(149)]).right


def test_information_and_improvements_are_no_alerts() -> None:
    told = [alert(20, severity="info"), alert(30, direction="up")]
    assert judge(recording(), told).told == ()


def test_an_alert_in_an_ignored_span_is_neither_right_nor_wrong() -> None:
    ignoring = recording(ignore=((sample(0), sample(40)),), events=())
    assert judge(ignoring, [alert(20)]).right
    assert not judge(ignoring, [alert(50)]).right


def test_an_event_that_is_not_required_counts_neither_way() -> None:
    optional = replace(recording().events[0], required=False)
    loose = recording(events=(optional,))
    assert judge(loose, []).right
    assert judge(loose, [alert(105)]).right


def test_an_alert_after_a_rise_is_a_false_alarm() -> None:
    (rnnt,) = load(REAL, ["rnnt_l40x8_r2"])
    assert rnnt.events == ()
    shift_ms = 1_696_396_187_185
    assert len(judge(rnnt, [incident(detected_ms=shift_ms)]).wrong) == 1


def test_a_name_without_a_label_is_refused() -> None:
    with pytest.raises(ValueError, match=r"labels.json has no nobody"):
        load(REAL, ["nobody"])


def test_a_copy_is_the_same_whichever_others_are_made() -> None:
    first, done = disturbed(recording(), 3, seed=1)
    again, _ = disturbed(recording(), 3, seed=1)
    other, _ = disturbed(recording(), 4, seed=1)
    assert done
    np.testing.assert_array_equal(first.window.fields["ofu"], again.window.fields["ofu"])
    assert len(other.window.times_ms) != len(first.window.times_ms) or not np.array_equal(
        other.window.fields["ofu"], first.window.fields["ofu"]
    )


@pytest.mark.parametrize("name", DISTURBANCES)
def test_a_disturbance_leaves_the_event_where_the_labels_say(name: str) -> None:
    for number in range(30):
        rng = np.random.default_rng(number)
        changed = DISTURBANCES[name](recording(), rng)
        times_ms, values = changed.window.times_ms, changed.window.fields["ofu"]
        (event,) = changed.events
        assert (np.diff(times_ms) > 0).all()
        assert values.min() >= 0
        assert values.max() <= 1
        # The window is there whole; half a step is what jitter and rounding may move.
        assert times_ms[0] < event.first_ms
        assert event.last_ms < times_ms[-1]
        inside = (times_ms > event.first_ms + STEP_MS / 5) & (times_ms < event.end_ms - STEP_MS)
        outside = (times_ms < event.first_ms - STEP_MS) | (times_ms > event.end_ms + STEP_MS)
        assert np.median(values[inside]) / np.median(values[outside]) == pytest.approx(
            0.75, abs=0.02
        )


def test_a_stretched_copy_has_its_windows_stretched_alike() -> None:
    plain = recording(ignore=((sample(0), sample(40)),))
    changed = DISTURBANCES["stretched"](plain, np.random.default_rng(5))
    factor = changed.step_ms / plain.step_ms
    assert 0.5 <= factor <= 2
    assert factor != pytest.approx(1, abs=0.01)
    assert changed.events[0].last_ms - START_MS == pytest.approx(
        110 * STEP_MS * factor, rel=1e-4
    )
    assert changed.ignore[0][1] - START_MS == pytest.approx(40 * STEP_MS * factor, rel=1e-4)


def test_a_short_recording_is_not_thinned_and_a_thinned_one_has_wider_windows() -> None:
    rng = np.random.default_rng(0)
    assert DISTURBANCES["thinned"](recording(n=119), rng).slack == 0
    thinned = DISTURBANCES["thinned"](recording(n=200), rng)
    assert (thinned.slack, len(thinned.window.times_ms)) == (1, 100)
    # Two samples and one more, of twice the step.
    assert judge(thinned, [alert(116)]).found == (True,)
    assert judge(thinned, [alert(116.1)]).found == (False,)


def test_a_recording_is_played_as_it_is_and_disturbed() -> None:
    recordings = load(REAL, ["ssd_h100x8_r0", "ssd_h100x8_r2"])
    found = {(item.name, item.copy): item for item in play(recordings, range(2), seed=1)}
    assert len(found) == 4
    assert found["ssd_h100x8_r0", 0].done == ()
    assert found["ssd_h100x8_r0", 0].judged.right
    assert found["ssd_h100x8_r2", 0].judged.right


def copies() -> list[Played]:
    """The recording as it is, a copy judged right, a miss, and a false alarm."""
    right = Judged(found=(True,), told=(), wrong=())
    wrong = (Told(after_s=60.0, kind="unexplained", change=-0.03),)
    judged = {
        0: ((), right),
        1: (("rounded",), right),
        2: (("rounded", "lossy"), Judged(found=(False,), told=(), wrong=())),
        3: ((), Judged(found=(True,), told=wrong, wrong=wrong)),
    }
    return [
        Played(name="made", copy=copy, done=done, judged=found)
        for copy, (done, found) in judged.items()
    ]


def test_the_recording_as_it_is_and_its_copies_are_told_apart() -> None:
    assert row(recording(), copies()) == (
        "made", "right", "stall -25%: 0.67", "0.33", "1 x unexplained -3%",
    )  # fmt: skip
    assert total(copies()).startswith("As they are, 1 of 1 are judged right. Of 3 disturbed")


def test_a_disturbance_is_compared_with_the_copies_without_it() -> None:
    shares = {name: cells for name, *cells in by_cause(copies())}
    assert shares["rounded"] == ["2", "0.50", "0.00"]
    assert shares["lossy"] == ["1", "0.00", "0.50"]
    assert shares["thinned"] == ["0", "-", "0.33"]


def test_the_tables_go_between_the_marks_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- measured: recordings -->\nold\n<!-- end -->\nafter\n")
    found = copies()
    write([row(recording(), found)], found, command="the command", page=page)
    text = page.read_text()
    assert "| made | right |" in text
    assert "`the command`" in text
    assert "old" not in text
    assert text.endswith("<!-- end -->\nafter\n")
