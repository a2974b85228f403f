"""The link matrix: schedule, sums, and real measurements between hosts."""

from __future__ import annotations

import json
import shutil
import subprocess
from itertools import combinations
from typing import Any

import pytest

from demo.hosts import DemoHost
from inventory.core.iperf import received_rates
from inventory.core.link_matrix import LinkError, outliers, parse_measurement, rounds
from inventory.links import measure_links
from inventory.links.programs import LANGUAGES
from inventory.models import Device, Link
from jobs.core.errors import JobFailed
from jobs.models import JobLine
from tests.conftest import require, wait_until
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


def interval(megabits: float, *, seconds: float = 0.5, omitted: bool = False) -> dict[str, Any]:
    return {"sum": {"bits_per_second": megabits * 1e6, "seconds": seconds, "omitted": omitted}}


def iperf_report(*, reverse: bool, **changes: Any) -> str:
    """As iperf3 3.12 prints it, cut to what is read: the sender's figures are the greater ones."""
    sent = [interval(400, omitted=True), interval(130), interval(120)]
    received = [interval(90, omitted=True), interval(96), interval(80), interval(1, seconds=0.01)]
    report = {
        "start": {"test_start": {"reverse": int(reverse)}},
        "intervals": received if reverse else sent,
        "end": {"sum_received": {"bits_per_second": 88e6}},
        "server_output_json": {"intervals": sent if reverse else received},
    }
    return json.dumps(report | changes)


@pytest.mark.parametrize("reverse", [False, True])
def test_iperf_counts_where_the_bytes_arrive(reverse: bool) -> None:
    assert received_rates(iperf_report(reverse=reverse)) == [12e6, 10e6]


def test_an_old_iperf_that_does_not_pass_on_the_listeners_figures_gives_its_sum() -> None:
    report = json.loads(iperf_report(reverse=False))
    del report["server_output_json"]
    assert received_rates(json.dumps(report)) == [11e6]


@pytest.mark.parametrize(
    "text, words",
    [
        (
            '{"start": {}, "intervals": [], "end": {}, "error": "unable to connect"}',
            "says: unable to connect",
        ),
        ("iperf3: unrecognized option", "did not answer in JSON: 'iperf3: unrecognized"),
        ('{"start": {}, "intervals": [], "end": {}}', "form that is not known"),
        ("[1]", "did not answer in JSON"),
        (iperf_report(reverse=True, intervals=[interval(0)]), "moved nothing"),
    ],
)
def test_what_iperf_cannot_do_is_said_in_words(text: str, words: str) -> None:
    with pytest.raises(LinkError, match=words):
        received_rates(text)


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


def test_hosts_that_both_have_iperf_are_measured_with_it_and_nothing_of_it_stays(
    pair: list[Device], make_progress: MakeProgress
) -> None:
    require("iperf3", shutil.which("iperf3"), "apt install iperf3")
    both = ["python3", "iperf3"]
    links = measure_links(with_tools(pair, both, both), make_progress())
    assert {link.method for link in links} == {"iperf3 between the hosts, listener on box-1"}
    assert all(link.bytes_per_second > 1e7 and 0 < link.latency_seconds < 1 for link in links)
    listener = f"iperf3 -s -1 -B {pair[0].address}"
    wait_until(
        lambda: listener not in subprocess.check_output(["ps", "-eo", "args"], text=True), "it is gone"
    )


def test_an_iperf_that_does_not_work_is_told_and_the_hosts_are_measured_without_it(
    pair: list[Device], lab: list[DemoHost], make_progress: MakeProgress
) -> None:
    broken = lab[0].programs / "iperf3"
    broken.write_text("#!/bin/sh\necho 'iperf3: parameter error' >&2\nexit 1\n")
    broken.chmod(0o755)
    both = ["python3", "iperf3"]
    links = measure_links(with_tools(pair, both, both), make_progress())
    assert {link.method for link in links} == {"TCP between the hosts, listener on box-1"}
    told = JobLine.objects.filter(text__contains="iperf3 is on box-2 and box-1 but did not work")
    wait_until(told.exists, "the log says so")


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
