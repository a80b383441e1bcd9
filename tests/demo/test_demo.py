"""The demonstration, as a newcomer starts it: the real service, from samples to charts."""

import subprocess
import sys
from pathlib import Path

import pytest

from detector.demo.score import Score


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What a short demo of twelve jobs printed, and the folder that it wrote to."""
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "detector.cli", "demo", "--jobs", "12"]
    done = subprocess.run(
        [*command, "--seconds", "12", "--out", str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, folder


@pytest.mark.parametrize(
    "told",
    ["debug_flag_stall", "precision_shift", "throttle", "straggler", "hang", "capacity_loss"],
)
def test_the_faults_are_told_by_their_names(shown: tuple[str, Path], told: str) -> None:
    assert told in shown[0]


def test_real_recordings_are_found_by_the_live_service_as_by_replay(
    shown: tuple[str, Path],
) -> None:
    rows = [line for line in shown[0].splitlines() if line.startswith("  lora70b_gb300x8_r6")]
    assert len(rows) == 1
    assert "1m" in rows[0]


def test_every_alert_has_its_chart_and_no_event_came_twice(shown: tuple[str, Path]) -> None:
    text, folder = shown
    delivered = text[text.index("Delivered: ") :].replace("\n", " ")
    messages = int(delivered.split()[1])
    assert messages >= 10
    assert f"{messages} charts in their threads" in delivered
    assert "0 of them twice" in delivered
    assert len(list((folder / "charts").glob("*.png"))) == messages


def test_no_secret_is_in_the_services_log(shown: tuple[str, Path]) -> None:
    log = (shown[1] / "serve.log").read_text()
    for name in ("slack.token", "webhook.secret"):
        assert (shown[1] / name).read_text().strip() not in log


def test_a_score_is_good_only_when_all_was_told_and_nothing_else() -> None:
    assert Score(told=3, missed=0, false=0).good
    assert not Score(told=3, missed=1, false=0).good
    assert not Score(told=3, missed=0, false=1).good
