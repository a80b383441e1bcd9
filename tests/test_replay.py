"""Replays of real jobs, held to what is known of them; and the laws of a replay."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks.recordings.labelled import judge
from benchmarks.recordings.labelled import load as load_labelled
from detector.analysis.judge import Content
from detector.fleet import Job
from detector.incident.lifecycle import Policy
from detector.replay import Replayed, as_line, replay
from detector.series import Window
from detector.store.recording import Recording, read

RECORDINGS = Path(__file__).parent / "recordings"
# More recordings of the same kind that may not be given on with the project.
MORE = Path(__file__).parents[2] / "shared/data/recordings"


def found(
    recordings: Mapping[str, Recording], content: Content, *, expected: bool = False
) -> Replayed:
    return replay(recordings, content, cluster="test", policy=Policy(), expected=expected)


def labels(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "real" / "labels.json").read_text())
    return loaded


@pytest.mark.parametrize("name", list(labels(RECORDINGS)))
def test_a_real_job_gets_its_alerts_and_no_other(name: str, content: Content) -> None:
    (recording,) = load_labelled(RECORDINGS / "real", [name])
    replayed = found({name: Recording(job=Job(id=name), window=recording.window)}, content)
    assert replayed.poisoned == {}
    judged = judge(recording, replayed.incidents)
    assert all(judged.found)
    assert judged.wrong == ()


@pytest.mark.skipif(
    not MORE.is_dir(), reason="the recordings that cannot be given on are absent"
)
@pytest.mark.parametrize("name", ["pai_job4_w2", "pai_job4_w4", "pai_job4_w6"])
def test_a_real_worker_gets_its_alerts_and_no_other(name: str, content: Content) -> None:
    (recording,) = load_labelled(MORE / "real", [name])
    replayed = found({name: Recording(job=Job(id=name), window=recording.window)}, content)
    assert judge(recording, replayed.incidents).right


@pytest.mark.parametrize("folder", [RECORDINGS, MORE], ids=["ours", "more"])
def test_jobs_of_many_workers_are_replayed_without_trouble(
    folder: Path, content: Content
) -> None:
    if not folder.is_dir():
        pytest.skip("the recordings that cannot be given on are absent")
    recordings = read([folder / "fleet_gpu"])
    assert {len(item.job.roster) for item in recordings.values()} <= {8, 9, 16}
    assert found(recordings, content).poisoned == {}


def lines(replayed: Replayed) -> list[bytes]:
    return [msgspec.json.encode(as_line(item)) for item in replayed.incidents]


@pytest.fixture(scope="module")
def several() -> dict[str, Recording]:
    """Three jobs in which something is found, one of which rises, and a quiet one."""
    names = ("ssd_h100x8_r0", "perfci_robust", "lora70b_gb300x8_r6", "ssd_h100x8_r2")
    return read([RECORDINGS / "real" / f"{name}.csv" for name in names])


def test_a_replay_is_the_same_every_time_in_any_order_of_jobs_and_alone(
    several: dict[str, Recording], content: Content
) -> None:
    once = lines(found(several, content))
    assert len(once) >= 3
    assert lines(found(dict(reversed(several.items())), content)) == once
    alone = [lines(found({job: recording}, content)) for job, recording in several.items()]
    assert sorted(once) == sorted(line for each in alone for line in each)


def test_looking_at_the_baseline_on_the_way_changes_nothing(
    several: dict[str, Recording], content: Content
) -> None:
    plain, looked = found(several, content), found(several, content, expected=True)
    assert lines(looked) == lines(plain)
    assert looked.excluded == plain.excluded
    # A shift names its column, and the columns' order is that of the jobs' first levels.
    assert [replace(item, column=0) for _, _, item in looked.shifts] == [
        replace(item, column=0) for _, _, item in plain.shifts
    ]
    assert plain.expected == {}
    assert looked.expected.keys() == several.keys()


def test_incidents_are_in_order_of_job_and_onset(
    several: dict[str, Recording], content: Content
) -> None:
    order = [(item.job.id, item.onset_ms) for item in found(several, content).incidents]
    assert order == sorted(order)


def test_the_expected_band_holds_the_healthy_samples_and_follows_a_rise(
    content: Content,
) -> None:
    recordings = read([RECORDINGS / "real" / "maskrcnn_l40x10_r5.csv"])
    replayed = found(recordings, content, expected=True)
    ((job, band),) = replayed.expected.items()
    assert len(replayed.shifts) == 1
    shift = replayed.shifts[0][2]
    before, after = (band.times_ms < shift.onset_ms), (band.times_ms > shift.time_ms)
    assert np.nanmedian(band.level[before]) == pytest.approx(shift.before, rel=0.03)
    assert np.nanmedian(band.level[after]) == pytest.approx(shift.after, rel=0.03)
    window = recordings[job].window
    low = np.interp(window.times_ms, band.times_ms[after], band.low[after])
    settled = window.times_ms > shift.time_ms
    assert np.mean(window.fields["ofu"][settled] > low[settled]) > 0.9


def test_a_band_keeps_its_width_while_a_change_is_standing(content: Content) -> None:
    recordings = read([RECORDINGS / "real" / "lora70b_gb300x8_r6.csv"])
    replayed = found(recordings, content, expected=True)
    (incident,) = replayed.incidents
    (band,) = replayed.expected.values()
    standing = band.times_ms >= incident.onset_ms
    assert band.level[standing] == pytest.approx(incident.before.value, rel=0.02)
    assert np.all(band.low[standing] > incident.after.value)


def test_stretches_that_were_left_out_are_apart_and_in_order(
    several: dict[str, Recording], content: Content
) -> None:
    for spans in found(several, content).excluded.values():
        edges = [edge for span in spans for edge in (span.start_ms, span.end_ms)]
        assert edges == sorted(set(edges))


def test_a_recording_without_samples_and_no_recording_at_all_find_nothing(
    content: Content, several: dict[str, Recording]
) -> None:
    some = next(iter(several.values()))
    blank = Window(times_ms=np.zeros(0, np.int64), fields={"ofu": np.zeros(0)})
    empty = Recording(job=some.job, window=blank)
    assert found({}, content).incidents == ()
    assert found({"empty": empty}, content, expected=True).incidents == ()
