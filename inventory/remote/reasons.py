"""Why a connection failed, in words instead of the operating system's numbers."""

from __future__ import annotations

import errno
import os
import re
import socket

REASONS = {
    errno.ECONNREFUSED: "nothing listens on this port there",
    errno.EHOSTUNREACH: "no machine answers at this address",
    errno.ENETUNREACH: "no network of this server leads there",
    errno.ECONNRESET: "the other side broke the connection off",
    errno.EPIPE: "the other side broke the connection off",
    errno.ETIMEDOUT: "it did not answer in time",
    errno.EADDRNOTAVAIL: "this server has no address that leads there",
    errno.EACCES: "a rule on this server forbids it",
    errno.EPERM: "a rule on this server forbids it",
    errno.EMFILE: "this server has too many connections open",
}
NAME_REASONS = {
    socket.EAI_NONAME: "this name is not known",
    socket.EAI_AGAIN: "the name server does not answer",
}


def reason(error: Exception) -> str:
    """Why, without numbers and brackets of the operating system."""
    if isinstance(error, socket.gaierror):
        return NAME_REASONS.get(error.errno or 0, "this name leads to no address")
    if not isinstance(error, OSError):
        return str(error).rstrip(".") or type(error).__name__
    number = error.errno
    if number is None:  # asyncio lists all attempts in one text
        found = re.search(r"\[Errno (\d+)\]", str(error))
        number = int(found[1]) if found else None
    known = REASONS.get(number or 0)
    return known or (os.strerror(number).lower() if number else str(error)) or type(error).__name__
