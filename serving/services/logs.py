"""What the processes on the hosts wrote."""

from __future__ import annotations

from inventory.remote import RemoteError, connect
from serving.core.commands import LOG_FILE
from serving.models import ManagedProcess
from serving.processes import observe

TAIL_LINES = 2000
SHOWN_LINES = 300


async def tail(process: ManagedProcess) -> str:
    """The end of the log of a running process; RemoteError when its host does not answer."""
    if process.device is None:
        raise RemoteError("Its device was removed, so its log cannot be reached.")
    async with connect(process.device) as connection:
        return await observe.log_tail(connection, f"{process.run_folder}/{LOG_FILE}", TAIL_LINES)


def matching(text: str, words: str) -> str:
    """The last lines that hold all of the words, whatever their case; all lines without words."""
    wanted = words.lower().split()
    lines = [line for line in text.splitlines() if all(word in line.lower() for word in wanted)]
    return "\n".join(lines[-SHOWN_LINES:])
