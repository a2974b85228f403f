"""Every limit of the gateway in one place."""

from __future__ import annotations

import os
from dataclasses import dataclass

from django.core.exceptions import ImproperlyConfigured

from serving.gateway.addresses import Network, networks


@dataclass(frozen=True)
class Limits:
    """Seconds, bytes and counts; tests pass shorter ones."""

    body_bytes: int = 4 * 2**20
    body_seconds: float = 30.0
    header_bytes: int = 16 * 1024
    header_seconds: float = 10.0
    connections_per_address: int = 512
    proxies: tuple[Network, ...] = ()  # whose word on a client's address is taken
    waiting: int = 256
    queue_seconds: float = 900.0
    connect_seconds: float = 5.0
    first_token_seconds: float = 60.0
    slowest_prefill_tokens_per_second: float = 10.0  # a long prompt on a slow CPU is work, not silence
    inter_token_seconds: float = 30.0
    total_seconds: float = 3600.0
    slow_reader_seconds: float = 60.0
    control_seconds: float = 30.0
    move_seconds: float = 120.0
    unconfirmed_seconds: float = 60.0  # a cancelled prompt is worked on until its batch ends
    poison_seconds: float = 300.0
    poison_crashes: int = 2
    cors_origins: frozenset[str] = frozenset()  # pages of these origins may call; "*" is any

    def first_token_deadline(self, prompt_tokens: int) -> float:
        return self.first_token_seconds + prompt_tokens / self.slowest_prefill_tokens_per_second


def from_environment() -> Limits:
    """The limits of this site; ImproperlyConfigured names the variable that cannot be read."""
    connections = os.environ.get("E2LLM_GATEWAY_CONNECTIONS", str(Limits.connections_per_address))
    if not connections.isdecimal() or not int(connections):
        raise ImproperlyConfigured(f"E2LLM_GATEWAY_CONNECTIONS is {connections!r}; give a number above 0.")
    try:
        proxies = networks(os.environ.get("E2LLM_GATEWAY_PROXIES", ""))
    except ValueError as error:
        raise ImproperlyConfigured(
            f"E2LLM_GATEWAY_PROXIES: {error}; give addresses or networks of proxies, parted by spaces."
        ) from None
    return Limits(
        connections_per_address=int(connections),
        proxies=proxies,
        cors_origins=frozenset(os.environ.get("E2LLM_GATEWAY_ORIGINS", "").split()),
    )
