"""Everything that is wrong is told at once, with its place and what was probably meant."""

import shutil
from pathlib import Path

import pytest

from detector.content import ContentErrors, load, load_cases, load_rules, shipped
from detector.tables import did_you_mean

RULE = """
[[rule]]
name = "{name}"
kind = "straggler"
families = ["performance"]
severity = "warning"
summary = "something"
when = [{{ feature = "sm_change", below = -0.1 }}]
"""
FALLBACK = """
[[rule]]
name = "unexplained"
kind = "unexplained"
families = ["performance", "capacity", "telemetry", "accounting"]
severity = "warning"
summary = "something"
"""


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Copies of the shipped folders, to break."""
    for name in ("models", "rules"):
        shutil.copytree(shipped() / name, tmp_path / name)
    return tmp_path / "models", tmp_path / "rules"


def messages(folder: Path) -> list[str]:
    """What is said about a folder of rules, with the folder's name left out."""
    with pytest.raises(ContentErrors) as caught:
        load_rules(folder)
    return [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]


def rules_folder(tmp_path: Path, **files: str) -> Path:
    for name, text in {"unexplained": FALLBACK, **files}.items():
        (tmp_path / f"{name}.toml").write_text(text)
    return tmp_path


def test_the_shipped_content_is_in_order() -> None:
    content = load(shipped() / "models", shipped() / "rules")
    assert {model.metric for model in content.models} >= {"ofu", "gpus", "mfu_ratio", "valid"}
    assert len({rule.name for rule in content.rules}) == len(content.rules)
    assert content.gpus.find("NVIDIA H100 80GB HBM3") is not None


def test_the_gpu_table_is_not_a_model() -> None:
    content = load(shipped() / "models", shipped() / "rules")
    assert len(content.models) == len(list((shipped() / "models").glob("*.toml"))) - 1


