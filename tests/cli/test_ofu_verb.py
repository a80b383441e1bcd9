"""The verb ``ofuwatch ofu``."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from detector.analysis.ofu import PRECISIONS
from detector.cli import main

_COUNTERS = ("--tensor", "0.52", "--clock", "1710 MHz")


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["ofu", *arguments])


def _json(*arguments: str) -> dict[str, Any]:
    result = _run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    value: dict[str, Any] = json.loads(result.stdout)
    return value


def test_ofu_is_printed_with_its_bounds_and_where_they_come_from() -> None:
    result = _run(*_COUNTERS, "--max-clock", "1980 MHz")
    assert result.exit_code == 0
    assert "OFU             0.4491  = tensor 0.52 x 1710 MHz / 1980 MHz" in result.stdout
    assert "0.4191..0.4391" in result.stdout
    assert "arXiv 2605.20799" in result.stdout
    assert "0.22" in result.stdout


def test_the_units_of_the_two_clocks_need_not_be_the_same() -> None:
    mixed = _json("--tensor", "0.52", "--clock", "1710000000 Hz", "--max-clock", "1.98 GHz")
    assert mixed["ofu"] == pytest.approx(0.52 * 1710 / 1980)
    assert mixed["mfu_interval"] == pytest.approx([mixed["ofu"] - 0.03, mixed["ofu"] - 0.01])


def test_a_model_gives_the_maximal_clock_and_the_data_sheet() -> None:
    given = _json(*_COUNTERS, "--gpu", "NVIDIA H100 80GB HBM3", "--precision", "bf16")
    assert (given["gpu"], given["max_clock_mhz"]) == ("H100-SXM", 1980)
    (row,) = given["datasheet"]
    assert row["mfu"] == pytest.approx(0.52 * 1710 / 1830)
    assert row["peak_tflops"] == 989.4
    assert not row["tensor_clock_implied"]
    # Each figure that went into it, the model's maximal clock included.
    assert {"smi-h100", "tensor-boost", "h100-lockwood"} == set(given["sources"])
    text = _run(*_COUNTERS, "--gpu", "H100-SXM", "--precision", "bf16").stdout
    for source in given["sources"].values():
        assert source["url"] in text


def test_without_precision_each_one_is_shown_and_what_is_missing_is_said() -> None:
    result = _run(*_COUNTERS, "--gpu", "GB200")
    assert result.exit_code == 0
    for precision in ("bf16", "fp8", "fp4"):
        assert f"\n  {precision} " in result.stdout
    assert "no source gives the clock of GB200's int8 peak" in result.stdout
    assert "* stated by no source" in result.stdout


def test_products_divide_the_padding_out_of_ofu_and_mfu() -> None:
    products = ("--gemm", "8192x8192x8192@128x256x64*3", "--gemm", "4097x4097x4097@128x128x64")
    given = _json(*_COUNTERS, "--gpu", "H100-SXM", "--precision", "bf16", *products)
    ideal = 3 * 1099511627776 + 137539641346
    factor = (3 * 1099511627776 + 148446904320) / ideal
    assert given["executed_over_ideal"] == pytest.approx(factor)
    (row,) = given["datasheet"]
    assert row["mfu_tile_corrected"] == pytest.approx(row["mfu"] / factor)
    low, high = row["mfu_interval"]
    assert (low + high) / 2 == pytest.approx(row["mfu_tile_corrected"])
    assert high - low == pytest.approx(0.04)
    text = _run(*_COUNTERS, "--gpu", "H100-SXM", *products).stdout
    assert "1089 tiles in 9 waves of 132 SMs, 0.917 full" in text


def test_nvfp4_is_the_four_bit_format() -> None:
    assert (
        _json(*_COUNTERS, "--gpu", "B200", "--precision", "NVFP4")["datasheet"][0]["precision"]
        == "fp4"
    )


def test_the_models_are_listed_with_a_dash_where_no_source_gives_a_figure() -> None:
    result = _run("--list-gpus")
    assert result.exit_code == 0
    lines = {line.split()[0]: line.split() for line in result.stdout.splitlines()}
    assert lines["H100-SXM"][1:4] == ["1980", "132", "fp64"]
    assert lines["H100-NVL"][1:4] == ["-", "132", "bf16"]
    listed = json.loads(_run("--list-gpus", "--json").stdout)
    assert {"sources", "gpu"} == set(listed)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--tensor", "0.52"), "give --tensor and --clock"),
        (("--tensor", "0.52", "--clock", "1710"), "'1710' has no unit; write '1710 MHz'"),
        ((*_COUNTERS, "--max-clock", "1980"), "--max-clock '1980' has no unit"),
        ((*_COUNTERS,), "give --max-clock, or --gpu"),
        ((*_COUNTERS, "--max-clock", "1980 Hz"), "is no SM clock"),
        ((*_COUNTERS, "--max-clock", "1200 MHz"), "are they swapped?"),
        (
            ("--tensor", "nan", *_COUNTERS[2:], "--gpu", "H200"),
            "--tensor nan is outside 0..1.02",
        ),
        (("--tensor", "52", *_COUNTERS[2:], "--gpu", "H200"), "give a ratio, not percent"),
        (("--tensor", "half", *_COUNTERS[2:], "--gpu", "H200"), "'half' is no number"),
        ((*_COUNTERS, "--gpu", "H100"), "did you mean H100-SXM or H100-PCIe or H100-NVL?"),
        ((*_COUNTERS, "--gpu", "H100-SMX"), "did you mean H100-SXM"),
        ((*_COUNTERS, "--gpu", "abacus"), "--list-gpus lists them"),
        ((*_COUNTERS, "--gpu", "H100-NVL"), "no source gives the maximal clock of H100-NVL"),
        ((*_COUNTERS, "--gpu", "H200", "--precision", "fp12"), f"are {', '.join(PRECISIONS)}"),
        (
            (*_COUNTERS, "--max-clock", "1980 MHz", "--precision", "fp8"),
            "--precision needs --gpu",
        ),
        ((*_COUNTERS, "--gpu", "H200", "--gemm", "1x2x3"), "write MxNxK@TMxTNxTK[*WEIGHT]"),
        ((*_COUNTERS, "--gpu", "H200", "--gemm", "1x2x3@0x1x1"), "tile_m must be at least 1"),
        (
            ("--list-gpus", "--table", "/nowhere/gpus.toml"),
            "/nowhere/gpus.toml: cannot be read",
        ),
    ],
)
def test_what_can_not_be_meant_is_refused_in_one_line(
    arguments: tuple[str, ...], said: str
) -> None:
    result = _run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("ofuwatch: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_table_of_ones_own_is_read_and_its_errors_have_their_line(tmp_path: Path) -> None:
    table = tmp_path / "gpus.toml"
    own = (
        '[sources.me]\ntitle = "t"\nurl = "https://example.org"\nsays = "s"\n'
        '[[gpu]]\nname = "X1"\nmatch = ["X1"]\n'
    )
    table.write_text(own + 'max_clock_mhz = { value = 2000, source = "me" }\n')
    given = _json("--tensor", "0.5", "--clock", "1 GHz", "--gpu", "X1", "--table", str(table))
    assert given["ofu"] == 0.25
    table.write_text(own + "max_clock = 2000\n")
    result = _run("--list-gpus", "--table", str(table))
    assert result.exit_code == 2
    assert f"{table}:8: gpu[0].max_clock: unknown key" in result.stderr
