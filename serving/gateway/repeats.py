"""Idempotency keys: a request sent again gets the first one's answer, or is told that it is still being made."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from serving.gateway.errors import ApiError
from serving.gateway.http import Recording

LIFE_SECONDS = 24 * 3600.0
ENTRIES = 2000
KEY_CHARACTERS = 255

Name = tuple[str, str]  # the caller's key and the key it gave the request


@dataclass
class Entry:
    body_hash: str
    until: float
    recording: Recording | None = None  # empty while the first request is under way


class Repeats:
    """Answers of the last day, in memory and bounded; only whole answers are kept."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Name, Entry] = OrderedDict()

    def begin(self, name: Name, body_hash: str, now: float) -> Recording | None:
        """The recorded answer of an earlier request, or nothing when this is the first."""
        if len(name[1]) > KEY_CHARACTERS:
            raise ApiError(
                400, "idempotency_key_too_long", f"an idempotency key has at most {KEY_CHARACTERS} characters"
            )
        entry = self._entries.get(name)
        if entry is None or now >= entry.until:
            self._entries[name] = Entry(body_hash, now + LIFE_SECONDS)
            self._forget()
            return None
        if entry.body_hash != body_hash:
            raise ApiError(422, "idempotency_key_reused", "this idempotency key was used for another request")
        if entry.recording is None:
            raise ApiError(409, "request_in_progress", "the request with this idempotency key is under way")
        return entry.recording

    def end(self, name: Name, recording: Recording | None) -> None:
        """Keep a whole answer; after anything else the request may be sent again."""
        if name in self._entries and recording is not None and recording.is_whole:
            self._entries[name].recording = recording
        else:
            self._entries.pop(name, None)

    def _forget(self) -> None:
        done = [name for name, entry in self._entries.items() if entry.recording is not None]
        for name in done[: max(0, len(self._entries) - ENTRIES)]:
            del self._entries[name]
