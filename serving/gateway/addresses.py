"""Whose address a request comes from: the peer's, unless the peer is a proxy that was named as one."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network


def networks(text: str) -> tuple[Network, ...]:
    """Addresses and networks, parted by spaces; ValueError names the one that is none."""
    return tuple(ip_network(word) for word in text.split())


def is_within(address: str, proxies: tuple[Network, ...]) -> bool:
    if not proxies:
        return False
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in proxies)


def client_address(peer: str, forwarded: str, proxies: tuple[Network, ...]) -> str:
    """The last address of `X-Forwarded-For` that no named proxy has; what a client writes itself stands before it."""
    if not is_within(peer, proxies):
        return peer
    for hop in reversed([word.strip() for word in forwarded.split(",") if word.strip()]):
        if not is_address(hop):
            return peer
        if not is_within(hop, proxies):
            return hop
    return peer


def is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
