"""docs/operations.md names every event that the service can log, and none that it cannot."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "operations.md"
# The first argument of a call that logs.
_SAID = re.compile(r"\.(?:debug|info|warning|error)\(\s*f?\"([a-z_]+)[\"{]")


def said() -> set[str]:
    """Every event in the sources; an f-string counts with what it begins with."""
    files = [
        *ROOT.glob("detector/*.py"),
        ROOT / "detector/cli/serve.py",
        *ROOT.glob("detector/[nst]*/*.py"),
    ]
    return {name for file in files for name in _SAID.findall(file.read_text(encoding="utf-8"))}


def test_the_page_names_every_event_and_no_other() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## The log")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}
    families = {name for name in told if name.startswith("_")}
    steps = {"_updated", "_acknowledged", "_escalated", "_resolved"}
    assert families == steps
    assert told - families - {"incident_opened"} == said() - {"incident_"}
