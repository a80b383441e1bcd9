"""Broken collectors open telemetry faults and nothing else, from readings to incidents."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import redis
from msgspec.structs import replace

from detector.analysis.maxclock import MaxClocks
from detector.config import load
from detector.incident.incident import Incident
from detector.reading import Reading, Scrape
from detector.service import Service
from detector.store.history import History, HistorySettings
from detector.store.keys import Keys
from detector.store.ledger import Ledger
from detector.store.parts import Parts
from detector.telemetry.collector import Collector
from detector.telemetry.register import Register
from tests.scenarios.stage import content

_T0 = 1_764_000_000_000
_ROUND_MS = 10_000
_WELL = 180  # rounds: half an hour
_ROUNDS = 280

# Round, host, index -> the reading as it comes; None is a target that does not answer.
Fault = Callable[[int, Reading], Reading | None]

_DEAD = {"tensor_active": 0.0, "gr_engine_active": 0.0, "sm_active": 0.0}


def _values(rng: np.random.Generator, place: int) -> Mapping[str, float]:
    tensor = (0.35 if place < 4 else 0.55) * (1 + 0.02 * rng.standard_normal())
    return {
        "tensor_active": round(float(tensor), 6), "sm_clock_mhz": 1755.0,
        "max_sm_clock_mhz": 1980.0, "gr_engine_active": round(0.97 + 0.02 * rng.random(), 6),
        "sm_active": round(0.9 + 0.02 * rng.random(), 6), "gpu_util_pct": 99.0,
        "power_w": round(640 + 20 * rng.random(), 3),
    }  # fmt: skip


@dataclass(slots=True)
class _Fleet:
    """Two hosts with four GPUs each, all of one job; the fault comes after half an hour."""

    fault: Fault
    name: str = "made"
    settle_s: float = 0.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(3))

    def scrape(self, now_ms: int) -> Sequence[Scrape]:
        return [self._scrape(host, now_ms) for host in (0, 1)]

    def _scrape(self, host: int, now_ms: int) -> Scrape:
        at = (now_ms - _T0) // _ROUND_MS
        readings = []
        for index in range(4):
            reading = Reading(
                uuid=f"GPU-{host}{index}", host=f"n{host}", index=str(index),
                model="NVIDIA H100 80GB HBM3", time_ms=now_ms, jobs=("7",),
                values=_values(self.rng, 4 * host + index),
            )  # fmt: skip
            told = self.fault(at, reading) if at >= _WELL else reading
            readings += [] if told is None else [told]
        error = "" if readings else "connection refused: is the exporter up?"
        return Scrape(target=f"n{host}", asked_ms=now_ms, readings=tuple(readings), error=error)

    def close(self) -> None:
        pass


def _play(client: redis.Redis, valkey: str, folder: Path, fault: Fault) -> list[Incident]:
    """Collect from the fleet and watch it."""
    path = folder / "config.toml"
    path.write_text(f'[redis]\nurl = "unix://{valkey}"\n[history]\nstream = "6h"\n')
    now_ms = _T0
    sink = Parts(client, Keys(), History(client, Keys(), HistorySettings()))
    collector = Collector(
        [_Fleet(fault)], Register(), max_clocks=MaxClocks(table=content().gpus),
        deadline_s=5.0, interval_ms=_ROUND_MS,
    )  # fmt: skip
    service = Service(load(path), content(), clock=lambda: now_ms, only=("tick",))
    try:
        for at in range(_ROUNDS):
            now_ms = _T0 + at * _ROUND_MS
            collector.deliver(collector.round(now_ms), sink)
            if at % 6 == 5:
                now_ms += 30_000
                service.renew()
                service.tick()
        return list(Ledger(client, Keys()).incidents())
    finally:
        service.close()
        collector.close()


def _kinds(incidents: list[Incident]) -> list[tuple[str, str]]:
    return [(one.kind, one.family) for one in incidents if one.opened_ms is not None]


@pytest.fixture(name="play")
def play_(
    redis_client: redis.Redis, valkey: str, tmp_path: Path
) -> Callable[[Fault], list[Incident]]:
    return lambda fault: _play(redis_client, valkey, tmp_path, fault)


Play = Callable[[Fault], list[Incident]]


def test_counters_that_died_on_some_gpus_are_a_telemetry_fault_that_names_them(
    play: Play,
) -> None:
    def fault(at: int, reading: Reading) -> Reading:
        del at
        broken = reading.host == "n1" and reading.index in "012"
        return replace(reading, values={**reading.values, **_DEAD}) if broken else reading

    incidents = play(fault)
    # The mean over those that are left is lower: that is no drop of the job.
    assert ("telemetry_fault", "telemetry") in _kinds(incidents)
    assert {kind for kind, _ in _kinds(incidents)} == {"telemetry_fault"}
    told = next(one for one in incidents if one.family == "telemetry")
    assert told.metric == "usable"
    assert "3 of 8 GPUs" in told.summary
    assert "zero_mismatch: 3 GPUs of n1" in told.summary
    assert [(gpu.host, gpu.index) for gpu in told.gpus] == [("n1", 0), ("n1", 1), ("n1", 2)]
    assert abs(told.onset_ms - (_T0 + _WELL * _ROUND_MS)) <= 2 * _ROUND_MS
    assert told.severity == "warning"


def test_a_job_of_which_no_gpu_can_be_used_is_a_telemetry_fault_and_no_hang(
    play: Play,
) -> None:
    def fault(at: int, reading: Reading) -> Reading:
        del at
        return replace(reading, values={**reading.values, **_DEAD})

    incidents = play(fault)
    assert _kinds(incidents) == [("telemetry_fault", "telemetry")]
    assert "8 of 8 GPUs" in incidents[0].summary


def test_an_exporter_that_repeats_itself_for_ever_is_a_telemetry_fault(play: Play) -> None:
    last: dict[str, Reading] = {}

    def fault(at: int, reading: Reading) -> Reading:
        del at
        return last.setdefault(reading.uuid, reading)

    incidents = play(fault)
    assert _kinds(incidents) == [("telemetry_fault", "telemetry")]
    assert "stale: 4 GPUs of n0, 4 GPUs of n1" in incidents[0].summary


def test_gpus_that_fell_off_a_host_that_answers_are_a_loss_of_capacity(play: Play) -> None:
    incidents = play(lambda at, reading: None if reading.uuid == "GPU-13" else reading)
    kinds = _kinds(incidents)
    assert ("capacity_loss", "capacity") in kinds
    assert "telemetry" not in {family for _, family in kinds}
    told = next(one for one in incidents if one.kind == "capacity_loss")
    assert [(gpu.host, gpu.index) for gpu in told.gpus] == [("n1", 3)]


def test_an_exporter_that_is_down_is_a_telemetry_fault_and_no_loss_of_capacity(
    play: Play,
) -> None:
    incidents = play(lambda at, reading: reading if reading.host == "n0" else None)
    # What is left of the mean is lower: n0 does less than n1 did.
    assert {kind for kind, _ in _kinds(incidents)} == {"telemetry_fault"}
    told = next(one for one in incidents if one.family == "telemetry")
    assert "4 of 8 GPUs" in told.summary
    assert "unreachable: 4 GPUs of n1" in told.summary
    assert {gpu.host for gpu in told.gpus} == {"n1"}


def test_exporters_that_are_all_down_are_one_telemetry_fault_that_ends_with_it(
    play: Play,
) -> None:
    back = _WELL + 60
    incidents = play(lambda at, reading: reading if at >= back else None)
    assert _kinds(incidents) == [("telemetry_fault", "telemetry")]
    assert "8 of 8 GPUs" in incidents[0].summary
    assert incidents[0].resolve_reason == "recovered"


def test_a_job_that_stands_still_is_a_hang_and_its_telemetry_is_well(play: Play) -> None:
    spins = {"tensor_active": 0.0, "sm_active": 0.99, "gr_engine_active": 1.0}

    def fault(at: int, reading: Reading) -> Reading:
        power = {"power_w": 210.0 + at % 7}
        return replace(reading, values={**reading.values, **spins, **power})

    assert [kind for kind, _ in _kinds(play(fault))] == ["hang"]


def test_each_fault_of_a_job_names_its_own_hosts_and_reasons(play: Play) -> None:
    def fault(at: int, reading: Reading) -> Reading | None:
        if reading.host == "n0" and at < _WELL + 40:
            return replace(reading, values={**reading.values, **_DEAD})
        return None if reading.host == "n1" and at >= _WELL + 60 else reading

    found = [one for one in play(fault) if one.family == "telemetry"]
    first, second = sorted(found, key=lambda one: one.onset_ms)
    assert "zero_mismatch: 4 GPUs of n0" in first.summary
    assert "unreachable: 4 GPUs of n1" in second.summary
    assert ({gpu.host for gpu in first.gpus}, {gpu.host for gpu in second.gpus}) == (
        {"n0"},
        {"n1"},
    )


def test_a_moment_without_counters_is_nothing(play: Play) -> None:
    def fault(at: int, reading: Reading) -> Reading:
        broken = at < _WELL + 12
        return replace(reading, values={**reading.values, **_DEAD}) if broken else reading

    assert _kinds(play(fault)) == []
