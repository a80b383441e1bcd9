"""TOML files to structs: every error of a file at once, with its place, and no guessing.

msgspec stops at the first error. People fix configurations in the middle of something else, so
they are told everything in one go: file, line, path, what is wrong and what was probably meant.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from detector.series import Duration

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong with one file.

    Attributes
    ----------
    path
        Dotted way to the key, such as ``rule[0].when[2].feature``; empty for the file.
    line
        1-based; None where it can't be told.
    """

    file: Path
    message: str
    path: str = ""
    line: int | None = None

    def __str__(self) -> str:
        """Return the one line that people read: ``file:line: path: message``."""
        place = f"{self.file}" if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (place, self.path, self.message) if part)


class ContentErrors(ValueError):
    """Everything that is wrong with a set of files."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class Table:
    """One TOML file and what is wrong with it so far."""

    def __init__(self, file: Path, text: str, content: dict[str, Any]) -> None:
        self.file = file
        self.content = content
        self.problems: list[Problem] = []
        self._lines = _lines(text)

    def complain(self, path: str, message: str) -> None:
        """Note that something is wrong at ``path``."""
        self.problems.append(self.problem(path, message))

    def problem(self, path: str, message: str) -> Problem:
        """Return what is wrong at ``path``, with its line."""
        line = _line(self._lines, path)
        return Problem(file=self.file, path=path, message=message, line=line)

    def convert(self, kind: type[S]) -> S | None:
        """Return the whole file as a struct, or None after complaining of all that is wrong."""
        return self._struct(self.content, kind, "")

    @staticmethod
    def part(value: object, kind: Any) -> Any:
        """Return a part of the file as its type, or None, complained of already, if it is none.

        A file that is wrong in one place is still judged in all the others.
        """
        try:
            return msgspec.convert(value, kind, dec_hook=_decode)
        except msgspec.ValidationError:
            return None

    def whole(self, kind: type[S]) -> S:
        """Return the whole file as a struct.

        Raises
        ------
        ContentErrors
            With everything that was complained of so far.
        """
        value = self.convert(kind)
        if value is None or self.problems:
            raise self.errors()
        return value

    def errors(self) -> ContentErrors:
        """Return everything that was complained of so far, in the order of lines."""
        return ContentErrors(sorted(self.problems, key=lambda p: (p.line or 0, p.path)))

    def _struct(self, value: object, kind: type[S], path: str) -> S | None:
        if not isinstance(value, dict):
            self.complain(path, f"must be a table, not {_named(value)}")
            return None
        fields = {f.encode_name: f for f in msgspec.structs.fields(kind)}
        bad: set[str] = set()
        for key in value.keys() - fields.keys() - {kind.__struct_config__.tag_field}:
            self.complain(_join(path, key), f"unknown key{did_you_mean(key, fields)}")
            bad |= {key, *_near(key, fields)}
        for name, field in fields.items():
            known = len(self.problems)
            if name in value:
                self._value(value[name], field.type, _join(path, name))
            elif field.required:
                self.complain(_join(path, name), "missing")
            bad |= {name} if len(self.problems) > known else set()
        if bad:
            # The others are judged all the same; a text that must be there is empty then.
            rest = {key: one for key, one in value.items() if key not in bad}
            lacking = {key: "" for key in fields if fields[key].required and key in bad}
            self._whole(lacking | rest, kind, path, keys=fields, without=bad)
            return None
        whole: S | None = self._whole(value, kind, path, keys=fields)
        return whole

    def _value(self, value: object, kind: Any, path: str) -> None:
        """Complain of all that is wrong with a value of a declared type."""
        structs = _structs(kind)
        if structs and isinstance(value, dict):
            chosen = self._tagged(value, structs, path)
            if chosen is not None:
                self._struct(value, chosen, path)
            return
        item = _item(kind)
        if item is not None and isinstance(value, dict) and _structs(item):
            self.complain(path, f"write [[{path}]], in two brackets: there may be several")
            self._value(value, item, path)
            return
        if item is not None and isinstance(value, list):
            for k, element in enumerate(value):
                self._value(element, item, f"{path}[{k}]")
            return
        if get_origin(kind) is dict and isinstance(value, dict):
            for key, element in value.items():
                self._value(element, get_args(kind)[1], _join(path, str(key)))
            return
        allowed = _allowed(kind)
        if allowed and isinstance(value, str):
            if value not in allowed:
                self.complain(path, f'unknown value "{value}"{did_you_mean(value, allowed)}')
            return
        self._whole(value, kind, path)

    def _tagged(
        self, value: dict[str, Any], structs: list[type[msgspec.Struct]], path: str
    ) -> type[msgspec.Struct] | None:
        """Which variant of a tagged union a table is."""
        key = structs[0].__struct_config__.tag_field
        if key is None:
            return structs[0]
        tags = {str(kind.__struct_config__.tag): kind for kind in structs}
        tag = value.get(key)
        if tag is None:
            self.complain(_join(path, key), f"missing; write one of {', '.join(sorted(tags))}")
        elif not isinstance(tag, str):
            self.complain(_join(path, key), f"must be text, not {_named(tag)}")
        elif tag not in tags:
            message = f'unknown {key} "{tag}"{did_you_mean(tag, tags)}'
            self.complain(_join(path, key), message)
        return tags.get(tag) if isinstance(tag, str) else None

    def _whole(
        self,
        value: object,
        kind: Any,
        path: str,
        *,
        keys: Collection[str] = (),
        without: Collection[str] = (),
    ) -> Any:
        """The value as its type; a struct that refuses itself says a key of ``keys`` first.

        Where keys were left out (``without``), only what is surely wrong with others is told.
        """
        try:
            return msgspec.convert(value, kind, dec_hook=_decode)
        except msgspec.ValidationError as error:
            told, _, inner = str(error).partition(" - at `$")
            for message in told.splitlines():
                place, first = path + inner.rstrip("`"), message.partition(" ")[0].rstrip(":")
                named = not inner and first.partition("[")[0] in keys
                if without and (not named or not _words(message).isdisjoint(without)):
                    continue
                self.complain(
                    _join(path, first) if named else place,
                    _plain(message.removeprefix(f"{first}: ") if named else message, value),
                )
            return None


def shipped() -> Path:
    """Return the folder that holds the shipped ``config.toml``, ``models/`` and ``rules/``.

    In a wheel that is within the package; in a checkout it is the repository's root.
    """
    packaged = Path(str(files("detector"))) / "_content"
    return packaged if packaged.is_dir() else Path(str(files("detector"))).parent


def read(file: Path) -> Table:
    """Return a TOML file's tables.

    Raises
    ------
    ContentErrors
        When the file can't be read or is not TOML.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        raise ContentErrors([Problem(file=file, message=message)]) from error
    except UnicodeDecodeError as error:
        message = f"is not UTF-8 text (byte {error.start})"
        raise ContentErrors([Problem(file=file, message=message)]) from error
    try:
        return Table(file, text, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"\(at line (\d+), column \d+\)", str(error))
        message = str(error).replace(at[0], "").strip() if at else str(error)
        problem = Problem(
            file=file, message=f"not TOML: {message}", line=int(at[1]) if at else None
        )
        raise ContentErrors([problem]) from error


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean "..."?`` for a word near to a known one, else what is known."""
    names = sorted(filter(None, known))
    if near := _near(word, names):
        return f'; did you mean "{near[0]}"?'
    return f"; known are {', '.join(names)}" if len(names) <= 20 else ""


def _near(word: str, known: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)


def attempt(work: Callable[[T], R], item: T, problems: list[Problem]) -> R | None:
    """Return what ``work`` makes of ``item``, or None after adding to ``problems``."""
    try:
        return work(item)
    except ContentErrors as error:
        problems.extend(error.problems)
        return None


def collected(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return what ``work`` makes of each item.

    Raises
    ------
    ContentErrors
        With the problems of all of them, when any of them has some.
    """
    problems: list[Problem] = []
    done = [attempt(work, item, problems) for item in items]
    if problems:
        raise ContentErrors(problems)
    return [made for made in done if made is not None]


