"""`ofuwatch replay` as a stranger or another program calls it."""

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from detector.cli.replay import command

REAL = Path(__file__).parents[1] / "recordings" / "real"
FALLS, RISES, QUIET = (
    REAL / f"{name}.csv" for name in ("lora70b_gb300x8_r6", "perfci_robust", "ssd_h100x8_r2")
)
KEYS = [
    "job", "kind", "direction", "severity", "onset", "detected_at", "paged_at", "resolved_at",
    "resolve_reason", "before", "after", "relative_change", "confidence", "gpus", "rule",
    "features",
]  # fmt: skip
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z")


def called(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(command, [str(item) for item in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def refusal(result: Result) -> str:
    """Return the one line that was said instead of results."""
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("ofuwatch: ")
    return line


def test_json_is_one_line_an_incident_with_its_keys_in_order(tmp_path: Path) -> None:
    target = tmp_path / "found.jsonl"
    assert called(RISES, FALLS, "--json", target, "--quiet").exit_code == 0
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert [line["job"] for line in lines] == ["lora70b_gb300x8_r6", "perfci_robust"]
    for line in lines:
        assert list(line) == KEYS
        assert line["direction"] in ("down", "up")
        assert line["severity"] in ("info", "warning", "error", "critical")
        for key in ("onset", "detected_at"):
            assert MOMENT.fullmatch(line[key])
        assert line["onset"] < line["detected_at"]
        assert line["before"] > line["after"] > 0
        assert line["relative_change"] == pytest.approx(line["after"] / line["before"] - 1)
        assert 0 < line["confidence"] <= 1
        assert line["gpus"] == []
        assert all(isinstance(name, str) for name in line["features"])
    assert (lines[0]["resolved_at"], lines[0]["resolve_reason"]) == (None, None)
    assert MOMENT.fullmatch(lines[1]["resolved_at"])
    assert lines[1]["resolve_reason"] == "recovered"


def test_nothing_found_is_exit_0_and_no_line(tmp_path: Path) -> None:
    target = tmp_path / "found.jsonl"
    result = called(QUIET, "--json", target)
    assert result.exit_code == 0
    assert target.read_bytes() == b""
    assert "1 job, 918 samples over 37 min of job time: no incident." in result.stdout


def test_json_to_stdout_is_json_and_nothing_else() -> None:
    result = called(FALLS, "--json", "-")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["job"] == FALLS.stem


def test_two_calls_write_the_same_bytes_whatever_the_order(tmp_path: Path) -> None:
    for name, paths in (("a", (RISES, FALLS)), ("b", (FALLS, RISES))):
        called(*paths, "--json", tmp_path / name, "--plot", tmp_path / f"{name}s", "--quiet")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    for picture in (tmp_path / "as").iterdir():
        assert picture.read_bytes() == (tmp_path / "bs" / picture.name).read_bytes()


def test_the_summary_says_what_when_how_fast_how_big_and_how_it_ended() -> None:
    result = called(RISES, FALLS, QUIET)
    head, first, rise, second, _, total, rises = result.stdout.splitlines()[:7]
    heads = ["job", "found", "severity", "onset (UTC)", "delay", "change", "level", "end"]
    assert re.split(" {2,}", head) == heads
    assert re.match(r"lora70b_gb300x8_r6 +\w+ +\w+ +2025-10-08 06:40:\d\d +\d+ s +-35", first)
    assert first.endswith("open")
    assert re.match(r"perfci_robust +rise +none +2020-09-13 .* \+6\.8 % .* followed", rise)
    assert re.match(
        r"perfci_robust +\w+ +\w+ +2020-09-13 .* -[67]\.\d % .*recovered in", second
    )
    assert total.startswith("3 jobs, 1,128 samples over ")
    assert "2 incidents in 2 jobs (" in total
    assert rises == "1 lasting rise became the new baseline, without an alert."


def fallen(folder: Path, *jobs: str) -> Path:
    """Write a recording in which each job falls by a third half-way."""
    path = folder / "r.csv"
    rows = [
        f'{1_760_000_000 + 10 * k},"{job}",{0.4 + 0.002 * (k % 3) - 0.13 * (k > 120)}\n'
        for k in range(240)
        for job in jobs
    ]
    path.write_text("timestamp,job,value\n" + "".join(rows))
    return path


def test_a_piped_summary_cuts_no_job_and_keeps_the_terminal_whole(tmp_path: Path) -> None:
    name = "x" * 300
    result = called(fallen(tmp_path, name, "[red]a\x1b[31m", "b\nc"))
    assert name in result.stdout
    assert "[red]a[31m" in result.stdout
    assert "b c" in result.stdout
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_gets_lines_that_fit(width: int) -> None:
    environment = {"PATH": os.environ["PATH"], "COLUMNS": str(width), "FORCE_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "detector.cli", "replay", str(RISES), str(FALLS)],
        cwd=REAL.parents[2],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    lines = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).splitlines()
    assert max(map(len, lines)) <= width
    starts = [line.split(" ")[0] for line in lines]
    assert {"lora70b_gb300x8_r6", "perfci_robust"} <= set(starts)
    assert sum(" unexplained " in line and " % " in line for line in lines) == 2


def test_plots_have_safe_names_one_for_each_job(tmp_path: Path) -> None:
    names = ["a/b", "a_b", "A_b", "../../x", ".", "-", "n" * 400, "Ünï", "[q]", "x.png", "a\nb"]
    folder = tmp_path / "deep" / "plots"
    result = called(fallen(tmp_path, *names), "--plot", folder, "--quiet")
    assert result.exit_code == 0
    written = sorted(path.name for path in folder.iterdir())
    assert len({name.casefold() for name in written}) == len(names)
    assert {"A_b.png", "Ünï.png", "x.png.png"} <= set(written)
    for path in folder.iterdir():
        assert re.fullmatch(r"\w[\w.=+-]*\.png", path.name)
        assert len(path.name.encode()) < 255
        assert path.read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in tmp_path.iterdir()} == {"deep", "r.csv"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "r.csv:1: the file is empty"),
        ("timestamp,job,value\n1760000000,j,0.4\n\n1760000010,j,x\n", "r.csv:4: value 'x' is"),
        ("timestamp,job,value\n", "r.csv: no samples"),
    ],
)
def test_bad_input_is_exit_2_with_one_line_and_no_output(
    tmp_path: Path, content: str, said: str
) -> None:
    path, target = tmp_path / "r.csv", tmp_path / "found.jsonl"
    path.write_text(content)
    result = called(path, "--json", target, "--plot", tmp_path / "plots")
    assert result.exit_code == 2
    assert said in refusal(result)
    assert not target.exists()
    assert not (tmp_path / "plots").exists()


