"""A file that says who recorded jobs are: what it may hold, and how a wrong one is refused."""

from pathlib import Path

import numpy as np
import pytest

from detector.fleet import Gpu, Job
from detector.series import Window
from detector.store.described import described, read_described
from detector.store.recording import Recording, RecordingError

JSON = (
    '{"id": "b", "lineage": ["a", "z"], "gpu_model": "H100", "start": 1764000000, '
    '"gpus": ["G0", {"uuid": "G1", "host": "n1"}], "labels": {"image": "v2"}, "attempt": 2, '
    '"owner": null}\n\n{"id": "a", "lineage": "z", "image": "v1"}\n'
)
CSV = """id,lineage,gpu_model,image
b,"a,z",H100,v2

a,,,v1
"""


def written(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def recording(job: str, *roster: str) -> Recording:
    window = Window(times_ms=np.array([1], np.int64), fields={"ofu": np.array([0.4])})
    about = Job(id=job, roster=tuple(Gpu(uuid=uuid) for uuid in roster))
    return Recording(job=about, window=window)


def test_json_lines_say_the_same_as_a_hash(tmp_path: Path) -> None:
    jobs = read_described(written(tmp_path, "who.jsonl", JSON))
    assert jobs["b"] == Job(
        id="b",
        lineage=("a", "z"),
        gpu_model="H100",
        roster=(Gpu(uuid="G0"), Gpu(uuid="G1", host="n1")),
        start_ms=1_764_000_000_000,
        labels={"image": "v2", "attempt": "2"},
    )
    assert jobs["a"] == Job(id="a", lineage=("z",), labels={"image": "v1"})


def test_csv_says_the_same_and_an_empty_cell_says_nothing(tmp_path: Path) -> None:
    jobs = read_described(written(tmp_path, "who.csv", CSV))
    assert jobs == {
        "b": Job(id="b", lineage=("a", "z"), gpu_model="H100", labels={"image": "v2"}),
        "a": Job(id="a", labels={"image": "v1"}),
    }


@pytest.mark.parametrize(
    ("name", "text", "where", "why"),
    [
        ("w.csv", "id,lineage\na\n", "w.csv:2", "1 of 2 cells"),
        ("w.csv", "id\na\n\na\n", "w.csv:4", "described twice"),
        ("w.csv", "job,lineage\na,b\n", "w.csv:1", "no column id"),
        ("w.csv", "id,x,x\na,b,c\n", "w.csv:1", "a name of its own"),
        ("w.csv", "id,start\na,soon\n", "w.csv:2", "start: "),
        ("w.csv", 'id,x\na,"b\n', "w.csv:2", "no CSV"),
        ("w.csv", "id,x\n,b\n", "w.csv:2", "no usable id"),
        ("w.csv", "id\n", "w.csv", "describes no job"),
        ("w.jsonl", '{"id": "a"}\n{"id": \n', "w.jsonl:2", "one JSON object"),
        ("w.jsonl", '["a"]\n', "w.jsonl:1", "one JSON object"),
        ("w.jsonl", '{"id": "a", "labels": 3}', "w.jsonl:1", "labels: "),
        ("w.jsonl", '{"id": "a", "owner": {"x": 1}}', "w.jsonl:1", "owner: "),
        ("w.jsonl", '{"id": "a", "lineage": 7}', "w.jsonl:1", "lineage: write ids as text"),
        ("w.jsonl", '{"id": "a", "lineage": true}', "w.jsonl:1", "lineage: write ids"),
        ("w.jsonl", '{"id": "a", "lineage": ["b", 7]}', "w.jsonl:1", "lineage: write ids"),
        ("w.jsonl", '{"id": "a", "gpus": "8"}', "w.jsonl:1", "gpus: "),
        ("w.txt", "id\na\n", "w.txt", ".jsonl or .csv"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(
    name: str, text: str, where: str, why: str, tmp_path: Path
) -> None:
    path = written(tmp_path, name, text)
    with pytest.raises(RecordingError) as refused:
        read_described(path)
    message = str(refused.value)
    assert message.startswith(f"{tmp_path / where}: ")
    assert why in message
    assert "\n" not in message


def test_a_file_that_is_absent_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot be read"):
        read_described(tmp_path / "absent.csv")
    path = tmp_path / "who.csv"
    path.write_bytes(b"id\n\xff\xfe\n")
    with pytest.raises(RecordingError, match="not UTF-8"):
        read_described(path)


def test_recorded_gpus_stay_where_the_file_names_none(tmp_path: Path) -> None:
    recordings = {
        "a": recording("a", "w0", "w1"),
        "b": recording("b", "w0"),
        "c": recording("c"),
    }
    jobs = {
        "a": Job(id="a", owner="ann"),
        "b": Job(id="b", roster=(Gpu(uuid="G0"),)),
        "elsewhere": Job(id="elsewhere"),
    }
    found = described(recordings, jobs, path=tmp_path)
    assert (found["a"].job.owner, len(found["a"].job.roster)) == ("ann", 2)
    assert found["b"].job.roster == (Gpu(uuid="G0"),)
    assert found["c"] == recordings["c"]


def test_a_file_about_other_jobs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="none of the jobs recorded, such as 'a'"):
        described({"a": recording("a")}, {"A": Job(id="A")}, path=tmp_path / "who.csv")
