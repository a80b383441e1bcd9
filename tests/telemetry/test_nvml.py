"""The NVML source in its real worker process, against a stand-in for pynvml."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from detector.reading import Reading, Scrape
from detector.series import Duration
from detector.telemetry.nvml import NvmlSettings, build

STANDIN = Path(__file__).parents[1] / "fakes" / "pynvml_standin"
START_S = 1_800_000_000
METRICS: Mapping[str, Any] = {
    "1": 99.0, "2": 95.0, "3": 50.0, "5": 60.0, "10": 40.0, "20": 1.0, "21": 2.0, "60": 3.0,
    "61": 4.0,
}  # fmt: skip


def gpu(number: int, **more: Any) -> dict[str, Any]:
    return {
        "uuid": f"GPU-{number}", "name": "NVIDIA H100", "minor": 7 - number, "clock": 1500,
        "max_clock": 1980, "power_mw": 650_000, "limit_mw": 700_000, "energy_mj": 5_000,
        "temp": 60, "util": 100, "bits": 0, "metrics": dict(METRICS), **more,
    }  # fmt: skip


class Node:
    """A node: its driver's state, and the source that reads it."""

    def __init__(self, file: Path, **settings: Any) -> None:
        self.file = file
        self.state: dict[str, Any] = {"now_s": START_S, "gpus": [gpu(0), gpu(1)]}
        self.source = build(NvmlSettings(host="node1", **settings))

    def after(self, seconds: float, **state: Any) -> Scrape:
        self.state |= {"now_s": self.state["now_s"] + seconds, **state}
        whole = self.file.with_suffix(".new")
        whole.write_text(json.dumps(self.state))
        whole.replace(self.file)
        (scrape,) = self.source.scrape(round(self.state["now_s"] * 1000))
        return scrape


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setenv("PYNVML_STANDIN", str(tmp_path / "driver.json"))
    monkeypatch.setenv("PYTHONPATH", str(STANDIN))
    made = Node(tmp_path / "driver.json", deadline=Duration(20_000))
    yield made
    made.source.close()


def only(scrape: Scrape, entity: str = "GPU-0") -> Reading:
    assert scrape.error == ""
    (found,) = (reading for reading in scrape.readings if reading.entity == entity)
    return found


def test_the_second_scrape_has_the_means_since_the_first_in_canonical_units(node: Node) -> None:
    first = node.after(0)  # one sample tells nothing: that is no reading, and no fault
    assert (first.readings, first.dropped, first.error) == ((), (), "")
    node.state["gpus"][0]["metrics"]["5"] = [[0, 60.0], [START_S + 5, 20.0]]
    reading = only(node.after(10))
    assert reading.values["tensor_active"] == pytest.approx(0.4)
    assert reading.values["sm_active"] == pytest.approx(0.95)
    assert reading.values["pcie_rx_bytes"] == 2 * 2**20
    assert reading.values["nvlink_tx_bytes"] == 4 * 2**20
    assert reading.values["max_sm_clock_mhz"] == 1980
    assert reading.values["power_w"] == 650
    assert reading.values["power_limit_w"] == 700
    assert reading.values["energy_j"] == 5
    assert reading.values["gpu_util_pct"] == 100
    assert reading.time_ms == (START_S + 10) * 1000
    assert (reading.host, reading.index, reading.labels["minor_number"]) == ("node1", "0", "7")


def test_scrapes_without_time_between_wait_for_the_hundred_milliseconds(node: Node) -> None:
    node.state["still"] = True  # the driver's clock stands in this test; ours does not
    node.after(0)
    assert only(node.after(0)).values["tensor_active"] == pytest.approx(0.6)


@pytest.mark.parametrize("value", [float("nan"), -1.0, 150.0, 2.0**47])
def test_what_is_no_ratio_does_not_come_through(node: Node, value: float) -> None:
    node.state["gpus"][0]["metrics"]["5"] = value
    node.after(0)
    scrape = node.after(10)
    assert "tensor_active" not in only(scrape).values
    assert [(one.gpu, one.metric) for one in scrape.dropped] == [("GPU-0", "tensor_active")]