def test_an_output_that_cannot_be_written_is_exit_3_with_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for option, target, why in (
        ("--json", tmp_path / "no" / "found.jsonl", "No such file or directory"),
        ("--json", tmp_path, "Is a directory"),
        ("--json", Path("/dev/full"), "No space left on device"),
        ("--plot", file, "is a file"),
        ("--plot", file / "plots", "Not a directory"),
    ):
        result = called(FALLS, option, target, "--quiet")
        assert result.exit_code == 3
        assert refusal(result).startswith(f"ofuwatch: {option} {target}: ")
        assert why in refusal(result)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere and read everything")
def test_what_must_not_be_read_or_written_is_said(tmp_path: Path) -> None:
    secret, locked = fallen(tmp_path, "j"), tmp_path / "locked"
    secret.chmod(0)
    locked.mkdir()
    locked.chmod(stat.S_IRUSR | stat.S_IXUSR)
    result = called(secret)
    assert (result.exit_code, "Permission denied" in refusal(result)) == (2, True)
    result = called(FALLS, "--plot", locked, "--quiet")
    assert (result.exit_code, "Permission denied" in refusal(result)) == (3, True)


@pytest.mark.parametrize("option", [("--json", "-"), ()])
def test_a_full_disk_behind_stdout_is_exit_3(option: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "detector.cli", "replay", str(FALLS), *option],
            cwd=REAL.parents[2],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            text=True,
        )
    assert done.returncode == 3
    said = [line for line in done.stderr.splitlines() if line]
    assert len(said) == 1
    assert said[0].endswith(": cannot be written: No space left on device")


