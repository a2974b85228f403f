"""Draining waits for answers under way, says how many, and can be called off."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.utils import timezone

from jobs.core.errors import Cancelled
from serving.models import Deployment, Replica, RequestSample, TrafficSample
from serving.runner.drain import drain, look
from tests.serving.test_pages import deployment

__all__ = ["deployment"]


class Server(ThreadingHTTPServer):
    """A replica that is busy for the next `busy_looks` looks at its slots."""

    busy_looks = 2


class Slots(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Server)
        self.server.busy_looks -= 1
        body = json.dumps([{"id": 0, "is_processing": self.server.busy_looks >= 0}]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


class Told:
    """What a person sees of the work; one may think better of it."""

    def __init__(self, *, is_cancelled: bool = False) -> None:
        self.is_cancelled = is_cancelled
        self.messages: list[str] = []

    def check(self) -> None:
        if self.is_cancelled:
            raise Cancelled

    def report(self, message: str, fraction: float | None = None) -> None:
        self.messages.append(message)


@pytest.fixture
def replica(transactional_db: None, deployment: Deployment) -> Iterator[Replica]:
    server = Server(("127.0.0.1", 0), Slots)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found = deployment.replicas.get(role="decode")
    found.host, found.port = "127.0.0.1", server.server_address[1]
    found.save()
    yield found
    server.shutdown()
    server.server_close()


def test_answers_under_way_are_counted_and_waited_for(replica: Replica) -> None:
    told: Any = Told()
    assert drain(told, [replica]) == "no answer was cut off"
    assert len(told.messages) == 2
    assert all(message.startswith("1 answer under way; waiting up to ") for message in told.messages)
    replica.refresh_from_db()
    assert replica.state == Replica.States.DRAINING


def test_answers_of_a_replica_that_failed_are_counted_as_cut(replica: Replica) -> None:
    replica.state = Replica.States.FAILED
    replica.save()
    told: Any = Told()
    assert drain(told, [replica]) == "no answer was cut off"
    now = timezone.now()
    loads = [{"replica": replica.pk, "running": 1}, {"replica": replica.pk + 1, "running": 5}]
    TrafficSample.objects.create(
        at=now, gateway="g", waiting=0, running=6, slots=8, output_tokens=0, replicas=loads
    )
    assert drain(told, [replica]) == "1 answer cut off, since what made it had failed"
    for number, ago_seconds in enumerate((10, 600)):
        RequestSample.objects.create(
            request_id=f"cut-{number}",
            received_at=now - timedelta(seconds=ago_seconds),
            outcome=RequestSample.Outcomes.CUT,
            status=502,
            decode_replica=replica,
            total_seconds=5.0,
        )
    assert drain(told, [replica]) == "2 answers cut off, since what made them had failed"


def test_a_replica_that_falls_silent_while_its_answers_end_cut_them(replica: Replica) -> None:
    replica.port, port = 9, replica.port
    running: dict[int, int] = {}
    assert look([replica], running) == 0 and not running
    replica.port = port
    assert look([replica], running) == 1
    replica.port = 9
    assert look([replica], running) == 0 and sum(running.values()) == 1


def test_called_off_the_replica_takes_requests_again(replica: Replica) -> None:
    told: Any = Told(is_cancelled=True)
    with pytest.raises(Cancelled):
        drain(told, [replica])
    replica.refresh_from_db()
    assert replica.state == Replica.States.READY
