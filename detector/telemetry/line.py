"""How one line of an exporter's page begins: a name, labels, and then a value.

A page says the same labels again for each counter of a GPU, so :class:`Reader` reads each set
once. Nothing here raises: what can't be read is a reason in words.
"""

import re
from dataclasses import dataclass, field

from detector.metric import Counter, counter_named
from detector.telemetry import rocm

# One GPU's labels take half a kilobyte; longer beginnings are garbage, and not searched on.
LONGEST_START = 65_536

_NAME = re.compile(r"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:.-]*)[ \t]*")
# Prometheus 3 puts names in quotes that hold more than letters, digits and underscores.
_LABEL = re.compile(
    r'\s*"?([^\s=,{}"]+)"?\s*=\s*"([^"\\]*(?:\\.[^"\\]*)*)"\s*(,|(?=\}))', re.ASCII
)
_CLOSE = re.compile(r"\s*\}", re.ASCII)
_BLANKS = re.compile(r"[ \t]*")
_ESCAPED = re.compile(r'\\([\\"n])')

# Labels by which a line says that it is of something else than a GPU.
_NO_GPU = frozenset({"nvlink", "nvswitch", "cpu", "cpucore"})


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """One set of labels, as written and in lower case: spellings changed in case alone."""

    written: dict[str, str]
    lowered: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        """Lower the names once."""
        lowered = {name.lower(): value for name, value in self.written.items()}
        object.__setattr__(self, "lowered", lowered)

    def found(self, *names: str) -> str:
        """Return the first of the labels that says something."""
        return next((value for name in names if (value := self.lowered.get(name, ""))), "")

    @property
    def uuid(self) -> str:
        """The GPU's; "" when the line is of no GPU."""
        if not _NO_GPU.isdisjoint(self.lowered):
            return ""
        # serial_number: what ROCm's exporter always has, where gpu_uuid must be asked for.
        return self.found("uuid", "gpu_uuid", "serial_number")

    @property
    def instance(self) -> tuple[str, str]:
        """The instance and its profile; "" for a whole GPU."""
        if instance := self.found("gpu_i_id"):
            return instance, self.found("gpu_i_profile")
        return rocm.partition(self.lowered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a line begins: name, labels, and where its value is; bare without any labels."""

    name: str
    labels: Labels
    end: int
    bare: bool

    def counter(self) -> tuple[Counter, float, bool] | None:
        """Return what the line counts, its scale, and whether its parts are pooled.

        None for what is of no GPU, or not used: such lines are left out and nobody is told.
        """
        if not self.labels.uuid:
            return None
        if named := counter_named(self.name):
            return (*named, False)
        return rocm.counter_named(self.name, self.labels.lowered)


class Reader:
    """Reads the starts of one page's lines, given as Latin-1: a character a byte."""

    def __init__(self) -> None:
        self._known: dict[str, Labels] = {}
        self._none = Labels({})

    def start(self, line: str) -> Start | str:
        """Return how a line begins, or why it can't be read."""
        if not (name := _NAME.match(line)):
            return "not a sample line"
        if line.startswith("{", name.end()):
            found = self._labels(line, name.end())
            if isinstance(found, str):
                return found
            labels, end = found
            return Start(name=name[1], labels=labels, end=end, bare=False)
        # "this line is no sample" begins with a name as well: after one comes a number.
        if name[0][-1:] in " \t" and number_follows(line[name.end() :]):
            return Start(name=name[1], labels=self._none, end=name.end(), bare=True)
        return "not a sample line"

    def _labels(self, line: str, start: int) -> tuple[Labels, int] | str:
        """Return the labels that begin at ``start``, and where what follows them begins."""
        brace = line.rfind("}", start, LONGEST_START) + 1
        whole = line[start:brace]
        if not (labels := self._known.get(whole)):
            written: dict[str, str] = {}
            end = start + 1
            while label := _LABEL.match(line, end, LONGEST_START):
                written[_utf8(label[1])] = _value(_utf8(label[2]))
                end = label.end()
            if not (close := _CLOSE.match(line, end, LONGEST_START)):
                return _unclosed(line, end)
            labels = Labels(written)
            if close.end() != brace:  # what follows has a brace as well: an exemplar
                return labels, _end_of_blanks(line, close.end())
            self._known[whole] = labels
        return labels, _end_of_blanks(line, brace)


def name_of(line: str) -> str:
    """Return the name that a line begins with, however it goes on; "" for none."""
    name = _NAME.match(line)
    return name[1] if name else ""


def number_follows(rest: str) -> bool:
    """Return whether the first word of ``rest`` is a number."""
    parts = rest.split(None, 1)
    try:
        float(parts[0] if parts else "")
    except ValueError:
        return False
    return True


def _unclosed(line: str, end: int) -> str:
    if len(line) > LONGEST_START:
        return f"{len(line)} characters without an end of its labels"
    return "labels can't be read" if "}" in line[end:] else "closing brace missing"


def _end_of_blanks(line: str, start: int) -> int:
    blanks = _BLANKS.match(line, start)
    return blanks.end() if blanks else start


def _utf8(text: str) -> str:
    if text.isascii():
        return text
    return text.encode("latin-1").decode(errors="replace")


def _value(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], text)
