"""`ofuwatch replay` with announcements and other metrics: from files to incidents."""

import json
from datetime import datetime
from pathlib import Path

import numpy as np
from click.testing import CliRunner

from detector.cli.replay import command

START_S, STEP_S = 1_790_000_000, 10
# Evaluations of 200 s every 2000 s, at the very level that the job falls to; SMs busy in them.
EVERY, LASTING, ONSET, COUNT = 200, 20, 1120, 1190


def written(folder: Path) -> tuple[Path, Path]:
    """Write what a job reported, and what it announced."""
    rng = np.random.default_rng(4)
    phases = range(EVERY, ONSET - 40, EVERY)
    share, sm = np.ones(COUNT), np.full(COUNT, 0.8)
    for first in phases:
        share[first : first + LASTING] = 0.6
    share[ONSET:], sm[ONSET:] = 0.6, 0.48
    ofu = 0.5 * share + 0.004 * rng.standard_normal(COUNT)
    sm = sm + 0.005 * rng.standard_normal(COUNT)
    rows = []
    for k in range(COUNT):
        time_s = START_S + STEP_S * (k + 1)
        rows += [f"{time_s},a,{ofu[k]:.5f},ofu", f"{time_s},a,{sm[k]:.5f},sm"]
        rows.append(f"{time_s},a,{120 + 400 * sm[k]:.1f},power")
    samples, told = folder / "samples.csv", folder / "events.csv"
    samples.write_text("\n".join(["timestamp,job,value,metric", *rows]) + "\n")
    lines = []
    for first in phases:
        start, end = (START_S + STEP_S * row for row in (first, first + LASTING))
        lines += [f"{start},a,evaluation,,", f"{end},a,evaluation,{start},{end}"]
    told.write_text("\n".join(["timestamp,job,kind,start,end", *lines]) + "\n")
    return samples, told


def delay_s(*arguments: str | Path) -> float:
    result = CliRunner().invoke(command, [*map(str, arguments), "--json", "-"])
    assert result.exit_code == 0
    (line,) = (json.loads(text) for text in result.stdout.splitlines())
    detected = datetime.fromisoformat(line["detected_at"]).timestamp()
    return detected - START_S - STEP_S * ONSET


def test_announcements_and_other_metrics_of_a_recording_tell_a_fall_early(
    tmp_path: Path,
) -> None:
    samples, told = written(tmp_path)
    assert delay_s(samples) > 400
    assert delay_s(samples, "--events", told) == 80
    without = tmp_path / "ofu.csv"
    rows = samples.read_text().splitlines()
    without.write_text("\n".join(row for row in rows if row.endswith((",ofu", "metric"))))
    assert 280 <= delay_s(without, "--events", told) <= 320
