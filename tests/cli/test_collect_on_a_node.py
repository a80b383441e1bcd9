"""``collect --once`` and ``doctor`` on a node, with stand-ins for the libraries there."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from detector.cli import main
from detector.telemetry.dcgm_engine import PROFILING
from tests.telemetry import test_dcgm, test_nvml

ROOT = Path(__file__).parents[2]
FAKES = ROOT / "tests" / "fakes"
CONTENT = f'[content]\nmodels = "{ROOT / "models"}"\nrules = "{ROOT / "rules"}"\n'


DCGM = f'[[source]]\ntype = "dcgm"\nbindings = "{test_dcgm.STANDIN}"\n'
KEYS = {"uuid", "ofu", "tensor", "clock", "quality", "reason"}


def run(verb: str, *arguments: str, config: str, folder: Path) -> Result:
    file = folder / "config.toml"
    file.write_text(CONTENT + config)
    return CliRunner().invoke(main, [verb, "--config", str(file), "--json", *arguments])


def collect(*arguments: str, config: str, folder: Path) -> Result:
    return run("collect", "--once", *arguments, config=config, folder=folder)


def findings(*arguments: str, config: str, folder: Path) -> tuple[int, dict[str, Any]]:
    result = run("doctor", "--wait", "0s", *arguments, config=config, folder=folder)
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return result.exit_code, {one["kind"]: one for one in found}


def engine(folder: Path, **more: Any) -> None:
    """Write a host engine that goes by the real clock."""
    gpu = {"id": 0, "uuid": "GPU-0", "name": "NVIDIA H100", "minor": 0,
           "prof": list(PROFILING)}  # fmt: skip
    state = {"gpus": [gpu], "instances": [], "values": {"1:0": dict(test_dcgm.BUSY)}, **more}
    (folder / "node.json").write_text(json.dumps(state))


@pytest.fixture(autouse=True)
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let both stand-ins read this test's node."""
    monkeypatch.setenv("PYDCGM_STANDIN", str(tmp_path / "node.json"))
    monkeypatch.setenv("PYNVML_STANDIN", str(tmp_path / "node.json"))
    monkeypatch.setenv("PYTHONPATH", str(FAKES / "pynvml_standin"))


@pytest.mark.parametrize(("source", "told"), [("dcgm", "dcgm"), ("nvml", "nvml")])
def test_once_waits_for_what_takes_two_samples_and_names_the_job_of_the_mapping(
    tmp_path: Path, source: str, told: str
) -> None:
    if source == "dcgm":
        engine(tmp_path)
    else:
        state = {"now_s": 1_800_000_000, "still": True, "gpus": [test_nvml.gpu(0)]}
        (tmp_path / "node.json").write_text(json.dumps(state))
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "0").write_text("4711\n")
    os.utime(tmp_path / "jobs" / "0", (time.time() - 3600,) * 2)  # it has run for an hour
    config = f'[collect]\nhpc_directory = "{tmp_path / "jobs"}"\n{DCGM}'
    result = collect("--source", source, config=config, folder=tmp_path)
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    record = json.loads(line)
    (gpu,) = record["gpus"]
    assert record.keys() >= {"job", "timestamp", "ofu", "n", "gpus"}
    assert gpu.keys() >= KEYS
    assert (record["job"], record["n"]) == ("4711", 1)
    assert record["ofu"] == gpu["ofu"] == pytest.approx(0.6 * 1500 / 1980, abs=1e-6)
    assert (gpu["tensor"], gpu["clock"]) == (pytest.approx(0.6), 1500)
    assert (gpu["quality"], gpu["reason"], gpu["max_clock_source"]) == ("ok", "", told)


def test_a_node_without_gpus_is_an_alarm_and_no_empty_success(tmp_path: Path) -> None:
    engine(tmp_path, gpus=[])
    result = collect(config=DCGM, folder=tmp_path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("ofuwatch: 127.0.0.1:5555: DCGM has no GPUs")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("state", "reason", "remedy"),
    [
        ({"gpus": []}, "DCGM has no GPUs", "systemctl restart nvidia-dcgm"),
        ({"refuse_connect": -21}, "no host engine answers", "systemctl start nvidia-dcgm, but"),
        ({"refuse_connect": -12}, "different versions", "nv-hostengine --version tells"),
        (
            {"refuse_connect": -25},
            "libdcgm was not",
            "install datacenter-gpu-manager-4-core (DCGM",
        ),
        ({"refuse_connect": -56}, "without the driver", "systemctl restart nvidia-dcgm"),
        ({"refuse_connect": -99}, "error -99 (-99)", "journalctl -u nvidia-dcgm"),
    ],
)
def test_doctor_has_one_command_for_an_engine_that_gives_nothing(
    tmp_path: Path, state: dict[str, Any], reason: str, remedy: str
) -> None:
    engine(tmp_path, **state)
    code, found = findings(config=DCGM, folder=tmp_path)
    assert code == 1
    assert found.keys() == {"no_readings"}
    assert reason in found["no_readings"]["reason"]
    assert found["no_readings"]["remedy"].startswith(remedy)


