"""Ends what a supervisor left behind when the supervisor itself was killed.

Reads `+GROUP` and `-GROUP` lines from the supervisor's pipe; the end of the pipe is the end of the supervisor. A
process group outlives its leader, and this works on macOS too, where a process cannot ask to die with its parent.
"""

import os
import signal
import sys
import time
from collections.abc import Iterable

GRACE_SECONDS = 3.0


def watch(lines: Iterable[str]) -> set[int]:
    """The groups that are still there when the supervisor is gone."""
    groups: set[int] = set()
    for line in lines:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    return groups


def is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def end(groups: set[int]) -> None:
    for sign, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, 0.0)):
        for group in filter(is_alive, groups):
            os.killpg(group, sign)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(map(is_alive, groups)):
            time.sleep(0.05)


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    end(watch(sys.stdin))
