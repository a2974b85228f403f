"""What the processes on the hosts wrote."""

from __future__ import annotations

import re
from dataclasses import dataclass

from inventory.remote import RemoteError, connect
from serving.core.commands import LOG_FILE
from serving.models import ManagedProcess
from serving.processes import observe

TAIL_LINES = 2000
SHOWN_LINES = 300
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
UNSEEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069]")


async def tail(process: ManagedProcess) -> str:
    """The end of the log of a running process; RemoteError when its host does not answer."""
    if process.device is None:
        raise RemoteError("Its device was removed, so its log cannot be reached.")
    async with connect(process.device) as connection:
        return await observe.log_tail(connection, f"{process.run_folder}/{LOG_FILE}", TAIL_LINES)


@dataclass(frozen=True)
class Found:
    """Lines of a log that hold the words that were asked for; `text` has the last ones of them."""

    text: str
    matched: int
    read: int

    @property
    def summary(self) -> str:
        shown = min(self.matched, SHOWN_LINES)
        if self.matched == self.read:
            return (
                f"The last {shown:,} of {self.read:,} lines read."
                if self.read > shown
                else f"{self.read:,} lines."
            )
        if self.matched == shown:
            return f"{shown:,} of {self.read:,} lines read hold these words."
        return f"The last {shown:,} of {self.matched:,} lines that hold these words, of {self.read:,} read."


def matching(text: str, words: str) -> Found:
    """Lines that hold all of the words, whatever their case; all lines without words."""
    wanted = words.lower().split()
    every = without_escapes(text).splitlines()
    lines = [line for line in every if all(word in line.lower() for word in wanted)]
    return Found("\n".join(lines[-SHOWN_LINES:]), len(lines), len(every))


def without_escapes(text: str) -> str:
    """A log as a terminal would show it: no colours, no moves of a cursor, no other signs that cannot be seen."""
    return UNSEEN.sub("", ESCAPES.sub("", text))