def test_doctor_shows_places_with_what_was_seen_and_the_command_beneath(tmp_path: Path) -> None:
    engine(tmp_path, gpus=[])
    (tmp_path / "config.toml").write_text(CONTENT + DCGM)
    result = CliRunner().invoke(main, ["doctor", "--config", str(tmp_path / "config.toml")])
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "127.0.0.1:5555",
        "  TROUBLE  DCGM has no GPUs: it may have started before the driver",
        "           -> systemctl restart nvidia-dcgm",
        "1 in trouble, 0 to note, 0 ok",
    ]
    # What does not answer is not waited for, to be asked a second time.
    assert (tmp_path / "node.json.log").read_text().count('["connect"') == 1


@pytest.mark.parametrize(
    ("state", "kind", "remedy"),
    [
        ({"refuse_groups": -29}, "no_profiling", "systemctl cat nvidia-dcgm shows User="),
        (
            {"refuse_groups": -33},
            "no_profiling",
            "install datacenter-gpu-manager-4-proprietary",
        ),
        ({"refuse_profiling": -37}, "contention", "end it (Nsight, ncu, CUPTI)"),
        ({"refuse_profiling": -54}, "paused", "dcgmi profile --resume"),
    ],
)
def test_doctor_tells_why_profiling_fails_once_and_what_mends_it(
    tmp_path: Path, state: dict[str, Any], kind: str, remedy: str
) -> None:
    engine(tmp_path, **state)
    code, found = findings(config=DCGM, folder=tmp_path)
    assert code == 1
    assert list(found) == [kind, "no_jobs_named", "pace_unknown", "answered"]
    assert found[kind]["remedy"].startswith(remedy)


def test_doctor_says_of_a_gpu_before_hopper_that_the_driver_has_no_counters(
    tmp_path: Path,
) -> None:
    gpus = [test_nvml.gpu(0, gpm=False, name="NVIDIA A100")]
    state = {"now_s": 1_800_000_000, "still": True, "gpus": gpus}
    (tmp_path / "node.json").write_text(json.dumps(state))
    code, found = findings("--source", "nvml", config="", folder=tmp_path)
    assert code == 1
    assert "the driver has no GPM for NVIDIA A100, which" in found["no_profiling"]["reason"]
    assert found["no_profiling"]["remedy"] == 'use type = "dcgm"'


def test_doctor_sends_nobody_to_dcgm_where_the_driver_is_asked(tmp_path: Path) -> None:
    stuck = test_nvml.gpu(0, metrics={**test_nvml.METRICS, "1": 0.0, "2": 0.0, "5": 0.0})
    state = {"now_s": 1_800_000_000, "still": True, "gpus": [stuck]}
    (tmp_path / "node.json").write_text(json.dumps(state))
    _, found = findings("--source", "nvml", config="", folder=tmp_path)
    told = found["zero_mismatch"]
    assert told["remedy"].startswith("nvidia-smi --gpu-reset")
    assert not any(word in f"{told}" for word in ("dcgm", "exporter", "host engine"))


def test_doctor_notes_a_gpu_that_mig_leaves_nothing_of(tmp_path: Path) -> None:
    gpus = [test_nvml.gpu(0, instances=[None]), test_nvml.gpu(1)]
    state = {"now_s": 1_800_000_000, "still": True, "gpus": gpus}
    (tmp_path / "node.json").write_text(json.dumps(state))
    _, found = findings("--source", "nvml", config="", folder=tmp_path)
    told = found["mig_without_instances"]
    assert (told["level"], told["remedy"]) == ("note", "nvidia-smi mig -lgi")
    assert told["reason"] == "GPU-0: MIG is on, and there is no instance"


def test_doctor_says_of_a_mapping_that_cannot_be_read_what_is_to_be_done(
    tmp_path: Path,
) -> None:
    engine(tmp_path)
    config = f'[collect]\nhpc_directory = "{tmp_path / "jobs"}"\n{DCGM}'
    code, found = findings(config=config, folder=tmp_path)
    assert code == 1
    assert "nothing is known of who runs where" in found["source_broken"]["reason"]
    assert found["source_broken"]["remedy"].startswith("let the prolog make it, or set")


def test_doctor_says_of_a_machine_without_a_driver_just_that(tmp_path: Path) -> None:
    if Path("/proc/driver/nvidia").exists() or Path("/dev/kfd").exists():
        pytest.skip("this machine has a driver of GPUs")
    (tmp_path / "node.json").write_text(json.dumps({"driver": 12}))
    code, found = findings(config="", folder=tmp_path)
    assert (code, list(found)) == (1, ["no_driver"])


def test_a_node_without_dcgm_is_told_what_to_install(tmp_path: Path) -> None:
    config = f'[[source]]\ntype = "dcgm"\nbindings = "{tmp_path}"\n'
    result = collect(config=config, folder=tmp_path)
    assert result.exit_code != 0
    assert "no DCGM bindings" in result.stderr


def test_an_address_that_would_start_an_engine_is_refused_where_it_stands(
    tmp_path: Path,
) -> None:
    result = collect(config='[[source]]\ntype = "dcgm"\naddress = ""\n', folder=tmp_path)
    assert result.exit_code != 0
    assert "would start a second one" in result.stderr
