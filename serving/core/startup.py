"""Why a llama.cpp process did not come up: the last lines of its log as cause and remedy."""

from __future__ import annotations

import re
from dataclasses import dataclass

from inventory.core.llama_log import has_complaint

LAST_LINES = 3
LONGEST_QUOTE = 160
SLOW_DISK_BYTES_PER_SECOND = 50e6
MINUTE_SECONDS = 60.0


@dataclass(frozen=True)
class Known:
    """A failure that is recognised by its log, whatever the exit status was."""

    pattern: str
    cause: str
    remedy: str


PORT_TAKEN = Known(
    "couldn't bind HTTP server socket|Failed to create server socket|Address already in use",
    "its port is used by another process",
    "Deploy again: another port is chosen each time.",
)

# The first that matches is said: a lost worker also makes its device an invalid argument.
KNOWN = (
    Known(
        "data is not within the file bounds|model is corrupted or incomplete",
        "the model file is cut short",
        "Copy the model to this device again; the copy is checked by its hash.",
    ),
    Known(
        "failed to open GGUF file|No such file or directory.*gguf",
        "the model file cannot be opened",
        "Scan the device for models, or copy the model there.",
    ),
    Known("invalid magic characters", "the model file is not a GGUF file", "Choose another file."),
    Known(
        "Failed to connect|Remote RPC server crashed|failed to connect to RPC",
        "it cannot reach an RPC worker, or lost it",
        "Check that the firewall lets the devices reach each other's RPC ports.",
    ),
    Known(
        "error: invalid argument|error while handling argument",
        "this build does not know an option",
        "Install a newer llama.cpp there and probe the device again.",
    ),
    PORT_TAKEN,
    Known(
        "Invalid host address|Cannot assign requested address",
        "the address is not one of this device",
        "Correct the device's cluster address and probe it again.",
    ),
    Known(
        "failed to allocate buffer for kv cache|failed to allocate.*KV",
        "there is not enough memory for the KV cache",
        "Plan with fewer slots or a shorter context.",
    ),
    Known(
        "out of memory|cannot allocate|unable to allocate .* buffer|failed to allocate|cudaMalloc failed|bad_alloc",
        "there is not enough memory for its blocks",
        "Probe the device again and make a new plan, or end what else uses its memory.",
    ),
    Known(
        "unknown device",
        "llama.cpp there does not have the device that the plan names",
        "Probe the device again and make a new plan.",
    ),
    Known(
        "RPC server version mismatch|RPC handshake failed",
        "the RPC worker has another version of llama.cpp",
        "Install the same build on all devices of the replica.",
    ),
    Known(
        "Illegal instruction|SIGILL",
        "this build needs a newer processor",
        "Install a llama.cpp that is built for this processor.",
    ),
    Known("Permission denied", "a file may not be read or run by our user", "Correct its permissions."),
    Known(
        "error while loading shared libraries",
        "a library that llama.cpp needs is missing",
        "Install the libraries that the log names.",
    ),
)


UNSAID = (
    "ended by someone, killed for lack of memory or by an instruction that the processor lacks, "
    "or its last lines were lost. The host's system log tells which."
)


def known_cause(log: str) -> Known | None:
    return next((known for known in KNOWN if re.search(known.pattern, log, re.IGNORECASE)), None)


def is_port_taken(log: str) -> bool:
    return known_cause(log) is PORT_TAKEN


def lacks_cause(log: str) -> bool:
    """Neither a known cause nor a complaint: its last lines may have been lost, and another start may tell."""
    return known_cause(log) is None and not has_complaint(log)


def explain(log: str) -> str:
    """Cause and remedy in words; the last lines of the log when the failure is not a known one."""
    known = known_cause(log)
    if known is not None:
        return f"{known.cause}. {known.remedy}"
    lines = [line for line in log.splitlines() if line.strip()]
    if not lines:
        return f"it ended without a word in its log: {UNSAID}"
    last = "it ended. Its last words: " + " / ".join(lines[-LAST_LINES:])
    if has_complaint("\n".join(lines[-LAST_LINES:])):
        return last
    return f"{last}. It ended without a complaint in its log: {UNSAID}"


def explain_end(log: str) -> str:
    """Why a process that had come up ended, in a sentence or two; of its log no more than the last complaint."""
    known = known_cause(log)
    if known is not None:
        return f"{known.cause}. {known.remedy}"
    complaint = next((line.strip() for line in reversed(log.splitlines()) if has_complaint(line)), "")
    if complaint:
        return f"it ended, and its log complains: {shortened(complaint)}"
    return f"it ended without a complaint in its log: {UNSAID}"


def shortened(line: str) -> str:
    return line if len(line) <= LONGEST_QUOTE else line[: LONGEST_QUOTE - 1] + "…"


def load_deadline_seconds(file_bytes: int, sent_bytes: int, slowest_bytes_per_second: float) -> float:
    """How long a load may take: three times what the disk and the links need, and a minute to begin with."""
    disk_seconds = file_bytes / SLOW_DISK_BYTES_PER_SECOND
    link_seconds = sent_bytes / slowest_bytes_per_second if sent_bytes else 0.0
    return MINUTE_SECONDS + 3 * (disk_seconds + link_seconds)