def test_models_and_rules_that_are_not_there_are_exit_2(tmp_path: Path) -> None:
    for option in ("--models", "--rules"):
        result = called(FALLS, option, tmp_path / "none", "--quiet")
        assert result.exit_code == 2
        assert "none: cannot be read: No such file or directory" in result.stderr


def test_the_page_shows_what_is_printed_now() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "replay.md").read_text()
    block = page.partition("    $ ofuwatch replay ")[2].partition("\n\n`delay`")[0]
    command, *shown = block.splitlines()
    names = command.removesuffix(" | cat").split()
    files = [str(root / "tests" / "recordings" / "real" / name) for name in names]
    result = called(*files)
    assert result.stdout.splitlines() == [line.removeprefix("    ") for line in shown]


def csv(path: Path, rows: Sequence[tuple[float, str, object]]) -> Path:
    lines = [f"{time_s},{job},{value}" for time_s, job, value in rows]
    path.write_text("\n".join(["timestamp,job,value", *lines]) + "\n")
    return path


START_S = 1_790_000_000


def noisy(count: int, level: float = 0.4, seed: int = 1) -> list[float]:
    values = level * (1 + 0.01 * np.random.default_rng(seed).standard_normal(count))
    return [round(float(value), 5) for value in values]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([0.4] * 400, "the same value since 2026-09-21T14:13:30Z"),
        ([0] * 400, "all zero since"),
        ([0.4, 0.41, 0.4], "needs 10 samples over 1m, has 3 over 20s, about"),
        (["NaN"] * 20, "no finite value yet"),
        ([""] * 20 + noisy(4), "needs 10 samples over 1m, has 4 over 30s"),
        ([0] * 40 + noisy(4), "no level in 44 samples; sought anew at every 10th"),
    ],
    ids=["constant", "zero", "three", "nan", "nan first", "zero first"],
)
def test_a_series_without_a_baseline_is_told_and_never_an_alert(
    values: list[object], why: str, tmp_path: Path
) -> None:
    rows = [(START_S + 10 * (k + 1), "odd", value) for k, value in enumerate(values)]
    told = called(csv(tmp_path / "odd.csv", rows)).stdout
    assert "no incident." in told
    assert "No baseline yet when the recording ends: 1 job." in told
    assert f"\n  odd: {why}" in told


