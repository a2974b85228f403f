import socket
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from e2llm_web.addresses import Addresses


def test_loopback_needs_no_further_names() -> None:
    assert Addresses("127.0.0.1", 8000, 8001).names() == []


def test_one_address_is_reached_by_itself() -> None:
    lab = Addresses("10.0.0.5", 8000, 8001)
    assert (lab.site, lab.gateway, lab.names()) == (
        "http://10.0.0.5:8000",
        "http://10.0.0.5:8001",
        ["10.0.0.5"],
    )


def test_listening_everywhere_answers_to_the_names_of_this_machine() -> None:
    everywhere = Addresses("0.0.0.0", 8000, 8001)
    assert everywhere.site == "http://127.0.0.1:8000"
    assert socket.gethostname() in everywhere.names()


def test_ipv6_address_stands_in_brackets() -> None:
    assert Addresses("fd00::5", 8000, 8001).site == "http://[fd00::5]:8000"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"port": 99999}, "--port 99999 is no port: give a number from 1 to 65535."),
        ({"port": -5}, "--port -5 is no port: give a number from 1 to 65535."),
        ({"gateway_port": 0}, "--gateway-port 0 is no port: give a number from 1 to 65535."),
        ({"port": 9000, "gateway_port": 9000}, "--port and --gateway-port are both 9000"),
        ({"host": "192.0.2.1"}, "Nothing can listen on port 8000 of 192.0.2.1"),
        ({"host": "no.such.name.invalid"}, "Nothing can listen on port 8000 of no.such.name.invalid"),
    ],
)
def test_addresses_that_cannot_be_are_refused_before_anything_starts(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(CommandError, match=said):
        call_command("up", **options)