def test_a_gpu_older_than_hopper_says_so_and_keeps_its_other_counters(node: Node) -> None:
    node.state["gpus"][0] |= {"gpm": False, "name": "NVIDIA A100"}
    node.after(0)
    scrape = node.after(10)
    assert scrape.failing == "no_profiling"
    (why,) = {one.reason for one in scrape.dropped}
    assert "no GPM for NVIDIA A100, which begins with Hopper" in why
    assert 'type = "dcgm"' in why
    assert only(scrape).values["sm_clock_mhz"] == 1500
    assert only(scrape, "GPU-1").values["tensor_active"] == pytest.approx(0.6)


def test_each_instance_reads_for_itself_with_the_clock_of_its_gpu(node: Node) -> None:
    node.state["gpus"][0]["instances"] = [
        {"id": 7, "profile": "1g.10gb", "metrics": {"5": 30.0}},
        None,
        {"id": 2, "profile": "1c.3g.40gb", "metrics": {"5": 80.0}},
        {"id": 2, "profile": "2c.3g.40gb", "metrics": {"5": 80.0}},
    ]
    node.after(0)
    scrape = node.after(10)
    assert {one.entity for one in scrape.readings} == {"GPU-0/7", "GPU-0/2", "GPU-1"}
    large = only(scrape, "GPU-0/2")
    assert large.profile == "3g.40gb"
    assert large.values["tensor_active"] == pytest.approx(0.8)
    assert large.values["sm_clock_mhz"] == 1500
    assert not {"power_w", "gpu_util_pct", "pcie_rx_bytes"} & large.values.keys()


def test_a_lost_gpu_costs_no_other(node: Node) -> None:
    node.after(0)
    node.state["gpus"][0]["lost"] = True
    scrape = node.after(10)
    assert only(scrape, "GPU-1").values["tensor_active"] == pytest.approx(0.6)
    assert [one.metric for one in scrape.dropped] == ["gpu"]
    assert "dmesg | grep Xid" in scrape.dropped[0].reason


def test_a_gpu_that_must_be_reset_says_so_and_not_that_it_is_too_old(node: Node) -> None:
    node.after(0)
    node.state["gpus"][0]["reset"] = True
    scrape = node.after(10)
    assert [one.uuid for one in scrape.readings] == ["GPU-1"]
    assert scrape.failing == ""
    (lost,) = scrape.lost
    assert lost.reason.endswith("the GPU must be reset; nvidia-smi --gpu-reset")


def test_a_tensor_counter_that_the_driver_refuses_is_named_with_its_gpu(node: Node) -> None:
    del node.state["gpus"][1]["metrics"]["5"]
    node.after(0)
    scrape = node.after(10)
    (why,) = scrape.dropped
    assert (why.gpu, why.metric) == ("GPU-1", "tensor_active")
    assert why.reason.startswith("NVML: error 3 (3): this GPU or driver does not have it")


def test_a_clock_without_a_value_is_named_with_its_gpu(node: Node) -> None:
    node.state["gpus"][1]["clock"] = 0
    node.after(0)
    (why,) = node.after(10).dropped
    assert (why.gpu, why.metric, why.reason) == ("GPU-1", "sm_clock_mhz", "clock of 0")


def test_a_gpu_with_mig_and_no_instance_is_told(node: Node) -> None:
    node.state["gpus"][0]["instances"] = [None]
    node.after(0)
    scrape = node.after(10)
    assert [one.uuid for one in scrape.readings] == ["GPU-1"]
    (why,) = scrape.dropped
    assert (why.gpu, why.metric) == ("GPU-0", "mig")
    assert why.reason.endswith("nvidia-smi mig -lgi")


