"""`ofuwatch calibrate` as an operator calls it."""

import os
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from detector.cli.calibrate import command
from detector.content import load
from detector.tables import shipped
from tests.analysis.notation import levels, times


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder of models that may be written."""
    folder = tmp_path / "models"
    shutil.copytree(shipped() / "models", folder)
    return folder


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six jobs of four hours, each with one dip, of 3 to 18 min."""
    folder = tmp_path_factory.mktemp("recordings")
    for minutes in (3, 5, 7, 10, 14, 18):
        values = levels((0.45, 240), (0.27, 2 * minutes), (0.45, 240 - 2 * minutes))
        rows = zip(times(len(values), every_s=30).tolist(), values.tolist(), strict=True)
        lines = (f"{at / 1000},dips-{minutes},{ofu:.5f}\n" for at, ofu in rows)
        (folder / f"{minutes}.csv").write_text("timestamp,job,value\n" + "".join(lines))
    return folder


def called(*arguments: object) -> Result:
    done = CliRunner().invoke(command, [str(one) for one in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done


def bound(models: Path, name: str = "notify") -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((models / "ofu.toml").read_text())[name]
    return table


def test_a_lower_target_is_kept_by_a_stricter_knob_which_is_written(
    models: Path, recordings: Path
) -> None:
    chosen = []
    for target in (30, 8):
        done = called(recordings, "--models", models, "--target", target, "--workers", 1)
        assert done.exit_code == 0, done.output
        assert "<- chosen" in done.output
        said = bound(models)
        chosen.append(said["caution"])
        assert said["calibration"]["high"] <= target
        assert said["calibration"]["data"] == "6 recordings"
    assert chosen[0] < chosen[1]
    read = load(models, shipped() / "rules")
    (model,) = (one for one in read.models if one.name == "ofu")
    assert model.notify.caution == chosen[1]


def test_what_is_found_in_recordings_is_named_and_a_dry_run_writes_nothing(
    models: Path, recordings: Path
) -> None:
    before = (models / "ofu.toml").read_bytes()
    done = called(recordings, "--models", models, "--target", 30, "--workers", 1, "--dry-run")
    assert done.exit_code == 0, done.output
    assert "cut out what was a real change" in done.output
    assert "dips-18" in done.output
    assert (models / "ofu.toml").read_bytes() == before


def refused(*arguments: object) -> str:
    done = called(*arguments)
    assert done.exit_code in (2, 3)
    *_, line = done.stderr.splitlines()
    assert line.startswith("ofuwatch: ")
    return line


def test_too_few_job_days_are_refused_before_the_work(models: Path, recordings: Path) -> None:
    line = refused(recordings, "--models", models)
    assert "can show no rate below" in line
    assert "for 0.1 it takes 37" in line
    assert "it takes 3689" in refused("--bound", "page", "--models", models, "--job-days", 100)
    assert "no jobs" in refused("--models", models, "--job-days", 0)


def test_too_short_recordings_are_named_and_refused(models: Path, tmp_path: Path) -> None:
    file = tmp_path / "short.csv"
    rows = "".join(f"{at / 1000},short,0.4\n" for at in times(60).tolist())
    file.write_text("timestamp,job,value\n" + rows)
    assert "at least 2 h" in refused(file, "--models", models)


def test_recordings_without_the_metric_are_refused(models: Path, recordings: Path) -> None:
    said = refused(recordings, "--models", models, "--model", "tokens")
    assert "2 h of tokens above zero" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "off"], 'did you mean "ofu"?'),
        (["--model", "tokens", "--bound", "page"], "has no [page]"),
        (["nowhere.csv"], "nowhere.csv"),
        (["--models", "nowhere"], "nowhere"),
        (["--target", "nan"], "not a rate"),
        (["--model", "tokens"], "name recordings that hold tokens"),
        (["--model", "tokens", "--job-days", 50], "made-up jobs report ofu alone"),
    ],
)
def test_bad_input_is_one_clear_line(models: Path, arguments: list[str], says: str) -> None:
    assert says in refused("--models", models, *arguments)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_said_before_the_work(models: Path) -> None:
    (models / "ofu.toml").chmod(0o400)
    assert "ofuwatch init DIR" in refused("--models", models)


def test_shipped_models_of_a_wheel_are_never_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = tmp_path / "_content"
    shutil.copytree(shipped() / "models", packaged / "models")
    monkeypatch.setattr("detector.tables.shipped", lambda: packaged)
    assert "ofuwatch init DIR" in refused("--models", packaged / "models")


def test_the_command_that_is_written_names_the_configuration_as_it_was_given(
    models: Path, recordings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = models.parent / "ofuwatch.toml"
    shutil.copytree(shipped() / "rules", models.parent / "rules")
    config.write_text('[content]\nmodels = "models"\n')
    for given in (["--config", str(config)], [f"--config={config}"]):
        arguments = [str(recordings), *given, "--target", "30", "--workers", "1"]
        monkeypatch.setattr("sys.argv", ["ofuwatch", "calibrate", *arguments])
        done = called(*arguments)
        assert done.exit_code == 0, done.output
        said = bound(models)["calibration"]["command"]
        assert said.startswith(f"ofuwatch calibrate {recordings.name} {' '.join(given)} ")
