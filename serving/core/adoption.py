"""Is a process that runs the one that a plan would start: by its command line, word for word."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from serving.core.commands import SURVIVE_SIGPIPE


def option(words: Sequence[str], name: str) -> str:
    """The word after an option; empty when the option is not there."""
    pairs = zip(words, words[1:], strict=False)
    return next((value for key, value in pairs if key == name), "")


def rpc_endpoints(words: Sequence[str]) -> list[str]:
    """`address:port` of every RPC worker that a llama-server was started with."""
    return [endpoint for endpoint in option(words, "--rpc").split(",") if endpoint]


def own_endpoint(words: Sequence[str]) -> str:
    """`address:port` on which an RPC worker listens."""
    return f"{option(words, '-H')}:{option(words, '-p')}"


def difference(wanted: Sequence[str], running: Sequence[str]) -> str:
    """The first word in which they differ, in a sentence; empty when they are the same.

    `wanted` as it is started: the shell that only sets a trap has replaced itself by then.
    """
    shell = len(SURVIVE_SIGPIPE)
    wanted = wanted[shell:] if tuple(wanted[:shell]) == SURVIVE_SIGPIPE else wanted
    before = ""
    for planned, seen in zip_longest(wanted, running, fillvalue=""):
        if planned != seen:
            what = f"{before} is " if before.startswith("-") else ""
            return f"its command line is another: {what}{seen or 'nothing'}, the plan wants {planned or 'nothing'}"
        before = planned
    return ""
