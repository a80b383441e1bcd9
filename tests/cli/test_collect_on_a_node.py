"""``collect --once`` on a node, with the stand-ins for the driver's and DCGM's libraries."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from detector.cli.collect import command

ROOT = Path(__file__).parents[2]
FAKES = ROOT / "tests" / "fakes"
CONTENT = f'[content]\nmodels = "{ROOT / "models"}"\nrules = "{ROOT / "rules"}"\n'


def collect(*arguments: str, config: str, folder: Path) -> Result:
    file = folder / "config.toml"
    file.write_text(CONTENT + config)
    return CliRunner().invoke(command, ["--config", str(file), "--once", "--json", *arguments])


def test_once_waits_for_what_takes_two_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu: dict[str, Any] = {
        "uuid": "GPU-0", "name": "NVIDIA H100", "clock": 1500, "max_clock": 2000,
        "metrics": {"5": 40.0},
    }  # fmt: skip
    (tmp_path / "driver.json").write_text(
        json.dumps({"now_s": 1_800_000_000, "still": True, "gpus": [gpu]})
    )
    monkeypatch.setenv("PYNVML_STANDIN", str(tmp_path / "driver.json"))
    monkeypatch.setenv("PYTHONPATH", str(FAKES / "pynvml_standin"))
    result = collect("--source", "nvml", config="", folder=tmp_path)
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    record = json.loads(line)
    assert record["job"] is None
    assert record["gpus"][0]["ofu"] == pytest.approx(0.3)
    assert record["gpus"][0]["max_clock_source"] == "nvml"


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
