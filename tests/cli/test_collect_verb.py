"""The verbs ``ofuwatch collect --once`` and ``ofuwatch doctor``, against pages over HTTP."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from detector.cli import main
from tests.telemetry.api import Asked, Reply, serving

_PAGES = Path(__file__).parents[1] / "data" / "dcgm"
_NAMES = sorted(path.stem for path in _PAGES.glob("*.prom"))


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def _jobs(*arguments: str) -> dict[str | None, dict[str, Any]]:
    result = _run("collect", "--once", "--json", *arguments)
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return {line["job"]: line for line in lines}


def _findings(*arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    result = _run("doctor", "--json", *arguments)
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return result.exit_code, {one["kind"]: one for one in found}


def _page(name: str) -> bytes:
    return (_PAGES / f"{name}.prom").read_bytes()


def _always(page: bytes) -> Any:
    def answer(asked: Asked) -> Reply:
        del asked
        return 200, page

    return answer


@pytest.mark.parametrize("name", _NAMES)
def test_a_page_over_http_says_what_the_same_page_in_a_file_says(name: str) -> None:
    with serving(_always(_page(name))) as exporter:
        scraped = _jobs("--source", "exporter", "--target", f"{exporter.url}/metrics")
    saved = _jobs("--target", str(_PAGES / f"{name}.prom"))
    for one in (scraped, saved):
        for line in one.values():
            del line["timestamp"]
            for gpu in line["gpus"]:
                del gpu["host"]  # a page without a host label has only the URL's
    assert scraped == saved


@pytest.mark.parametrize("name", _NAMES)
def test_each_gpu_has_the_job_and_the_verdict_that_its_page_holds(name: str) -> None:
    expected = json.loads((_PAGES / f"{name}.expected.json").read_bytes())["gpus"]
    found = _jobs("--target", str(_PAGES / f"{name}.prom"))
    gpus = {
        (gpu["uuid"], gpu["instance"] or None): gpu
        for line in found.values()
        for gpu in line["gpus"]
    }
    for gpu in expected:
        told = gpus[gpu["uuid"], gpu["gi_id"]]
        assert told["tensor"] == gpu["fields"].get("tensor_active")
        assert told["clock"] == gpu["fields"].get("sm_clock_mhz")
        if gpu["ofu"] is not None:
            assert told["ofu"] == pytest.approx(gpu["ofu"], abs=2e-6)


def test_the_mean_of_a_job_is_over_its_usable_gpus_alone() -> None:
    for line in _jobs("--target", str(_PAGES / "08_zero_mismatch.prom")).values():
        usable = [gpu["ofu"] for gpu in line["gpus"] if gpu["quality"] == "ok"]
        assert line["n"] == len(usable)
        mean = pytest.approx(sum(usable) / len(usable), abs=1e-6) if usable else None
        assert line["ofu"] == mean


def test_a_gpu_that_two_exporters_show_counts_once_and_for_the_job_that_one_names() -> None:
    labelled = _page("05_k8s_pods")
    plain = re.sub(rb',(container|namespace|pod)="[^"]*"', b"", labelled)
    with serving(_always(labelled)) as one, serving(_always(plain)) as other:
        alone = _jobs("--target", f"{one.url}/metrics")
        both = _jobs("--target", f"{other.url}/metrics", "--target", f"{one.url}/metrics")
    assert len(alone) > 2
    for line in (*alone.values(), *both.values()):
        del line["timestamp"]
    assert both == alone


def test_idle_gpus_stand_under_no_job() -> None:
    assert None in _jobs("--target", str(_PAGES / "05_k8s_pods.prom"))


def test_gpus_stand_host_by_host_and_there_by_their_number() -> None:
    line = 'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{gpu="{}",UUID="GPU-{}",Hostname="{}"}} 0.5\n'
    places = [("b", 3), ("a", 10), ("a", 7), ("b", 0), ("a", 9)]
    page = "".join(line.format(gpu, f"{host}{gpu}", host) for host, gpu in places)
    with serving(_always(page.encode())) as exporter:
        (found,) = _jobs("--target", f"{exporter.url}/metrics").values()
    shown = [(gpu["host"], int(gpu["index"])) for gpu in found["gpus"]]
    assert shown == sorted(places)


def test_a_line_that_is_none_is_shown_by_its_beginning() -> None:
    page = b'DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-a"} 1410\nwhat \xff is that\n'
    with serving(_always(page)) as exporter:
        target = f"{exporter.url}/metrics"
        told = _run("collect", "--once", "--target", target).stdout
        doubted = _run("doctor", "--wait", "0s", "--target", target).stdout
    assert "1 value left out:" in told
    line = r"line 2: not a sample line: 'what \xff is that'"
    assert line in told
    assert line in doubted


def test_what_takes_two_rounds_is_said_to_be_unknown() -> None:
    for line in _jobs("--target", str(_PAGES / "01_h100_8gpu_host.prom")).values():
        assert line["unknown"] == ["stale", "frozen", "handover"]
    table = _run("collect", "--once", "--target", str(_PAGES / "01_h100_8gpu_host.prom"))
    assert "unknown" in table.stdout


def test_a_target_that_is_down_costs_the_other_nothing() -> None:
    with serving(_always(_page("01_h100_8gpu_host"))) as exporter:
        result = _run(
            "collect", "--once", "--json", "--target", exporter.url, "--target", "127.0.0.1:1"
        )
    assert result.exit_code == 0
    assert json.loads(result.stdout)["n"] == 8
    assert result.stderr.count("\n") == 1
    assert "connection refused" in result.stderr


def test_nothing_read_exits_1_and_a_wrong_option_2() -> None:
    assert _run("collect", "--once", "--target", "127.0.0.1:1").exit_code == 1
    for wrong in (
        ("collect", "--once", "--source", "exporter"),
        ("collect", "--once", "--source", "redfish", "--target", "x:1"),
        ("collect", "--once", "--target", "http://[broken"),
        ("collect", "--json"),
        ("collect",),
        ("doctor", "--wait", "soon", "--target", "x:1"),
    ):
        result = _run(*wrong)
        assert result.exit_code == 2, wrong
        assert result.stderr.startswith("ofuwatch: ")
        assert "Traceback" not in result.output


def test_one_round_needs_no_store_and_leaves_nothing_behind(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "REDIS_URL": "redis://127.0.0.1:1", "PATH": ""}
    command = [sys.executable, "-m", "detector.cli", "collect", "--once", "--json"]
    done = subprocess.run(
        [*command, "--target", str(_PAGES / "01_h100_8gpu_host.prom")],
        env=environment | {"PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["job"] == "48213"
    assert list(tmp_path.iterdir()) == []


def test_doctor_names_the_row_that_is_missing_from_the_exporters_list() -> None:
    code, found = _findings("--target", str(_PAGES / "01_h100_8gpu_host.prom"))
    assert code == 0
    assert "DCGM_FI_DEV_MAX_SM_CLOCK" in found["max_clock_not_exported"]["remedy"]
    assert found["max_clock_not_exported"]["level"] == "note"
    assert "pace_unknown" in found


def test_doctor_finds_counters_stuck_at_zero() -> None:
    code, found = _findings("--target", str(_PAGES / "08_zero_mismatch.prom"))
    assert code == 1
    assert "restart" in found["zero_mismatch"]["remedy"]


def test_every_finding_has_a_reason_and_a_remedy() -> None:
    for name in _NAMES:
        _, found = _findings("--target", str(_PAGES / f"{name}.prom"))
        for one in found.values():
            assert one["reason"]
            assert one["remedy"] or one["level"] == "ok"


def test_doctor_tells_a_page_without_profiling_counters_from_one_without_jobs() -> None:
    page = _page("01_h100_8gpu_host")
    bare = b"\n".join(line for line in page.split(b"\n") if b"_PROF_" not in line)
    nobody = page.replace(b',hpc_job="48213"', b"")
    with serving(_always(bare)) as exporter:
        _, without_counters = _findings("--wait", "0s", "--target", exporter.url)
        exporter.answer = _always(nobody)
        _, without_jobs = _findings("--wait", "0s", "--target", exporter.url)
    assert "no_profiling_counters" in without_counters
    assert "no_jobs_named" not in without_counters
    assert "no_jobs_named" in without_jobs
    assert "no_profiling_counters" not in without_jobs


def test_doctor_tells_counters_that_are_blank_everywhere_from_counters_that_are_not_there() -> (
    None
):
    page = _page("01_h100_8gpu_host")
    blank = re.sub(rb"(?m)^(DCGM_FI_PROF_.*\}) \S+$", rb"\1 140737488355328.000000", page)
    with serving(_always(blank)) as exporter:
        _, found = _findings("--wait", "0s", "--target", exporter.url)
    assert "dcgmi dmon -e 1004" in found["tensor_active_blank"]["remedy"]
    assert {"no_profiling_counters", "tensor_active_missing"}.isdisjoint(found)


def test_doctor_says_of_a_clock_that_is_blank_everywhere_that_no_gpu_has_ofu() -> None:
    page = _page("01_h100_8gpu_host")
    blank = re.sub(rb"(?m)^(DCGM_FI_DEV_SM_CLOCK\{.*\}) \S+$", rb"\1 2147483632", page)
    with serving(_always(blank)) as exporter:
        _, found = _findings("--wait", "0s", "--target", exporter.url)
    assert found["sm_clock_mhz_blank"]["reason"].endswith("8 of 8 GPUs")
    assert "sm_clock_mhz_missing" not in found
    assert found["answered"]["level"] == "note"
    assert found["answered"]["reason"].endswith("answer, none with OFU")


def test_doctor_names_both_rows_of_why_a_clock_is_slow_since_an_exporter_knows_one() -> None:
    _, found = _findings("--target", str(_PAGES / "01_h100_8gpu_host.prom"))
    remedy = found["counters_not_exported"]["remedy"]
    assert (
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS (before DCGM 4 instead of it DCGM_FI_DEV_" in remedy
    )


def test_doctor_sees_an_exporter_that_repeats_itself() -> None:
    with serving(_always(_page("01_h100_8gpu_host"))) as exporter:
        _, found = _findings("--wait", "1s", "--target", exporter.url)
    assert "slow_collection" in found
    assert "--collect-interval" in found["slow_collection"]["remedy"]


def test_doctor_says_of_an_exporter_that_is_down_how_to_start_it() -> None:
    code, found = _findings("--wait", "0s", "--target", "127.0.0.1:1")
    assert code == 1
    assert "start" in found["no_readings"]["remedy"]


@pytest.mark.parametrize("verb", [("collect",), ("serve", "--only", "collect")])
def test_to_collect_without_a_source_is_refused(tmp_path: Path, verb: tuple[str, ...]) -> None:
    (tmp_path / "config.toml").write_text(f'[redis]\nstate = "{tmp_path}"\n')
    done = _run(*verb, "--config", str(tmp_path / "config.toml"))
    assert done.exit_code == 2
    assert "no [[source]] is configured" in done.stderr
