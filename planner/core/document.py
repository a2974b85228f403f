"""Reads a JSON document field by field and remembers every problem with its path."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from math import isfinite, isnan
from typing import Any, TypeVar

from inventory.core.quantities import counted
from planner.core.errors import BadDocument, NotJson

Item = TypeVar("Item")
LARGEST = 1e30
LONGEST_NAME = 100  # characters
LONGEST_TEXT = 10_000
UNPRINTABLE = {"Cc", "Cs", "Zl", "Zp"}  # Unicode's control characters, halves of pairs, line separators


def read_json(content: bytes) -> Any:
    """The JSON in a file's bytes, with or without the mark that some editors put before a text."""
    try:
        return json.loads(content.decode("utf-8-sig"), object_pairs_hook=_single)
    except NotJson:
        raise
    except UnicodeDecodeError as error:
        raise NotJson(f"is not UTF-8 text (byte {error.start + 1:,})", is_other_kind=True) from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        is_other_kind = not error.doc[: error.pos].strip()
        raise NotJson(f"is not JSON ({place})", is_other_kind=is_other_kind) from None
    except ValueError:
        raise NotJson("is not JSON: a number has too many digits") from None
    except RecursionError:
        raise NotJson("is not JSON: it is nested too deeply") from None


def _single(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys stand there once: of two values nobody knows which one was meant."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        double = next(key for key in found if keys.count(key) > 1)
        raise NotJson(f"has {_shown(double)} twice in one object")
    return found


class Fields:
    """One JSON object of a document; wrong fields are noted in `problems` and read as a harmless value."""

    def __init__(self, value: Any, path: str, problems: list[str]) -> None:
        self.path = path
        self.problems = problems
        self._seen: set[str] = set()
        if isinstance(value, dict):
            self._values = value
            self.is_object = True
        else:
            self._values = {}
            self.is_object = False
            problems.append(f"{path or 'document'}: {_shown(value)} is not an object")

    def note(self, key: str, problem: str) -> None:
        line = f"{self._at(key)}: {problem}"
        if line not in self.problems:  # a field may be looked at twice
            self.problems.append(line)

    def has(self, key: str) -> bool:
        return key in self._values

    def raw(self, key: str) -> Any:
        self._seen.add(key)
        if key not in self._values:
            if self.is_object:
                self.note(key, "is missing")
            return None
        return self._values[key]

    def text(self, key: str, default: str | None = None, *, longest: int = LONGEST_TEXT) -> str:
        if default is not None and not self.has(key):
            self._seen.add(key)
            return default
        value = self.raw(key)
        if key in self._values and (fault := text_fault(value, longest)):
            self.note(key, fault)
            return ""
        return value if isinstance(value, str) else ""

    def name(self, key: str) -> str:
        """A text that stands in lines and tables."""
        return self.text(key, longest=LONGEST_NAME)

    def flag(self, key: str, default: bool | None = None) -> bool:
        if default is not None and not self.has(key):
            self._seen.add(key)
            return default
        value = self.raw(key)
        if key in self._values and not isinstance(value, bool):
            self.note(key, f"{_shown(value)} is not true or false")
        return value is True

    def choice(self, key: str, allowed: Iterable[str], default: str | None = None) -> str:
        options = list(allowed)
        before = len(self.problems)
        value = self.text(key, default)
        if len(self.problems) == before and value not in options:
            self.note(key, f"{_shown(value)} is not one of {', '.join(options)}")
        return value if value in options else options[0]

    def number(self, key: str, *, positive: bool = False, default: float | None = None) -> float:
        if default is not None and not self.has(key):
            self._seen.add(key)
            return default
        value = self.raw(key)
        if key not in self._values:
            return 1.0
        return check_number(value, self._at(key), self.problems, positive=positive)

    def whole(self, key: str, *, minimum: int = 0, maximum: int = 10**15, default: int | None = None) -> int:
        if default is not None and not self.has(key):
            self._seen.add(key)
            return default
        value = self.raw(key)
        if key not in self._values:
            return max(1, minimum)
        if isinstance(value, bool) or not isinstance(value, int):
            self.note(key, f"{_shown(value)} is not a whole number")
        elif value < minimum:
            self.note(key, f"{_shown(value)} is less than {minimum}")
        elif value > maximum:
            self.note(key, f"{_shown(value)} is more than {maximum}")
        else:
            return value
        return max(1, minimum)

    def items(self, key: str, *, minimum: int = 0) -> list[Any]:
        value = self.raw(key)
        if key not in self._values:
            return []
        if not isinstance(value, list):
            self.note(key, f"{_shown(value)} is not a list")
            return []
        if len(value) < minimum:
            self.note(key, f"has {counted(len(value), 'entry', 'entries')}, needs at least {minimum}")
        return value

    def numbers(self, key: str, *, positive: bool = False) -> tuple[float, ...]:
        values = self.items(key, minimum=1)
        path = self._at(key)
        return tuple(
            check_number(value, f"{path}[{index}]", self.problems, positive=positive)
            for index, value in enumerate(values)
        )

    def texts(self, key: str) -> tuple[str, ...]:
        values = self.items(key)
        for index, value in enumerate(values):
            if fault := text_fault(value, LONGEST_TEXT):
                self.problems.append(f"{self._at(key)}[{index}]: {fault}")
        return tuple(value for value in values if isinstance(value, str))

    def format(self, name: str) -> None:
        """Note a document of another format, or one that does not say."""
        value = self.raw("format")
        if self.has("format") and value != name:
            self.note("format", f"{_shown(value)} is not {name}")

    def inner(self, key: str) -> Fields:
        value = self.raw(key)
        if key not in self._values:
            return Fields({}, self._at(key), [])
        return Fields(value, self._at(key), self.problems)

    def each(self, key: str, read: Callable[[Fields], Item], *, minimum: int = 0) -> tuple[Item, ...]:
        values = self.items(key, minimum=minimum)
        path = self._at(key)
        return tuple(
            read(Fields(value, f"{path}[{index}]", self.problems)) for index, value in enumerate(values)
        )

    def ignore(self, *keys: str) -> None:
        self._seen.update(keys)

    def close(self) -> None:
        """Note every field that nobody asked for."""
        for key in self._values:
            if key not in self._seen:
                self.note(str(key), "is not a field of this format")

    def _at(self, key: str) -> str:
        shown = _shown(key) if text_fault(key, LONGEST_NAME) else key
        return f"{self.path}.{shown}" if self.path else shown


def text_fault(value: Any, longest: int) -> str:
    """What is wrong with a text, or nothing: control characters would reach the terminals it is printed on."""
    if not isinstance(value, str) or not value.strip():
        return f"{_shown(value)} is not a text"
    if len(value) > longest:
        return f"{_shown(value)} has {len(value):,} characters, more than {longest:,}"
    if any(unicodedata.category(one) in UNPRINTABLE for one in value):
        return f"{_shown(value)} has control characters"
    return ""


def check_number(value: Any, path: str, problems: list[str], *, positive: bool) -> float:
    """The value as a float, or 1.0 and a noted problem."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        problems.append(f"{path}: {_shown(value)} is not a number")
    elif not abs(value) <= LARGEST:  # an infinity or a whole number too long for a float
        problems.append(f"{path}: {_shown(value)} is not a number between 0 and {LARGEST:g}")
    elif positive and value <= 0:
        problems.append(f"{path}: {_shown(value)} is not positive")
    elif value < 0:
        problems.append(f"{path}: {_shown(value)} is negative")
    else:
        return float(value)
    return 1.0


def raise_if_any(problems: Sequence[str]) -> None:
    if problems:
        raise BadDocument(list(problems))


def _shown(value: Any) -> str:
    """A wrong value in the words of a person who wrote JSON."""
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if isnan(value) else "infinity" if value > 0 else "-infinity"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
