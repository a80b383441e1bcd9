"""``check`` tells all that is wrong and shows no secret."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from detector.cli import main
from detector.tables import shipped


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of what is shipped, to break."""
    shutil.copy(shipped() / "config.toml", tmp_path)
    for name in ("models", "rules"):
        shutil.copytree(shipped() / name, tmp_path / name)
    return tmp_path


def check(folder: Path, *options: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(
        main, ["check", "--config", str(folder / "config.toml"), *options]
    )
    return result.exit_code, result.stdout, result.stderr


def test_what_is_shipped_is_ok_in_one_line_that_says_what_was_read() -> None:
    result = CliRunner().invoke(main, ["check"])
    assert result.exit_code == 0
    assert result.stdout.startswith("ok: ")
    assert result.stdout.count("\n") == 1
    assert "rules" in result.stdout
    assert result.stderr == ""


def test_every_error_of_every_file_is_printed_and_the_exit_code_is_1(folder: Path) -> None:
    (folder / "config.toml").write_text('clustr = "a"\n[[receiver]]\ntype = "slack"\n')
    (folder / "models" / "ofu.toml").write_text("name = 1\n")
    (folder / "rules" / "hang.toml").write_text("[rule]\n")
    (folder / "rules" / "tests" / "hang.toml").write_text("[[case]]\n")
    code, stdout, stderr = check(folder)
    assert code == 1
    assert stdout == ""
    for name in ("config.toml:1:", "ofu.toml:1:", "rules/hang.toml:1:", "tests/hang.toml:1:"):
        assert name in stderr
    assert 'did you mean "cluster"?' in stderr
    assert stderr.splitlines()[-1].endswith("mend them and check again")


def test_print_shows_the_whole_configuration_and_can_be_redirected(folder: Path) -> None:
    code, stdout, stderr = check(folder, "--print")
    assert code == 0
    assert stderr.startswith("ok: ")
    (folder / "config.toml").write_text(stdout)
    assert check(folder, "--print")[1] == stdout


def test_a_receivers_secret_must_be_there_and_is_not_shown(folder: Path) -> None:
    with (folder / "config.toml").open("a") as file:
        file.write(
            '[[receiver]]\ntype = "slack"\nname = "oncall"\nchannel = "C1"\n'
            'token_file = "token"\n'
        )
    code, _, stderr = check(folder)
    assert code == 1
    assert "receiver 'oncall': token_file: cannot be read" in stderr
    (folder / "token").write_text("xoxb-HUSH")
    code, stdout, stderr = check(folder, "--print")
    assert code == 0
    assert "HUSH" not in stdout + stderr


def test_plain_http_is_warned_of(folder: Path) -> None:
    (folder / "secret").write_text("whsec_" + "A" * 32)
    with (folder / "config.toml").open("a") as file:
        file.write(
            '[[receiver]]\ntype = "webhook"\nname = "w"\nurl = "http://example.com/"\n'
            'secret_file = "secret"\n'
        )
    code, _, stderr = check(folder)
    assert code == 0
    assert "warning: " in stderr


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    code, _, stderr = check(tmp_path / "nowhere")
    assert code == 1
    assert stderr.splitlines()[0].endswith("cannot be read: No such file or directory")
    assert "Traceback" not in stderr
