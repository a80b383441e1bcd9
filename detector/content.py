"""``models/`` and ``rules/``: the folders an operator may edit, checked as a whole.

A file with one bad row must not keep the errors of the others from being shown, so everything
is read before anything is refused.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec

from detector.analysis.baselines import Model
from detector.analysis.cases import Case, CaseFile
from detector.analysis.features import FEATURES
from detector.analysis.judge import Content
from detector.analysis.ofu import GpuTable
from detector.analysis.rules import FAMILIES, KINDS, UNEXPLAINED, Rule, placeholders
from detector.metric import METRICS
from detector.tables import (
    ContentErrors,
    Problem,
    Table,
    attempt,
    collected,
    did_you_mean,
    read,
    shipped,
)

__all__ = [
    "Content", "ContentErrors", "Problem", "load", "load_cases", "load_gpus", "load_rules",
    "shipped",
]  # fmt: skip

GPUS = "gpus.toml"


class _RuleFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rule: tuple[Rule, ...]


def load(models_dir: Path, rules_dir: Path) -> Content:
    """Return models, rules and GPU table of two folders.

    Raises
    ------
    ContentErrors
        With everything that is wrong in any file.
    """
    problems: list[Problem] = []
    models = attempt(_models, models_dir, problems)
    gpus = attempt(load_gpus, models_dir, problems)
    rules = attempt(load_rules, rules_dir, problems)
    if models is None or gpus is None or rules is None:
        raise ContentErrors(problems)
    return Content(models=models, rules=rules, gpus=gpus)


def load_rules(rules_dir: Path) -> tuple[Rule, ...]:
    """Return the rules of a folder, in the order of files and within files.

    Raises
    ------
    ContentErrors
        With everything that is wrong in any file.
    """
    paths = _toml_files(rules_dir)
    if not paths:
        raise ContentErrors([Problem(file=rules_dir, message="holds no rule (*.toml)")])
    names: dict[str, Path] = {}
    found = collected(lambda path: _rule_file(path, names), paths)
    rules = tuple(rule for group in found for rule in group)
    problems = list(_fallbacks(rules_dir, rules))
    if problems:
        raise ContentErrors(problems)
    return rules


def load_gpus(models_dir: Path) -> GpuTable:
    """Return the table of GPU models.

    Raises
    ------
    ContentErrors
        With everything that is wrong in it.
    """
    return read(models_dir / GPUS).whole(GpuTable)


def load_cases(file: Path) -> tuple[Case, ...]:
    """Return the rules' test cases of one file.

    Raises
    ------
    ContentErrors
        With everything that is wrong in it.
    """
    table = read(file)
    raw = table.content.get("case")
    for k, case in enumerate(raw if isinstance(raw, list) else ()):
        if not isinstance(case, dict):
            continue
        want = case.get("want")
        features = want.get("features") if isinstance(want, dict) else None
        for place, named in (("evidence", case.get("evidence")), ("want.features", features)):
            for name in named if isinstance(named, dict) else ():
                if name not in FEATURES:
                    message = f'unknown feature "{name}"{did_you_mean(name, FEATURES)}'
                    table.complain(f"case[{k}].{place}.{name}", message)
    return table.whole(CaseFile).case


def _models(folder: Path) -> tuple[Model, ...]:
    paths = [path for path in _toml_files(folder) if path.name != GPUS]
    if not paths:
        raise ContentErrors([Problem(file=folder, message="holds no model (*.toml)")])
    models = collected(_model, paths)
    repeated = [name for name, count in Counter(m.name for m in models).items() if count > 1]
    if repeated:
        raise ContentErrors(
            Problem(file=folder, message=f'two models are called "{name}"') for name in repeated
        )
    return tuple(models)


def _model(path: Path) -> Model:
    table = read(path)
    _known(table, table.content, "", metric=METRICS)
    return table.whole(Model)


def _rule_file(path: Path, names: dict[str, Path]) -> tuple[Rule, ...]:
    """Return one file's rules; ``names`` is where each rule's name was seen so far."""
    table = read(path)
    raw = table.content.get("rule")
    for k, rule in enumerate(raw if isinstance(raw, list) else ()):
        if isinstance(rule, dict):
            _check_rule(table, rule, f"rule[{k}]")
            name = rule.get("name")
            if isinstance(name, str) and name in names:
                message = f'a rule "{name}" is already in {names[name]}'
                table.complain(f"rule[{k}].name", message)
            elif isinstance(name, str):
                names[name] = path
    return table.whole(_RuleFile).rule


def _check_rule(table: Table, rule: dict[str, Any], path: str) -> None:
    """Complain of words that have the right type and mean nothing."""
    _known(table, rule, path, kind=KINDS)
    if rule.get("severity") == "critical":
        message = (
            "critical is what passes the page bound (models/*.toml, [page]), whatever its "
            'rule; write "error"'
        )
        table.complain(f"{path}.severity", message)
    metrics = rule.get("metrics")
    for k, metric in enumerate(metrics if isinstance(metrics, list) else ()):
        if isinstance(metric, str) and metric not in METRICS:
            message = f'unknown metric "{metric}"{did_you_mean(metric, METRICS)}'
            table.complain(f"{path}.metrics[{k}]", message)
    rows = rule.get("when")
    for k, row in enumerate(rows if isinstance(rows, list) else ()):
        if isinstance(row, dict):
            _known(table, row, f"{path}.when[{k}]", feature=FEATURES)
    summary = rule.get("summary")
    for name in placeholders(summary) if isinstance(summary, str) else ():
        if name not in FEATURES:
            message = f'unknown feature "{{{name}}}"{did_you_mean(name, FEATURES)}'
            table.complain(f"{path}.summary", message)
    if not rows and rule.get("kind") != UNEXPLAINED and not rule.get("shadow"):
        table.complain(path, f"without rows it always holds; only {UNEXPLAINED} may")


def _known(table: Table, content: dict[str, Any], path: str, **known: Collection[str]) -> None:
    """Complain of each key whose text is not among the known ones."""
    for key, names in known.items():
        value = content.get(key)
        if isinstance(value, str) and value not in names:
            place = f"{path}.{key}" if path else key
            table.complain(place, f'unknown {key} "{value}"{did_you_mean(value, names)}')


def _fallbacks(folder: Path, rules: tuple[Rule, ...]) -> Iterator[Problem]:
    """Each family needs one rule that always holds, or a change of it would have no name."""
    for family in FAMILIES:
        always = [
            rule.name
            for rule in rules
            if rule.applies(metric="", family=family) and not rule.when and not rule.shadow
        ]
        if not always:
            message = (
                f'no rule of kind "{UNEXPLAINED}" without rows for family "{family}": '
                "a change that no rule names would have no incident"
            )
            yield Problem(file=folder, message=message)
        elif len(always) > 1:
            names = ", ".join(always)
            message = f'family "{family}" has more than one rule without rows: {names}'
            yield Problem(file=folder, message=message)


def _toml_files(folder: Path) -> list[Path]:
    """The folder's own TOML files by name; ``rules/tests`` is not looked into.

    Raises
    ------
    ContentErrors
        When there is no such folder, or it may not be read.
    """
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".toml")
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        raise ContentErrors([Problem(file=folder, message=message)]) from error
