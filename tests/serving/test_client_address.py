"""Whose word is taken on where a request comes from."""

from __future__ import annotations

import pytest

from serving.gateway.addresses import client_address, networks

PROXIES = networks("10.0.0.5 10.1.0.0/16 ::1")


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("192.0.2.9", "10.9.9.9", "192.0.2.9"),
        ("10.0.0.5", "192.0.2.9", "192.0.2.9"),
        ("10.0.0.5", "1.1.1.1, 192.0.2.9", "192.0.2.9"),
        ("10.0.0.5", "1.1.1.1, 192.0.2.9, 10.1.2.3", "192.0.2.9"),
        ("::1", "2001:db8::7", "2001:db8::7"),
        ("10.0.0.5", "", "10.0.0.5"),
        ("10.0.0.5", "10.1.0.1", "10.0.0.5"),
        ("10.0.0.5", "not an address", "10.0.0.5"),
        ("10.0.0.5", "192.0.2.9, unknown", "10.0.0.5"),
        ("", "192.0.2.9", ""),
    ],
)
def test_a_named_proxy_is_believed_about_the_hop_before_it_and_nobody_about_more(
    peer: str, forwarded: str, address: str
) -> None:
    assert client_address(peer, forwarded, PROXIES) == address


def test_a_list_with_something_else_in_it_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="nginx"):
        networks("10.0.0.5 nginx")
