"""``rules test`` runs cases as text, and says of a failing one what was expected and came."""

from pathlib import Path

from click.testing import CliRunner, Result

from detector.cli import main


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["rules", "test", *map(str, arguments)])


def cases(folder: Path, text: str) -> Path:
    file = folder / "cases.toml"
    file.write_text(text)
    return file


def test_the_shipped_cases_pass() -> None:
    result = run()
    assert result.exit_code == 0, result.stdout
    passed, _, all_of_them, *_ = result.stdout.split()
    assert int(passed) == int(all_of_them) > 30
    assert "FAILED" not in result.stdout


def test_a_failing_case_shows_expected_and_got_and_the_rows_that_failed(
    tmp_path: Path,
) -> None:
    file = cases(
        tmp_path,
        '[[case]]\nname = "wrong"\n[case.evidence]\nclock_change = -0.01\n'
        'clock_explains = 0.9\n[case.want]\nrule = "throttle"\nseverity = "error"\n'
        'runners_up = ["hang"]\nruled_out = ["hang"]\nfeatures = { sm_change = -0.5 }\n',
    )
    result = run(file)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].startswith("0 of 1 cases passed")
    assert result.stdout.splitlines()[:-1] == [
        f"FAILED {file}: wrong",
        "  rule: expected throttle, got unexplained",
        "  severity: expected error, got warning",
        "  runners_up: expected hang, got none",
        "  ruled_out: expected hang among throttle, throttle_some, throttle_power",
        "  sm_change: expected -0.5, was not measured",
        "  row of throttle: clock change is −1 %, not below −3 %",
    ]


def test_a_series_is_measured_before_it_is_judged(tmp_path: Path) -> None:
    file = cases(
        tmp_path,
        '[[case]]\nname = "a"\n[case.history]\nonset = 20\nevery = "1m"\n'
        'series = { ofu = "0.4x20 _x2 0.4..0.2x3 0.2x15", sm = "0.9x40" }\n'
        "[case.want]\nfeatures = { ofu_change = -0.5, sm_change = 0, invalid_share = 0.1 }\n",
    )
    result = run(file)
    assert result.exit_code == 0, result.stdout


def test_a_case_file_that_is_wrong_is_told_and_nothing_is_tested(tmp_path: Path) -> None:
    file = cases(tmp_path, '[[case]]\nname = "a"\n[case.history]\nonset = 1\n')
    result = run(file)
    assert result.exit_code == 2
    assert "case[0].want: missing" in result.stderr
    assert "case[0].history.series: missing" in result.stderr
    assert result.stdout == ""


def test_a_series_that_is_none_is_told(tmp_path: Path) -> None:
    file = cases(
        tmp_path,
        '[[case]]\nname = "a"\n[case.history]\nonset = 1\nseries = { ofu = "0.4y5" }\n'
        '[case.want]\nrule = "x"\n',
    )
    assert "'0.4y5' is no series; write for example 0.42x60" in run(file).stderr


def test_a_rule_that_does_not_exist_is_a_mistake_of_the_case(tmp_path: Path) -> None:
    file = cases(
        tmp_path,
        '[[case]]\nname = "a"\n[case.evidence]\nsm_change = 0\n[case.want]\nrule = "hangs"\n',
    )
    result = run(file)
    assert result.exit_code == 1
    assert 'no rule is called "hangs"; did you mean "hang"?' in result.stdout


def test_the_rules_of_another_folder_are_tested_with_its_config(tmp_path: Path) -> None:
    CliRunner().invoke(main, ["init", str(tmp_path / "mine")])
    hang = tmp_path / "mine" / "rules" / "hang.toml"
    hang.write_text(hang.read_text().replace("above = 0.5", "above = 1.5"))
    result = run("--config", tmp_path / "mine" / "config.toml")
    assert result.exit_code == 1
    assert "row of hang: standstill: yes" in result.stdout
