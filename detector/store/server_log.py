"""What the embedded server's log says of a start that failed."""

import re
from pathlib import Path

# chosen: what a start and its failure write, with a report of a crash cut off.
_LAST_LINES = 20
# How Valkey and Redis say that they cannot go on.
_FAILED = re.compile(
    r"no space left|can't|cannot|could not|couldn't|fatal|\berror\b|fail(?:ed|ure)|denied|"
    r"bad file format|unexpected|not permitted",
    re.IGNORECASE,
)


def last_words(log: Path) -> str:
    """Return the server's last line that says what failed, without pid and date.

    At each start it warns of the machine's settings too, which stops nobody.
    """
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    lines = [line.strip() for line in lines[-_LAST_LINES:]]
    told = [line.split(" # ", 1)[-1] for line in lines if line]
    told = [line for line in told if not line.startswith("WARNING")]
    failed = [line for line in told if _FAILED.search(line)]
    marked = [line.split(" # ", 1)[1] for line in lines if " # " in line]
    marked = [line for line in marked if not line.startswith("WARNING")]
    return next(reversed(failed or marked or told), "no word in its log")