def test_every_error_of_every_file_is_told_at_once(folders: tuple[Path, Path]) -> None:
    models, rules = folders
    ofu = models / "ofu.toml"
    ofu.write_text(ofu.read_text().replace('metric = "ofu"', 'metric = "ofuu"', 1))
    (models / "broken.toml").write_text("name = \n")
    (rules / "hang.toml").write_text('[[rule]]\nname = "hang"\nknd = "hang"\n')
    (rules / "latin.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(ContentErrors) as caught:
        load(models, rules)
    text = str(caught.value)
    assert 'unknown metric "ofuu"; did you mean "ofu"?' in text
    assert "broken.toml:1: not TOML" in text
    assert 'hang.toml:3: rule[0].knd: unknown key; did you mean "kind"?' in text
    assert "hang.toml:1: rule[0].families: missing" in text
    assert "latin.toml: is not UTF-8 text (byte 5)" in text
    assert len(caught.value.problems) >= 7


def test_an_unknown_feature_is_told_with_its_line_and_the_likely_one(tmp_path: Path) -> None:
    text = RULE.format(name="a").replace(
        'when = [{ feature = "sm_change", below = -0.1 }]',
        'when = [\n  { feature = "sm_change", below = -0.1 },\n\n'
        '  # a comment\n  { feature = "ofu_chang", above = 0 },\n]',
    )
    assert messages(rules_folder(tmp_path, a=text)) == [
        'a.toml:12: rule[0].when[1].feature: unknown feature "ofu_chang"; '
        'did you mean "ofu_change"?'
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "straggler"', 'kind = "stragler"',
         'a.toml:4: rule[0].kind: unknown kind "stragler"; did you mean "straggler"?'),
        ('"warning"', '"warnin"',
         'a.toml:6: rule[0].severity: unknown value "warnin"; did you mean "warning"?'),
        ('["performance"]', '["performence"]',
         'a.toml:5: rule[0].families[0]: unknown value "performence"; '
         'did you mean "performance"?'),
        ('["performance"]', '"performance"',
         "a.toml:5: rule[0].families: must be a list, not text ('performance')"),
        ('"warning"', '"warning"\nmetrics = ["tokenz"]',
         'a.toml:7: rule[0].metrics[0]: unknown metric "tokenz"; did you mean "tokens"?'),
        ('"something"', '"{ofu_chnge} is bad"',
         'a.toml:7: rule[0].summary: unknown feature "{ofu_chnge}"; '
         'did you mean "ofu_change"?'),
        ("below = -0.1", 'below = "low"',
         "a.toml:8: rule[0].when[0].below: must be a number or nothing, not text ('low')"),
        (", below = -0.1", "",
         "a.toml:8: rule[0].when[0]: a row needs `above`, `below` or both"),
        ("below = -0.1", "belwo = -0.1",
         'a.toml:8: rule[0].when[0].belwo: unknown key; did you mean "below"?'),
        ('"warning"', '"warning"\nfor = "5x"',
         "a.toml:7: rule[0].for: '5x' is not a duration; write for example 10s, 5m, 1h30m "
         "or 7d"),
        ('"warning"', '"warning"\nfor = 5',
         "a.toml:7: rule[0].for: must be a duration such as 10s, 5m or 1h30m, not 5"),
        ('when = [{ feature = "sm_change", below = -0.1 }]', "",
         "a.toml:2: rule[0]: without rows it always holds; only unexplained may"),
    ],
)  # fmt: skip
def test_each_mistake_has_one_line_that_says_what_to_do(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    text = RULE.format(name="a")
    assert old in text
    assert messages(rules_folder(tmp_path, a=text.replace(old, new, 1))) == [message]


def test_a_name_may_be_used_once_in_all_files(tmp_path: Path) -> None:
    folder = rules_folder(tmp_path, a=RULE.format(name="x"), b=RULE.format(name="x"))
    assert messages(folder) == [f'b.toml:3: rule[0].name: a rule "x" is already in {"a.toml"}']


def test_each_family_needs_exactly_one_fallback(tmp_path: Path) -> None:
    second = FALLBACK.replace('name = "unexplained"', 'name = "other"').replace(
        '["performance", "capacity", "telemetry", "accounting"]', '["capacity"]'
    )
    told = messages(rules_folder(tmp_path, other=second))
    assert len(told) == 1
    assert (
        'family "capacity" has more than one rule without rows: other, unexplained' in told[0]
    )
    (tmp_path / "unexplained.toml").write_text(second.replace("other", "unexplained"))
    (tmp_path / "other.toml").unlink()
    told = messages(tmp_path)
    assert len(told) == 3
    assert all("no rule of kind" in line for line in told)


def test_a_folder_without_rules_or_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert "holds no rule (*.toml)" in messages(tmp_path)[0]
    assert "No such file or directory" in messages(tmp_path / "nowhere")[0]


def test_a_file_that_may_not_be_read_is_told(tmp_path: Path) -> None:
    folder = rules_folder(tmp_path)
    (folder / "dangling.toml").symlink_to(tmp_path / "nowhere")
    assert messages(folder) == ["dangling.toml: cannot be read: No such file or directory"]


def test_a_model_without_its_gpu_table_is_told(folders: tuple[Path, Path]) -> None:
    models, rules = folders
    (models / "gpus.toml").unlink()
    with pytest.raises(ContentErrors, match=r"gpus\.toml: cannot be read"):
        load(models, rules)


def test_two_models_of_one_name_are_told(folders: tuple[Path, Path]) -> None:
    models, rules = folders
    shutil.copy(models / "ofu.toml", models / "ofu2.toml")
    with pytest.raises(ContentErrors, match='two models are called "ofu"'):
        load(models, rules)


def test_cases_that_name_unknown_features_are_told(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(
        '[[case]]\nname = "a"\n[case.evidence]\nsm_chang = 1\n[case.want]\nrul = "x"\n'
        '[[case]]\nname = "b"\n[case.want]\nrule = "x"\n'
        '[[case]]\nname = "c"\n[case.history]\nonset = 9\nseries = { ofu = "0.4x5" }\n'
        '[case.want]\nrule = "x"\n'
    )
    with pytest.raises(ContentErrors) as caught:
        load_cases(file)
    told = [str(problem).replace(f"{file}", "a.toml") for problem in caught.value.problems]
    assert told == [
        'a.toml:4: case[0].evidence.sm_chang: unknown feature "sm_chang"; '
        'did you mean "sm_change"?',
        'a.toml:6: case[0].want.rul: unknown key; did you mean "rule"?',
        "a.toml:7: case[1]: a case needs either [case.evidence] or [case.history]",
        "a.toml:14: case[2].history.onset: onset 9 leaves no sample before or after it "
        "(there are 5)",
    ]


def test_a_word_near_to_nothing_gets_the_list_of_what_is_known() -> None:
    assert did_you_mean("zzz", ["b", "a"]) == "; known are a, b"
    assert did_you_mean("severty", ["severity", "summary"]) == '; did you mean "severity"?'


def test_no_shipped_summary_promises_what_a_terminal_does_not_show() -> None:
    rules = load_rules(shipped() / "rules")
    assert [rule.name for rule in rules if "listed" in rule.summary] == []
