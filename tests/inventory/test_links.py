"""The link matrix: schedule, sums, and real measurements between hosts."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from demo.hosts import DemoHost
from inventory.core.link_matrix import LinkError, outliers, parse_measurement, rounds
from inventory.links import measure_links
from inventory.links.programs import LANGUAGES
from inventory.models import Device, Link
from jobs.core.errors import JobFailed
from tests.inventory.conftest import MakeProgress, register


@pytest.mark.parametrize("count", range(2, 12))
def test_every_pair_is_measured_once_and_no_device_twice_at_a_time(count: int) -> None:
    schedule = rounds(count)
    assert sorted(pair for pairs in schedule for pair in pairs) == list(combinations(range(count), 2))
    for pairs in schedule:
        seats = [device for pair in pairs for device in pair]
        assert len(seats) == len(set(seats))


def test_the_round_trip_is_taken_off_a_transfer() -> None:
    text = "rtt 0.1\nrtt 0.2\nrtt 0.3\nup 1000000 1.2\nup 1000000 1.7\nup 1000000 1.2\ndown 4000000 2.2\n"
    up, down = parse_measurement(text)
    assert up.bytes_per_second == pytest.approx(1e6)
    assert up.latency_seconds == 0.2
    assert up.spread == pytest.approx(1 / 3, rel=0.01)
    assert down.bytes_per_second == pytest.approx(2e6)


def test_an_answer_without_numbers_is_refused() -> None:
    with pytest.raises(LinkError, match="no round-trip time"):
        parse_measurement("Traceback (most recent call last)")


def test_a_slow_port_stands_out_and_a_uniform_lab_does_not() -> None:
    gigabit = {("a", "b"): 117e6, ("b", "a"): 116e6, ("a", "c"): 118e6, ("c", "a"): 11.7e6}
    assert list(outliers(gigabit)) == [("c", "a")]
    assert "100 Mb port" in outliers(gigabit)["c", "a"]
    assert outliers(dict.fromkeys(gigabit, 1e8)) == {}


@pytest.fixture
def pair(lab: list[DemoHost], transactional_db: None) -> list[Device]:
    return [register(host) for host in lab[:2]]


def with_tools(devices: list[Device], *tools: list[str]) -> list[Device]:
    for device, known in zip(devices, tools, strict=True):
        hardware: dict[str, Any] = {"tools": known}
        device.hardware = hardware
        device.save()
    return devices


@pytest.mark.parametrize("first", LANGUAGES)
@pytest.mark.parametrize("second", LANGUAGES)
def test_hosts_measure_each_other_with_what_they_have(
    first: str, second: str, pair: list[Device], make_progress: MakeProgress
) -> None:
    links = measure_links(with_tools(pair, [first], [second]), make_progress())
    assert len(links) == Link.objects.count() == 2
    assert all(link.method.startswith("TCP between the hosts") for link in links)
    assert all(link.bytes_per_second > 1e7 for link in links)


def test_hosts_without_a_tool_are_estimated_and_it_is_said(
    pair: list[Device], make_progress: MakeProgress
) -> None:
    links = measure_links(with_tools(pair, [], ["python3"]), make_progress())
    assert {link.method for link in links} == {"estimated from the rates to the dashboard"}


def test_a_device_that_does_not_answer_is_left_out(pair: list[Device], make_progress: MakeProgress) -> None:
    with_tools(pair, ["python3"], ["python3"])
    pair[1].port = 9
    with pytest.raises(JobFailed, match="1 of 2 did"):
        measure_links(pair, make_progress())
    assert not Link.objects.exists()