def test_counters_that_a_gpu_lacks_are_just_not_there(node: Node) -> None:
    for name in ("util", "energy_mj", "bits", "minor"):
        node.state["gpus"][0][name] = None
    node.after(0)
    reading = only(node.after(10))
    assert not {"gpu_util_pct", "energy_j", "clock_event_bits"} & reading.values.keys()
    assert reading.labels == {}
    assert reading.values["tensor_active"] == pytest.approx(0.6)


def test_a_driver_that_is_not_there_is_one_line_and_is_found_when_it_comes(node: Node) -> None:
    error = node.after(0, driver=9).error
    assert "no NVIDIA driver is loaded" in error
    assert "\n" not in error
    node.after(1, driver=0)
    assert only(node.after(10)).values["tensor_active"] == pytest.approx(0.6)


def test_a_driver_that_goes_and_comes_is_initialised_again(node: Node) -> None:
    node.after(0)
    assert "no NVIDIA driver is loaded" in node.after(10, driver=9).error
    node.after(10, driver=0)
    assert only(node.after(10)).values["tensor_active"] == pytest.approx(0.6)


def test_a_library_that_is_older_than_the_driver_is_loaded_anew_with_the_next_scrape(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "pynvml.py"
    current = (STANDIN / "pynvml.py").read_text()
    library.write_text(f"{current}\n\ndef nvmlDeviceGetUUID(_):\n    raise NVMLError(18)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    error = node.after(0).error
    assert error.startswith("NVML: ")  # of no single GPU
    assert "the driver was updated, and an older one is still loaded" in error
    library.write_text(current)
    node.after(10)
    assert only(node.after(10)).values["tensor_active"] == pytest.approx(0.6)


def test_a_gpu_whose_monitoring_fails_keeps_its_other_counters_and_says_why(node: Node) -> None:
    node.state["gpus"][0]["metrics"] = None
    node.after(0)
    scrape = node.after(10)
    assert scrape.failing == "no_profiling"
    assert [(one.metric, one.gpu) for one in scrape.dropped] == [("tensor_active", "GPU-0")]
    assert only(scrape).values["sm_clock_mhz"] == 1500
    assert only(scrape, "GPU-1").values["tensor_active"] == pytest.approx(0.6)


def test_a_library_without_a_call_costs_that_counter_alone(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (STANDIN / "pynvml.py").read_text()
    text = text.replace("def nvmlDeviceGetCurrentClocksEventReasons", "def nvmlUnheardOf")
    (tmp_path / "pynvml.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    node.after(0)
    values = only(node.after(10)).values
    assert values["tensor_active"] == pytest.approx(0.6)
    assert "clock_event_bits" not in values


def test_no_gpus_is_an_error_and_no_empty_success(node: Node) -> None:
    assert "no GPUs here" in node.after(0, gpus=[]).error


def test_a_driver_that_hangs_costs_one_deadline(node: Node) -> None:
    node.source.close()
    node.source = build(NvmlSettings(host="node1", deadline=Duration(5_000)))
    node.after(0)
    assert "no answer within 5 s, so the worker was killed" in node.after(10, hang=True).error
    node.after(10, hang=False)
    assert only(node.after(10)).values["tensor_active"] == pytest.approx(0.6)


def test_without_the_package_the_error_says_what_to_install(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pynvml.py").write_text("raise ModuleNotFoundError('pynvml')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "pip install 'ofuwatch[nvml]'" in node.after(0).error


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "raise ImportError('libfoo\\nmissing')",
            "is broken (ImportError: libfoo missing); pip",
        ),
        ("print 'for Python 2'", "is broken (SyntaxError"),
        (
            "class NVMLError(Exception): pass",
            "be of nvidia-ml-py 12.560 or later; pip",
        ),
    ],
)
def test_bindings_that_are_broken_or_too_old_are_one_line_with_what_to_install(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    (tmp_path / "pynvml.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    error = node.after(0).error
    assert told in error
    assert "\n" not in error
