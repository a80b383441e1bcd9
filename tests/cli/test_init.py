"""``init`` writes what is shipped, and over nothing."""

from pathlib import Path

from click.testing import CliRunner, Result

from detector.cli import main
from detector.tables import shipped


def init(folder: Path) -> Result:
    return CliRunner().invoke(main, ["init", str(folder)])


def test_it_writes_what_is_shipped_and_that_is_in_order(tmp_path: Path) -> None:
    result = init(tmp_path / "a" / "b")
    assert result.exit_code == 0
    written = tmp_path / "a" / "b"
    for path in ("config.toml", "models/ofu.toml", "rules/hang.toml", "rules/tests/hang.toml"):
        assert (written / path).read_bytes() == (shipped() / path).read_bytes()
        assert str(written / path.split("/")[0]) in result.stdout
    config = str(written / "config.toml")
    assert CliRunner().invoke(main, ["check", "--config", config]).exit_code == 0
    assert CliRunner().invoke(main, ["rules", "test", "--config", config]).exit_code == 0


def test_it_writes_over_nothing_and_leaves_nothing_half_done(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    result = init(tmp_path)
    assert result.exit_code == 2
    assert f"{tmp_path / 'rules'} is there already" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["rules"]


def test_other_files_of_the_folder_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert init(tmp_path).exit_code == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = init(tmp_path / "file" / "folder")
    assert result.exit_code == 2
    assert "cannot write to" in result.stderr
    assert "Traceback" not in result.stderr