def _decode(kind: type, value: object) -> object:
    """Read the types that TOML lacks: durations and paths."""
    if kind is Duration:
        if isinstance(value, str):
            return Duration.parse(value)
        msg = f"must be a duration such as 10s, 5m or 1h30m, not {value!r}"
        raise ValueError(msg)
    if issubclass(kind, Path) and isinstance(value, str):
        return kind(value)
    msg = f"must be text, not {value!r}"
    raise ValueError(msg)


def _structs(kind: Any) -> list[type[msgspec.Struct]]:
    """The structs that a declared type allows."""
    if get_origin(kind) in (Union, UnionType):
        return [struct for part in get_args(kind) for struct in _structs(part)]
    return [kind] if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else []


def _allowed(kind: Any) -> tuple[str, ...]:
    """The texts of ``Literal["a", "b"]``, else none."""
    return get_args(kind) if get_origin(kind) is Literal else ()


def _item(kind: Any) -> Any:
    """The element type of ``tuple[X, ...]`` or ``list[X]``, else None."""
    arguments = get_args(kind)
    if get_origin(kind) is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return arguments[0]
    return arguments[0] if get_origin(kind) is list else None


# What msgspec calls the types of TOML, and what people do.
_WORDS = {
    "str": "text",
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}


def _plain(message: str, value: object) -> str:
    """Say msgspec's words as an operator would."""
    if message.startswith("Expected "):
        asked, _, got = message.removeprefix("Expected ").partition(", got ")
        shown = _named(value) if got else ""
        allowed = " or ".join(_WORDS.get(a.strip("`"), a) for a in asked.split(" | "))
        return f"must be {allowed}, not {shown}" if shown else f"must be {allowed}"
    return message


