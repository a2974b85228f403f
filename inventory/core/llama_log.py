"""What the log of a llama.cpp program tells of its end."""

from __future__ import annotations

import re

COMPLAINT = re.compile(
    " E |error|fail|invalid|abort|cannot|could not|couldn't|unable to|not found|no such file|denied|out of memory"
    "|bad_alloc|in use|unknown device|within the file bounds|corrupted|crashed|mismatch|illegal instruction|sigill",
    re.IGNORECASE,
)


def has_complaint(log: str) -> bool:
    """Whether a line of it may name a cause.

    llama-server writes its log from another thread and may end before it did: of 1,500 starts on a taken port,
    on a busy machine, 86 left an empty log and 19 a log without the last lines (b10434).
    """
    return COMPLAINT.search(log) is not None
