"""A GPU that its job's mean hides: verified, judged and told; and the real jobs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from detector.analysis.change import Candidate, Confirmed, Rejected
from detector.analysis.judge import Content, judge
from detector.analysis.verify import verify
from detector.fleet import Gpu, Job
from detector.incident.incident import Incident
from detector.incident.lifecycle import Policy
from detector.replay import replay
from detector.series import ContextEvent, FloatArray, Interval, Window
from detector.store.recording import Recording, read
from tests.analysis.notation import START_MS, model

GPU_OFU = model("gpu_ofu")
STEP_MS = 10_000
SHIPPED = Path(__file__).parents[1] / "recordings" / "fleet_gpu"
MORE = Path(__file__).parents[3] / "shared" / "data" / "recordings" / "fleet_gpu"


def gpus_of(*, samples: int = 300, gpus: int = 16, seed: int = 1) -> FloatArray:
    rng = np.random.default_rng(seed)
    common = 1 + 0.02 * rng.standard_normal((samples, 1))
    noise = 1 + 0.02 * rng.standard_normal((samples, gpus))
    return np.asarray(0.4 * rng.uniform(0.875, 1.125, gpus) * common * noise)


def window_of(x: FloatArray, *events: ContextEvent) -> Window:
    times = START_MS + STEP_MS * np.arange(1, len(x) + 1)
    fields = {"ofu": np.nanmean(x, axis=1)}
    return Window(times_ms=times, fields=fields, gpus=x, events=events)


def raised(*places: int, onset: int = 200, at: int = 230) -> Candidate:
    return Candidate(
        column=0, cause="peers", direction="down", onset_ms=START_MS + STEP_MS * onset,
        time_ms=START_MS + STEP_MS * at, before=0.4, after=0.3, scale=0.01, step_ms=STEP_MS,
        gpus=places,
    )  # fmt: skip


def refused(x: FloatArray, candidate: Candidate, *events: ContextEvent) -> str:
    outcome = verify(candidate, window_of(x, *events), GPU_OFU)
    assert isinstance(outcome, Rejected), outcome
    return outcome.reason


def confirmed(x: FloatArray, candidate: Candidate) -> Confirmed:
    outcome = verify(candidate, window_of(x), GPU_OFU)
    assert isinstance(outcome, Confirmed), outcome
    return outcome


# -- verification --------------------------------------------------------------------------


def test_only_those_that_fell_are_kept() -> None:
    x = gpus_of()
    x[200:, 5] *= 0.7
    assert confirmed(x, raised(5, 9)).gpus == (5,)


def test_the_fall_is_measured_while_the_whole_job_slows() -> None:
    x = gpus_of()
    x[150:] *= 0.6
    x[200:, 5] *= 0.7
    assert confirmed(x, raised(5)).relative_change == pytest.approx(-0.3, abs=0.02)


def test_it_is_refused_when_other_gpus_fell_as_well() -> None:
    x = gpus_of()
    x[200:, :8] *= 0.7
    assert "other GPUs fell as well" in refused(x, raised(5))


def test_it_is_refused_when_it_was_a_few_samples() -> None:
    x = gpus_of()
    x[200:203, 5] *= 0.2
    assert refused(x, raised(5))
    x[203:215, 5] *= 0.2
    assert refused(x, raised(5, at=245))


def test_it_is_refused_when_the_history_is_too_short_or_has_no_gpus() -> None:
    x = gpus_of()
    x[200:, 5] *= 0.7
    assert "too few samples" in refused(x[195:], raised(5, onset=5, at=35))
    window = replace(window_of(x), gpus=None)
    assert isinstance(verify(raised(5), window, GPU_OFU), Rejected)


def test_an_announced_phase_explains_it() -> None:
    x = gpus_of()
    x[200:, 5] *= 0.7
    span = Interval(start_ms=START_MS + STEP_MS * 190, end_ms=START_MS + STEP_MS * 260)
    assert "announced" in refused(x, raised(5), ContextEvent(kind="evaluation", span=span))


# -- what people are told ------------------------------------------------------------------


def test_it_is_a_straggler_and_says_by_how_much_and_which(content: Content) -> None:
    x = gpus_of()
    x[200:, 5] *= 0.7
    roster = tuple(Gpu(uuid=f"GPU-{k}", host=f"node-{k // 8}", index=k % 8) for k in range(16))
    finding = judge(
        confirmed(x, raised(5)),
        window_of(x),
        Job(id="j", roster=roster),
        None,
        content.rules,
        family=GPU_OFU.family,
    )
    assert finding.verdict.rule.name == "straggler"
    assert finding.gpus == (roster[5],)
    assert finding.gpu_places == (5,)
    assert finding.attribution_confidence is not None
    assert finding.attribution_confidence > 0.8
    assert finding.before_samples > 100
    assert "1 of the job's GPUs" in finding.summary
    assert "−30 %" in finding.summary


def told(name: str, x: FloatArray, content: Content) -> tuple[Incident, ...]:
    recording = Recording(job=Job(id=name), window=window_of(x))
    return replay({name: recording}, content, cluster="test", policy=Policy()).incidents


def test_it_is_one_incident_from_its_fall_to_its_recovery(content: Content) -> None:
    x = gpus_of(samples=600, gpus=64)
    x[200:, 5] *= 0.6
    x[260:400, 11] *= 0.6
    x[400:, 5] /= 0.6
    (incident,) = told("j", x, content)
    assert incident.kind == "straggler"
    assert incident.metric == "gpu_ofu"
    assert incident.gpu_places == (5,)
    assert incident.resolve_reason == "recovered"
    assert incident.resolved_ms is not None
    assert abs(incident.resolved_ms - (START_MS + STEP_MS * 400)) <= 2 * STEP_MS


def test_a_job_of_a_second_or_of_an_hour_between_samples_is_judged_alike(
    content: Content,
) -> None:
    x = gpus_of(samples=2400)
    x[1600:, 5] *= 0.6
    for step_ms in (1_000, 60_000, 3_600_000):
        window = replace(window_of(x), times_ms=START_MS + step_ms * np.arange(1, 2401))
        recording = Recording(job=Job(id="j"), window=window)
        found = replay({"j": recording}, content, cluster="test", policy=Policy()).incidents
        assert [item.gpu_places for item in found if item.kind == "straggler"] == [(5,)]


# -- real jobs -----------------------------------------------------------------------------


def replayed(name: str, content: Content) -> list[Incident]:
    folder = next((f for f in (SHIPPED, MORE) if (f / f"{name}.csv").exists()), None)
    if folder is None:
        pytest.skip(f"{name} may not be copied into the project and is not at hand")
    recordings = read([folder / f"{name}.csv"])
    found = replay(recordings, content, cluster="test", policy=Policy()).incidents
    return [incident for incident in found if incident.kind == "straggler"]


@pytest.mark.parametrize("name", ["llm_ar", "llm_st", "gpt3_64nodes_power", "pai_job2"])
def test_nobody_is_blamed_in_real_jobs_where_nobody_changed(
    name: str, content: Content
) -> None:
    assert replayed(name, content) == []


def test_the_lone_straggler_of_a_real_job_is_found(content: Content) -> None:
    (incident,) = replayed("pai_job4", content)
    assert [gpu.uuid for gpu in incident.gpus] == ["w6"]
    start = 1_600_001_130_000
    assert abs(incident.onset_ms - start) <= 60_000
    assert incident.detected_ms - start <= 600_000
    assert incident.relative_change == pytest.approx(-0.3, abs=0.05)
