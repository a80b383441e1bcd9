"""Jobs that a real Prometheus server knows, in a real store: their past, then their present."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import redis

from detector.config import load
from detector.content import load as load_content
from detector.content import shipped
from detector.series import Window
from detector.service import Service
from detector.store.history import History, HistorySettings
from detector.store.keys import Keys
from tests.telemetry import plans, slurm_forms
from tests.telemetry.real_prometheus import Served


def lines(gpu: str, host: str, **labels: str) -> list[str]:
    """Return what an exporter says of a GPU of the plan, with another value each time."""
    own = {
        "gpu": gpu[-1], "UUID": f"GPU-{gpu}", "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": host, **labels,
    }  # fmt: skip
    text = ",".join(f'{name}="{value}"' for name, value in own.items())
    return [
        f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{text}}} 0.4{{n}}",
        f"DCGM_FI_DEV_SM_CLOCK{{{text}}} 1485",
    ]


def written(
    server: Served,
    client: redis.Redis,
    config_file: Path,
    job: str,
    exported: Sequence[str],
) -> Window:
    """Return a job's history after a service that has just begun saw it."""
    now = [time.time_ns() // 1_000_000]
    content = load_content(shipped() / "models", shipped() / "rules")
    with server.lock:
        server.exporter.lines = list(exported)
        service = Service(
            load(config_file), content, clock=lambda: now[0], only=("collect", "tick")
        )
        try:
            service.renew()
            assert service._collection is not None
            for _ in range(60):
                now[0] = time.time_ns() // 1_000_000
                service._collection.run()
                service._collection._first_sight.join(30)
                now[0] += 12_000
                service.tick()
                if service._collection.counts["ok"] > 8:
                    break
                time.sleep(0.5)
        finally:
            service.close()
            server.exporter.lines = []
    return History(client, Keys(), HistorySettings()).window(job, start_ms=0, end_ms=now[0] * 2)


@pytest.fixture
def config_file(prometheus: Served, valkey: str, tmp_path: Path) -> Path:
    file = tmp_path / "config.toml"
    file.write_text(
        f'[redis]\nurl = "unix://{valkey}"\n[inbox]\nwait = "1s"\n'
        f'[[source]]\ntype = "prometheus"\nurl = "{prometheus.url}"\n'
    )
    return file


def test_a_jobs_past_is_in_its_history_before_its_first_live_sample(
    prometheus: Served, redis_client: redis.Redis, config_file: Path
) -> None:
    exported = [line for k in "01" for line in lines(f"plain{k}", "node-a", hpc_job="plain")]
    found = written(prometheus, redis_client, config_file, "plain", exported)
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


def test_a_job_that_slurm_alone_knows_has_its_past_since_it_began(
    prometheus: Served, redis_client: redis.Redis, config_file: Path, tmp_path: Path
) -> None:
    began_ms = prometheus.until_ms - plans.SPAN_MS + 100 * plans.STEP_MS + 4_000
    job = slurm_forms.job(
        "23.11", job_id=9, nodes="node-c", start_time=began_ms // 1000, exclusive=True
    )
    (tmp_path / "queue.json").write_text(json.dumps(slurm_forms.document("23.11", job)))
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\ncat {tmp_path / 'queue.json'}\n")
    squeue.chmod(0o755)
    with config_file.open("a") as file:
        file.write(f'[slurm]\nvia = "squeue"\nsqueue = "{squeue}"\nsacct = ""\n')
    exported = lines("unnamed0", "node-c")
    found = written(prometheus, redis_client, config_file, "9", exported)
    past = found.times_ms < prometheus.until_ms
    # Readings that may be of the time before it began are nobody's.
    assert found.fields["ofu"][past] == pytest.approx(
        [plans.ofu(k) for k in range(103, 360)], abs=1e-4
    )
