"""Slurm's commands and slurmrestd, as real processes and real HTTP."""

import json
import os
import socket
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from detector.series import Duration
from detector.telemetry.scheduler import SchedulerError
from detector.telemetry.scheduler_settings import SlurmSettings
from detector.telemetry.slurm import Slurm
from tests.telemetry.api import Asked, Reply, serving
from tests.telemetry.slurm_forms import GENERATIONS, document, ended, job

Command = Callable[[str, str], Path]
NOW = 1_700_000_000_000


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Put a command on the PATH that does what a shell script says."""

    def made(name: str, script: str) -> Path:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return made


def printing(content: object, tmp_path: Path, name: str = "answer.json") -> str:
    (tmp_path / name).write_text(json.dumps(content))
    return f'echo "$@" > {tmp_path}/{name}.asked; cat {tmp_path}/{name}'


def slurm(tmp_path: Path, **given: Any) -> Slurm:
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    names = {name: str(tmp_path / name) for name in ("squeue", "sacct")}
    return Slurm(SlurmSettings(via="squeue", **names | given), environ=environ)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_squeue_of_each_generation_is_read(
    generation: str, command: Command, tmp_path: Path
) -> None:
    command("squeue", printing(document(generation, job(generation, job_id=7)), tmp_path))
    census = slurm(tmp_path).look(NOW)
    assert [run.job.id for run in census.runs] == ["7"]
    asked = (tmp_path / "answer.json.asked").read_text()
    assert "--json" in asked
    assert "PENDING" not in asked


def test_sacct_is_asked_for_the_runs_of_the_last_days(command: Command, tmp_path: Path) -> None:
    answer = {"jobs": [ended(5, start=10, end=20)], "errors": []}
    command("sacct", printing(answer, tmp_path))
    assert [run.job.id for run in slurm(tmp_path).past(NOW)] == ["5"]
    asked = (tmp_path / "answer.json.asked").read_text()
    assert "--starttime=2023-11-11T22:13:20" in asked
    assert slurm(tmp_path, sacct="").past(NOW) == ()


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (
            "echo \"squeue: unrecognized option '--json'\" >&2; exit 1",
            "21.08 or later is needed",
        ),
        (
            "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)'"
            " >&2; exit 1",
            "Unable to contact slurm controller",
        ),
        (
            "echo 'squeue: error: serializer_g_init: cannot find serializer plugin for json'"
            " >&2; exit 1",
            "install Slurm's JSON plugin",
        ),
        ("echo JOBID PARTITION NAME", "printed no JSON"),
        ("echo '[]'", "no list of jobs"),
        ("true", "printed no JSON"),
        ("exit 3", "squeue failed: exit 3"),
        ("kill -9 $$", "squeue failed"),
        ("sleep 30 & sleep 30", "was not done in 0.3 s"),
        ("exec >&-; sleep 30", "was not done in 0.3 s"),
        ("while :; do echo x; done", "was not done in 0.3 s"),
        (
            'echo \'{"jobs": [], "errors": [{"error": "Unable to contact slurm controller",'
            '"error_number": 1800}]}\'',
            "Unable to contact slurm controller",
        ),
    ],
)
def test_what_is_wrong_with_squeue_is_said_in_one_line(
    script: str, told: str, command: Command, tmp_path: Path
) -> None:
    command("squeue", script)
    timeout = Duration(300 if "not done" in told else 10_000)
    with pytest.raises(SchedulerError) as error:
        slurm(tmp_path, timeout=timeout).look(NOW)
    assert told in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_a_command_that_is_not_there_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SchedulerError, match=r"squeue cannot be run .*set squeue to its path"):
        slurm(tmp_path).look(NOW)


def test_an_endless_answer_is_cut_off(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("detector.telemetry.slurm._LONGEST", 1 << 20)
    command(
        "squeue", "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done"
    )
    with pytest.raises(SchedulerError, match="printed more than 1 MiB"):
        slurm(tmp_path).look(NOW)


def rest(url: str, **given: Any) -> Slurm:
    return Slurm(SlurmSettings(via="slurmrestd", url=url, **given), environ={"JWT": "secret"})


def restd(served: Mapping[str, object]) -> Callable[[Asked], Reply]:
    """Answer as a slurmrestd that serves some paths and refuses one token."""

    def answer(asked: Asked) -> Reply:
        path = asked.path.partition("?")[0]
        if path not in served:
            return 404, {"errors": []}
        stale = asked.headers.get("x-slurm-user-token") == "stale"
        return (401, b"Authentication failure") if stale else (200, served[path])

    return answer


@pytest.mark.parametrize("unix", [False, True])
def test_slurmrestd_is_read_in_the_newest_version_that_it_serves(
    unix: bool, tmp_path: Path
) -> None:
    served = {
        "/slurm/v0.0.42/jobs": document("25.11", job("25.11", job_id=7)),
        "/slurmdb/v0.0.42/jobs": {"jobs": [ended(5, start=10, end=20)], "errors": []},
    }
    with serving(restd(served), unix=tmp_path / "socket" if unix else None) as api:
        asked = rest(api.url, token_env="JWT", user="ofu")
        assert [run.job.id for run in asked.look(NOW).runs] == ["7"]
        assert [run.job.id for run in asked.past(NOW)] == ["5"]
        before = len(api.asked)
        asked.look(NOW)
        asked.close()
    assert len(api.asked) == before + 1
    assert api.asked[-1].path == "/slurm/v0.0.42/jobs"
    assert api.asked[-1].headers["x-slurm-user-token"] == "secret"
    assert api.asked[-1].headers["x-slurm-user-name"] == "ofu"


def test_a_token_is_read_anew_and_a_stale_one_named(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with serving(restd({"/slurm/v0.0.42/jobs": document("25.11")})) as api:
        asked = rest(api.url, token_file=str(file))
        with pytest.raises(SchedulerError, match=r"token_file .* cannot be read"):
            asked.look(NOW)
        file.write_text("stale\n")
        with pytest.raises(SchedulerError, match=r"refuses the token \(401\)") as error:
            asked.look(NOW)
        assert "stale" not in str(error.value)
        file.write_text("good\n")
        assert asked.look(NOW).runs == ()
        asked.close()


def test_a_slurmrestd_that_speaks_http_is_not_asked_for_a_certificate() -> None:
    with serving(restd({})) as api:
        asked = rest(api.url.replace("http:", "https:"))
        with pytest.raises(SchedulerError, match="speaks http, no https; write http://"):
            asked.look(NOW)
        asked.close()


def test_a_slurmrestd_of_another_age_says_so() -> None:
    with serving(restd({"/slurm/v0.0.30/jobs": {}})) as api:
        asked = rest(api.url)
        with pytest.raises(SchedulerError, match="does not serve any known version"):
            asked.look(NOW)
        asked.close()


def test_nobody_at_the_address_is_said_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}", f"unix://{tmp_path}/none.socket"):
        asked = rest(url)
        with pytest.raises(SchedulerError, match="cannot connect") as error:
            asked.look(NOW)
        assert "\n" not in str(error.value)
        asked.close()


def test_settings_that_cannot_be_asked_are_refused() -> None:
    with pytest.raises(ValueError, match="url must say where slurmrestd is"):
        SlurmSettings(via="slurmrestd")
    with pytest.raises(ValueError, match="interval must be at least 1s"):
        SlurmSettings(interval=Duration(5))
