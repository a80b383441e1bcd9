"""What is used of pynvml: the stand-in has it as the real package has it."""

import ast
import inspect
import re
from pathlib import Path

import pynvml
import pytest

from detector.telemetry import nvml_reader
from detector.telemetry.nvml_reader import RATES, RATIOS

STANDIN = Path(__file__).parents[1] / "fakes" / "pynvml_standin" / "pynvml.py"
FUNCTIONS = {
    one.name: [argument.arg for argument in one.args.args]
    for one in ast.parse(STANDIN.read_text()).body
    if isinstance(one, ast.FunctionDef) and one.name.startswith("nvml")
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_stand_in_has_the_signatures_of_the_real_package(name: str) -> None:
    assert list(inspect.signature(getattr(pynvml, name)).parameters) == FUNCTIONS[name]


def test_everything_that_the_reader_calls_is_in_the_stand_in() -> None:
    nodes = list(ast.walk(ast.parse(inspect.getsource(nvml_reader))))
    used = {one.attr for one in nodes if isinstance(one, ast.Attribute)}
    used |= {str(one.value) for one in nodes if isinstance(one, ast.Constant)}
    used = {name for name in used if re.fullmatch(r"nvml\w+", name)}
    assert len(used) > 20
    assert used - FUNCTIONS.keys() <= {"nvmlReturn"}


def test_metrics_have_the_numbers_that_the_real_package_gives_them() -> None:
    named = {
        "GRAPHICS_UTIL": 1001, "SM_UTIL": 1002, "SM_OCCUPANCY": 1003, "INTEGER_UTIL": 1016,
        "ANY_TENSOR_UTIL": 1004, "DFMA_TENSOR_UTIL": 1015, "HMMA_TENSOR_UTIL": 1014,
        "IMMA_TENSOR_UTIL": 1013, "DRAM_BW_UTIL": 1005, "FP64_UTIL": 1006, "FP32_UTIL": 1007,
        "FP16_UTIL": 1008, "PCIE_TX_PER_SEC": 1009, "PCIE_RX_PER_SEC": 1010,
        "NVLINK_TOTAL_TX_PER_SEC": 1011, "NVLINK_TOTAL_RX_PER_SEC": 1012,
    }  # fmt: skip
    real = {getattr(pynvml, f"NVML_GPM_METRIC_{name}"): field for name, field in named.items()}
    assert real == RATIOS | RATES


def test_structures_and_constants_are_the_real_packages() -> None:
    request = pynvml.c_nvmlGpmMetricsGet_t()
    assert [name for name, *_ in request._fields_] == [
        "version", "numMetrics", "sample1", "sample2", "metrics",
    ]  # fmt: skip
    names = {name for name, *_ in pynvml.c_nvmlGpmMetric_t._fields_}
    assert {"metricId", "nvmlReturn", "value"} <= names
    assert len(request.metrics) == pynvml.NVML_GPM_METRIC_MAX
    assert (pynvml.NVML_GPM_METRICS_GET_VERSION, pynvml.NVML_CLOCK_SM) == (1, 1)
    assert pynvml.NVML_TEMPERATURE_GPU == 0
    errors = ("UNINITIALIZED", "DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND", "GPU_IS_LOST")
    assert [getattr(pynvml, f"NVML_ERROR_{name}") for name in errors] == [1, 9, 12, 15]
    assert pynvml.NVMLError(12).value == 12


def test_buffers_of_the_real_structure_take_what_the_reader_puts_in() -> None:
    request = pynvml.c_nvmlGpmMetricsGet_t()
    sample = pynvml.c_nvmlGpmSample_t()
    request.sample1, request.sample2 = sample, sample
    request.metrics[3].metricId = 5
    assert request.metrics[3].metricId == 5
