"""A job that a real Prometheus server knows, in a real store: its past, then its present."""

import time
from pathlib import Path

import numpy as np
import pytest
import redis

from detector.config import load
from detector.content import load as load_content
from detector.content import shipped
from detector.service import Service
from detector.store.history import History, HistorySettings
from detector.store.keys import Keys
from tests.telemetry import plans
from tests.telemetry.real_prometheus import Served

_LINES = [
    f'{name}{{gpu="{gpu}",UUID="GPU-plain{gpu}",modelName="NVIDIA H100 80GB HBM3",'
    f'Hostname="node-a",hpc_job="plain"}} {value}'
    for name, value in (
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "0.4{n}"),
        ("DCGM_FI_DEV_SM_CLOCK", "1485"),
    )
    for gpu in range(2)
]


def test_a_jobs_past_is_in_its_history_before_its_first_live_sample(
    prometheus: Served, redis_client: redis.Redis, valkey: str, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text(
        f'[redis]\nurl = "unix://{valkey}"\n[inbox]\nwait = "1s"\n'
        f'[[source]]\ntype = "prometheus"\nurl = "{prometheus.url}"\n'
    )
    config = load(tmp_path / "config.toml")
    content = load_content(shipped() / "models", shipped() / "rules")
    now = [time.time_ns() // 1_000_000]
    with prometheus.lock:
        prometheus.exporter.lines = _LINES
        service = Service(config, content, clock=lambda: now[0], only=("collect", "tick"))
        try:
            service.renew()
            assert service._collection is not None
            for _ in range(60):
                now[0] = time.time_ns() // 1_000_000
                service._collection.run()
                service._collection._first_sight.join(30)
                now[0] += config.collect.interval + 2_000
                service.tick()
                if service._collection.counts["ok"] > 8:
                    break
                time.sleep(0.5)
        finally:
            service.close()
            prometheus.exporter.lines = []
    found = History(redis_client, Keys(), HistorySettings()).window(
        "plain", start_ms=0, end_ms=now[0] * 2
    )
    past = found.times_ms < prometheus.until_ms
    assert np.count_nonzero(past) == 360
    assert found.fields["ofu"][past] == pytest.approx(
        [plans.ofu(k) for k in range(360)], abs=1e-4
    )
    assert np.count_nonzero(~past) >= 1
    assert found.fields["ofu"][~past] == pytest.approx(0.4 * 0.75, abs=0.01)
    assert set(found.fields["gpus"]) == {2.0}
    assert found.gpus is not None
    assert found.gpus.shape[1] == 2