def test_samples_twice_or_in_any_order_are_the_series_they_make(tmp_path: Path) -> None:
    values = noisy(240) + noisy(120, 0.2)
    rows = [(START_S + 10 * (k + 1), "j", value) for k, value in enumerate(values)]
    told = set()
    for name, some in (
        ("plain", rows),
        ("twice", rows + rows),
        ("back", rows[200:] + rows[:200]),
        ("reversed", rows[::-1]),
    ):
        target = tmp_path / f"{name}.jsonl"
        called(csv(tmp_path / f"{name}.csv", some), "--json", target, "--quiet")
        told.add(target.read_text())
    (lines,) = told
    assert lines.count("\n") == 1


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs of one name, the later one a quarter slower."""
    first = [(START_S + 10 * (k + 1), "a", value) for k, value in enumerate(noisy(720))]
    slow = noisy(180, 0.3, seed=2)
    then = [(START_S + 9000 + 10 * (k + 1), "b", value) for k, value in enumerate(slow)]
    return csv(tmp_path / "runs.csv", first + then)


def test_a_file_about_the_jobs_lets_a_run_be_held_to_the_one_it_continues(
    runs: Path, tmp_path: Path
) -> None:
    who = tmp_path / "who.csv"
    who.write_text("id,name,lineage,image\na,llm,,v1\nb,llm,a,v2\n")
    alone = called(runs).stdout
    assert "no incident." in alone
    told = called(runs, "--jobs", who).stdout
    assert "slow_from_start" in told
    assert "OFU 40.0 % -> 30.0 % (before: a)" in told
    target = tmp_path / "found.jsonl"
    called(runs, "--jobs", who, "--json", target, "--quiet")
    (line,) = (json.loads(text) for text in target.read_text().splitlines())
    assert list(line) == KEYS
    assert line["relative_change"] == pytest.approx(-0.25, abs=0.01)


def test_a_lineage_that_leads_nowhere_is_told_in_the_summary(
    runs: Path, tmp_path: Path
) -> None:
    who = tmp_path / "who.jsonl"
    who.write_text('{"id": "b", "lineage": ["c", "b"]}\n')
    told = called(runs, "--jobs", who).stdout
    assert "Not, or not all, taken over from an earlier run: 1 job." in told
    assert "  b: c is not known; b is the job itself" in told


def test_a_wrong_file_about_the_jobs_is_one_line_with_its_place(
    runs: Path, tmp_path: Path
) -> None:
    who = tmp_path / "who.csv"
    who.write_text("id,start\na,soon\n")
    result = called(runs, "--jobs", who)
    assert result.exit_code == 2
    assert f"{who}:2: start: " in refusal(result)


def announcing(folder: Path, *rows: str, header: str = "timestamp,job,kind,end,note") -> Path:
    path = folder / "events.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_a_fall_that_was_announced_is_no_incident(tmp_path: Path) -> None:
    recording = fallen(tmp_path, "a", "b")
    told = announcing(tmp_path, f"{1_760_000_000 + 1_205},a,planned_change,,half the batch")
    result = called(recording, "--events", told, "--json", "-")
    assert result.exit_code == 0
    assert [json.loads(line)["job"] for line in result.stdout.splitlines()] == ["b"]


def test_what_was_announced_only_afterwards_was_not_known_in_time(tmp_path: Path) -> None:
    recording = fallen(tmp_path, "a")
    start, told = 1_760_000_000 + 1_205, 1_760_000_000 + 2_300
    file = announcing(
        tmp_path, f"{told},a,planned_change,{start}", header="timestamp,job,kind,start"
    )
    result = called(recording, "--events", file, "--json", "-")
    assert [json.loads(line)["job"] for line in result.stdout.splitlines()] == ["a"]


@pytest.mark.parametrize(
    ("rows", "header", "said"),
    [
        (["x,a,checkpoint,,"], None, ":2: timestamp 'x' is neither epoch seconds, epoch "),
        (["1,a,checkpoint,,", "", "2,a,checkpoint"], None, ":4: 3 of 5 cells"),
        (["1760000000,a,checkpoint,1759999999,"], None, ":2: end '1759999999' is before the"),
        (["1760000000,a,checkpoint,soon,"], None, ":2: end 'soon' is neither"),
        (["1760000000,,checkpoint,,"], None, ":2: the cell 'job' is empty"),
        (["1760000000,a,,,"], None, ":2: the cell 'kind' is empty"),
        ([], None, ": no announcements: there is no row below the header"),
        (["1,a"], "timestamp,job", ":1: no column kind; the header must have timestamp,job,"),
        (["1,a,b,c"], "timestamp,job,kind,kind", ":1: the column 'kind' is there twice"),
        (["1760000000,other,checkpoint,,"], None, ": it announces nothing about the jobs of "),
    ],
)
def test_announcements_that_cannot_be_meant_are_refused_with_file_line_and_reason(
    tmp_path: Path, rows: list[str], header: str | None, said: str
) -> None:
    file = announcing(tmp_path, *rows, **({"header": header} if header else {}))
    result = called(fallen(tmp_path, "a"), "--events", file)
    assert result.exit_code == 2
    line = refusal(result)
    assert f"{file}{said}" in line


def test_a_file_of_announcements_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = called(fallen(tmp_path, "a"), "--events", tmp_path / "none.csv")
    assert result.exit_code == 2
    assert "none.csv: cannot be read: No such file" in refusal(result)