def _named(value: object) -> str:
    kinds = {bool: "a boolean", str: "text", int: "a number", float: "a number",
             list: "a list", dict: "a table"}  # fmt: skip
    name = kinds.get(type(value), type(value).__name__)
    return name if isinstance(value, list | dict) else f"{name} ({value!r})"


def _words(message: str) -> set[str]:
    return set(re.findall(r"[\w-]+", message))


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"""\s*([A-Za-z0-9_\-."']+)\s*=\s*(.*)$""")


def _lines(text: str) -> dict[str, int]:
    """Path -> line for the keys of a TOML text that are written one a line.

    tomllib tells no lines. Keys within an inline table have the line of the table; elements of
    a list are told apart when each begins a line of its own with a brace.
    """
    found: dict[str, int] = {}
    counts: dict[str, int] = {}
    prefix, listed, element = "", "", -1
    for number, line in enumerate(text.splitlines(), start=1):
        if listed:
            if line.lstrip().startswith("{"):
                element += 1
                found.setdefault(f"{listed}[{element}]", number)
            if line.strip().startswith("]"):
                listed = ""
        elif header := _HEADER.match(line):
            prefix = _header(header[1], header[2].replace(" ", ""), counts)
            found.setdefault(prefix, number)
            found.setdefault(re.sub(r"\[\d+\]$", "", prefix), number)
        elif key := _KEY.match(line):
            path = _join(prefix, key[1].strip("\"'"))
            found.setdefault(path, number)
            opened = key[2].partition("#")[0].strip()
            if opened.startswith("[") and not opened.endswith("]"):
                listed, element = path, -1
    return found


def _header(brackets: str, name: str, counts: dict[str, int]) -> str:
    """The path of a table's header, with the number of each array's table that it is in."""
    path = ""
    parts = name.split(".")
    for k, part in enumerate(parts):
        path = _join(path, part.strip("\"'"))
        if brackets == "[[" and k == len(parts) - 1:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = f"{path}[{counts[path]}]"
    return path


def _line(lines: dict[str, int], path: str) -> int | None:
    """The line of the path, or of the nearest table that holds it."""
    return next((lines[part] for part in _ancestors(path) if part in lines), None)


def _ancestors(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
