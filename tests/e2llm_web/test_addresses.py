import socket

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
