"""A bound is written into a model's file, and nothing that people wrote is lost."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.analysis.bounds import Calibration
from detector.calibration.editing import EditError, replaced, written
from detector.series import Duration
from tests.analysis.notation import MODELS

SAID = Calibration(
    false_alarms=0.05, low=0.02, high=0.09, events=20, job_days=400.0,
    data="420 made-up jobs of seed 1", date="2026-11-30", command="ofuwatch calibrate",
)  # fmt: skip
SHIPPED = (MODELS / "ofu.toml").read_text()


def edit(text: str, *, bound: str = "notify", said: Calibration = SAID) -> str:
    if bound == "page":
        return written(text, bound, knob="after", setting=Duration(690_000), calibration=said)
    return written(text, bound, knob="caution", setting=1.15, calibration=said)


@pytest.mark.parametrize("bound", ["notify", "page"])
def test_only_the_knob_and_the_calibration_change(bound: str) -> None:
    before, after = tomllib.loads(SHIPPED), tomllib.loads(edit(SHIPPED, bound=bound))
    assert after[bound].pop("calibration")["events"] == 20
    before[bound].pop("calibration", None)
    knob = "caution" if bound == "notify" else "after"
    assert after[bound][knob] == (1.15 if bound == "notify" else "11m30s")
    before[bound][knob] = after[bound][knob]
    assert after == before


def test_every_comment_stays_where_it_was() -> None:
    def comments(text: str) -> list[str]:
        return [line for line in text.splitlines() if "#" in line]

    text = SHIPPED.replace("caution = 1.0", 'caution = 1.0 # "ours" # since May')
    assert comments(edit(text)) == [line.replace("1.0 #", "1.15  #") for line in comments(text)]


def test_to_write_it_again_changes_nothing() -> None:
    once = edit(SHIPPED)
    assert edit(once) == once


@pytest.mark.parametrize(
    "text",
    [
        'name = "x"',
        'name = "x"\n',
        "",
        "[notify]\n",
        "[notify] # ours\n# why\n\n[verify]\nmin_before = 3\n",
        "[ notify ]\ncaution=2\n[page]\n",
        "[notify.calibration]\nevents = 3\n[notify]\ncaution = 2.0\n",
        'x = 1\r\n[notify]\r\ncaution = 2.0 # "two"\r\n[page]\r\n',
        '[[rule]]\nname = "[notify]"\n[notify]\n[[other]]\ncaution = 3\n',
    ],
)
def test_any_sound_layout_is_followed(text: str) -> None:
    after = tomllib.loads(edit(text))
    assert after["notify"]["caution"] == 1.15
    assert after["notify"]["calibration"]["data"] == SAID.data
    assert ("\r\n" in text) == ("\r\n" in edit(text))


@pytest.mark.parametrize(
    "text",
    [
        "notify = { caution = 1.0 }\n",
        "notify.caution = 1.0\n",
        '[notify]\ncaution = """\n1"""\n',
        "not toml",
        "[notify]\nnote = '''\n[notify]\ncaution = 1\n'''\n",
    ],
)
def test_what_cannot_be_followed_is_refused_and_never_bent(text: str) -> None:
    with pytest.raises(EditError):
        edit(text)


@given(st.text(st.characters(codec=None), max_size=40))
def test_no_text_breaks_the_file(data: str) -> None:
    said = Calibration(
        false_alarms=0.0, low=0.0, high=0.1, events=0, job_days=40.0,
        data=data, date="2026-11-30", command=data,
    )  # fmt: skip
    assert tomllib.loads(edit(SHIPPED, said=said))["notify"]["calibration"]["events"] == 0


def test_a_file_that_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "ofu.toml"
    file.write_text("mine")
    with pytest.raises(EditError, match="changed while it was calibrated"):
        replaced(file, before=b"old", after=b"new")
    assert file.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [file]


def test_a_replaced_file_keeps_its_mode_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "ofu.toml"
    file.write_text("old")
    file.chmod(0o640)
    replaced(file, before=b"old", after=b"new")
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("new", 0o640)
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_is_gone_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(EditError, match="cannot be written"):
        replaced(tmp_path / "ofu.toml", before=b"", after=b"")
