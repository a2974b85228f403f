"""Request bodies: JSON that every parser reads the same way, or a refusal that says what is wrong."""

from __future__ import annotations

import json
import re
from typing import Any

MAX_DEPTH = 32
MAX_DIGITS = 400


class BadRequest(ValueError):
    """The request cannot be served as it is; `param` names the field."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def parse(raw: bytes) -> dict[str, Any]:
    """The JSON object of a body, or BadRequest for everything that JSON parsers disagree about."""
    try:
        text = raw.decode("utf-8")
        value = DECODER.decode(text)
        if raw.count(b"{") + raw.count(b"[") >= MAX_DEPTH:
            _check_depth(value)
        if b"\\ud" in raw or b"\\uD" in raw:
            json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair has no UTF-8
    except UnicodeDecodeError:
        raise BadRequest("the body is not valid UTF-8") from None
    except UnicodeEncodeError:
        raise BadRequest("the body holds a lone surrogate: one half of a \\ud800-\\udfff pair") from None
    except RecursionError:
        raise BadRequest(f"the body is nested deeper than {MAX_DEPTH} levels") from None
    except json.JSONDecodeError as error:
        raise BadRequest(f"the body is not valid JSON: {error.msg} at character {error.pos}") from None
    except NotANumber as error:
        position = position_of(str(error), text)
        raise BadRequest(f"the body is not valid JSON: {error} at character {position}") from None
    if not isinstance(value, dict):
        raise BadRequest("the body is not a JSON object")
    return value


class NotANumber(Exception):
    """Python's parser reads a word as a number that JSON does not have; the word is the message."""


def _no_constant(name: str) -> float:
    raise NotANumber(name)


def position_of(word: str, text: str) -> int:
    """Where a word first stands outside of the strings of a JSON text; the parser does not tell."""
    found = re.finditer(r'"(?:\\.|[^"\\])*"|-?Infinity|NaN', text)
    return next(match.start() for match in found if match.group() == word)


def _whole(digits: str) -> int:
    """Python refuses some thousands of digits with an error of its own, and no field needs as many."""
    if len(digits) > MAX_DIGITS:
        raise BadRequest(f"the body holds a number of {len(digits)} digits, {MAX_DIGITS} are allowed")
    return int(digits)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise BadRequest("an object of the body has the same key twice")
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise BadRequest(f"the body is nested deeper than {MAX_DEPTH} levels")


DECODER = json.JSONDecoder(parse_int=_whole, parse_constant=_no_constant, object_pairs_hook=_unique)
