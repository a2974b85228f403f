"""Server-sent events as bytes: whole events out of pieces, pings left out, and what a llama-server event means."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

END = b"\n\n"
DONE = b"data: [DONE]\n\n"
PREFIX = b"data: "
ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
TOKEN_FIELDS = (b'"content":"', b'"reasoning_content":"', b'"text":"', b'"tool_calls"')


class EventSplitter:
    """Joins pieces of a stream and cuts them at the ends of events, so that no event is ever torn."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, piece: bytes) -> bytes:
        """Every whole event that is complete now, without comments; empty when there is none."""
        whole = self.rest + piece if self.rest else piece
        if whole.endswith(END):
            self.rest = b""
        else:
            end = whole.rfind(END) + len(END)
            if end < len(END):
                self.rest = whole
                return b""
            whole, self.rest = whole[:end], whole[end:]
        return without_comments(whole) if whole.startswith(b":") or b"\n:" in whole else whole


def without_comments(events: bytes) -> bytes:
    """A comment is a ping of the server: it flows while the model hangs, and says nothing."""
    kept = []
    for event in events.split(END):
        lines = [line for line in event.split(b"\n") if line and not line.startswith(b":")]
        if lines:
            kept.append(b"\n".join(lines) + END)
    return b"".join(kept)


def split(events: bytes) -> Iterator[bytes]:
    for event in events.split(END):
        if event:
            yield event + END


def is_done(event: bytes) -> bool:
    return event == DONE


def payload(event: bytes) -> dict[str, Any]:
    """The JSON object of an event; empty when it carries none."""
    for line in event.split(b"\n"):
        name, _, value = line.partition(b":")
        if name in (b"data", b"error") and value.strip() != b"[DONE]":
            parsed = json.loads(value)
            if name == b"error":
                return {"error": parsed}
            return parsed if isinstance(parsed, dict) else {}
    return {}


def compact(value: Any) -> bytes:
    return ENCODER.encode(value).encode()


def event(value: dict[str, Any]) -> bytes:
    return PREFIX + compact(value) + END


def is_special(events: bytes) -> bool:
    """Whether figures, a fault or the end are among these events; inside of text the quotes are escaped."""
    return b'"usage":{' in events or b'"error":' in events or b"[DONE]" in events


def plain_events(piece: bytes) -> int:
    """How many whole events a piece of a stream is; 0 when there is something to join, to leave out or to open.

    Inside of text a line break is escaped, so the first one in a piece is the end of its first event.
    """
    if b'"usage":{' in piece or b'"error":' in piece:
        return 0
    if not (piece.startswith(b"data: {") and piece.endswith(END)):
        return 0
    if piece.find(b"\n") == len(piece) - len(END):
        return 1
    number = piece.count(END)
    return number if piece.count(END + b"data: {") == number - 1 and b"\n:" not in piece else 0


def has_token(events: bytes) -> bool:
    """Whether these events carry generated text, and not only the role that opens an answer."""
    return any(field in events for field in TOKEN_FIELDS)
