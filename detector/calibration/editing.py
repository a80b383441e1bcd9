"""A calibrated bound written into a model's TOML, its comments and order kept.

The file is edited as text, since a parser and a writer would lose what people wrote beside the
settings. The edit is refused unless the text then says exactly what it said before, but for the
knob and the calibration. The file is replaced whole, and only if nobody changed it meanwhile.
"""

import json
import os
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from detector.analysis.bounds import Calibration
from detector.series import Duration

_HEADER = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$")
_KEY = re.compile(r"(\s*([A-Za-z0-9_-]+)\s*=\s*)(.*)$")


class EditError(Exception):
    """The file cannot be edited; says which, why and what to do."""


def written(
    text: str, bound: str, *, knob: str, setting: float | Duration, calibration: Calibration
) -> str:
    """Return the model's TOML with the bound's knob at ``setting``, and its calibration.

    Raises
    ------
    EditError
        When the text is written in a way that a careful edit cannot follow.
    """
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    lines = _with_keys(lines, bound, {knob: _value(setting)})
    facts = {name: _value(getattr(calibration, name)) for name in calibration.__struct_fields__}
    lines = _with_keys(lines, f"{bound}.calibration", facts, after=bound)
    edited = newline.join(lines) + newline
    wanted = _told(text)
    table = wanted.setdefault(bound, {})
    if isinstance(table, dict):
        table[knob] = tomllib.loads(f"x = {_value(setting)}")["x"]
        table["calibration"] = {k: tomllib.loads(f"x = {v}")["x"] for k, v in facts.items()}
    if _told(edited) != wanted:
        msg = f"write the bound as a table of its own, [{bound}], one key a line"
        raise EditError(msg)
    return edited


def replaced(file: Path, *, before: bytes, after: bytes) -> None:
    """Replace the file's content at once, unless it is no longer ``before``.

    Raises
    ------
    EditError
        When somebody changed the file meanwhile, or it cannot be written.
    """
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        mode = file.stat().st_mode
        with beside.open("xb") as out:
            out.write(after)
            out.flush()
            os.fsync(out.fileno())
        beside.chmod(mode & 0o7777)
        if file.read_bytes() != before:
            msg = f"{file}: changed while it was calibrated; look at it and calibrate again"
            raise EditError(msg)
        beside.replace(file)
    except OSError as error:
        msg = f"{file}: cannot be written: {error.strerror or error}"
        raise EditError(msg) from error
    finally:
        with suppress(OSError):
            beside.unlink()


def _told(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        msg = f"not TOML: {error}"
        raise EditError(msg) from error


def _with_keys(
    lines: list[str], table: str, keys: Mapping[str, str], *, after: str | None = None
) -> list[str]:
    """Return the lines with these keys of a table at these values; what is new goes last."""
    span = _span(lines, table)
    if span is None:
        at = _span(lines, after) if after is not None else None
        place = len(lines) if at is None else at[1]
        head = ["", f"[{table}]"] if place and lines[place - 1].strip() else [f"[{table}]"]
        lines = [*lines[:place], *head, *lines[place:]]
        span = (place + len(head), place + len(head))
    first, last = span
    body, missing = lines[first:last], dict(keys)
    for k, line in enumerate(body):
        match = _KEY.match(line)
        if match and match[2] in missing:
            comment = _comment(match[3])
            body[k] = match[1] + missing.pop(match[2]) + (f"  {comment}" if comment else "")
    body += [f"{name} = {value}" for name, value in missing.items()]
    return [*lines[:first], *body, *lines[last:]]


def _span(lines: list[str], table: str) -> tuple[int, int] | None:
    """Return the first line behind the table's header, and the one behind its last key."""
    first: int | None = None
    last = 0
    for k, line in enumerate(lines):
        header = _HEADER.match(line)
        if line.lstrip().startswith("[["):
            header = None
            if first is not None:
                break
        if header:
            if first is not None:
                break
            if header[1].replace(" ", "") == table:
                first = last = k + 1
        elif first is not None and _KEY.match(line):
            last = k + 1
    return None if first is None else (first, last)


def _comment(rest: str) -> str:
    """Return the comment behind a value, where there is one."""
    quoted = re.match(r"""("(?:[^"\\]|\\.)*"|'[^']*'|[^#"']*)(.*)$""", rest)
    tail = quoted[2].strip() if quoted else ""
    return tail if tail.startswith("#") else ""


def _value(value: object) -> str:
    """Return a value as TOML writes it."""
    match value:
        case Duration() | str():
            # JSON's strings are TOML's, but for one control character and half pairs.
            sound = str(value).encode("utf-8", "replace").decode().replace("\x7f", " ")
            return json.dumps(sound, ensure_ascii=False)
        case float():
            return repr(float(f"{value:.4g}"))
        case _:
            return str(value)
