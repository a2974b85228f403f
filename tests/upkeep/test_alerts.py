"""Alerts: what opens one, that it opens once, that it is over when it is over, and who is told."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.core import mail
from django.test import Client
from django.utils import timezone

from accounts.models import AuditEntry
from inventory.models import Device
from serving.models import Deployment, RequestSample, TrafficSample
from tests.serving.test_pages import deployment
from upkeep import delivery
from upkeep.core.queue import long_for_seconds
from upkeep.models import Alert, AlertRules, BackupSchedule, Notice
from upkeep.services import alerts, notices

__all__ = ["deployment"]

pytestmark = pytest.mark.django_db


class Receiver:
    """A webhook's server: what it got, and what it answers."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.status = 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append((dict(self.headers), body))
                self.send_response(receiver.status)
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?room=lab"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def lost_device(name: str = "box-1") -> Device:
    return Device.objects.create(name=name, state=Device.States.LOST, state_reason="It timed out.")


def titles() -> list[str]:
    return list(Alert.objects.filter(resolved_at=None).values_list("title", flat=True))


def queue(now: datetime, waiting: dict[int, int]) -> None:
    """Seconds ago -> requests waiting."""
    TrafficSample.objects.bulk_create(
        TrafficSample(
            at=now - timedelta(seconds=ago), gateway="one", waiting=count, running=1, slots=2, output_tokens=1
        )
        for ago, count in waiting.items()
    )


@pytest.mark.parametrize(
    ("looks", "seconds"),
    [
        ([], 0),
        ([(0, 5)], 0),
        ([(0, 30)], 100),
        ([(0, 30), (40, 5), (60, 30)], 40),
        ([(0, 30), (90, 20)], 0),
    ],
)
def test_a_queue_is_long_since_it_was_last_short(looks: list[tuple[float, int]], seconds: float) -> None:
    assert long_for_seconds(looks, 20, 100.0) == seconds


def test_a_lost_device_opens_one_alert_however_often_it_is_looked_at() -> None:
    lost_device()
    for _ in range(3):
        alerts.watch()
    assert titles() == ["box-1 does not answer"]
    assert AuditEntry.objects.filter(action="alert.opened").count() == 1


def test_a_device_in_maintenance_is_nobodys_alert() -> None:
    Device.objects.create(name="box-1", state=Device.States.LOST, in_maintenance=True)
    alerts.watch()
    assert titles() == []


def test_it_is_over_only_after_it_was_away_for_a_minute() -> None:
    device, now = lost_device(), timezone.now()
    alerts.watch(now)
    Device.objects.update(state=Device.States.ONLINE)
    alerts.watch(now + timedelta(seconds=30))
    assert len(titles()) == 1
    Device.objects.filter(pk=device.pk).update(state=Device.States.LOST)
    alerts.watch(now + timedelta(seconds=40))
    Device.objects.update(state=Device.States.ONLINE)
    alerts.watch(now + timedelta(seconds=99))
    assert len(titles()) == 1
    alerts.watch(now + timedelta(seconds=101))
    assert titles() == []
    assert Alert.objects.count() == 1
    assert AuditEntry.objects.filter(action="alert.resolved").count() == 1


def test_a_replica_that_failed_and_one_that_comes_back_are_down(deployment: Deployment) -> None:
    alerts.watch()
    assert titles() == []
    deployment.replicas.filter(role="prefill").update(state="failed", state_reason="It ran out of memory.")
    deployment.replicas.filter(role="decode").update(state="loading", restarts=1)
    alerts.watch()
    assert sorted(titles()) == [f"D2 (box-2) of {deployment} is down", f"P1 (box-1) of {deployment} is down"]
    Deployment.objects.update(wanted="stopped")
    alerts.watch(timezone.now() + timedelta(minutes=2))
    assert titles() == []


def test_a_queue_that_stays_long_is_an_alert_and_a_short_moment_is_none() -> None:
    now = timezone.now()
    queue(now, dict.fromkeys(range(59, -1, -1), 25))
    alerts.watch(now)
    assert titles() == []
    queue(now, {65: 25})
    alerts.watch(now)
    assert titles() == ["More than 20 requests have waited for 1 min"]


def test_a_gateway_that_fell_silent_has_no_queue() -> None:
    now = timezone.now()
    queue(now, dict.fromkeys(range(75, 20, -1), 25))
    alerts.watch(now)
    assert titles() == []


def test_long_waits_are_an_alert_from_twenty_requests_on() -> None:
    now = timezone.now()
    for number in range(20):
        alerts.watch(now)
        assert titles() == []
        RequestSample.objects.create(
            request_id=str(number), received_at=now - timedelta(seconds=number), outcome="ok", status=200,
            queued_seconds=40.0, total_seconds=50.0,
        )  # fmt: skip
    alerts.watch(now)
    assert titles() == ["One request in twenty waits longer than 30 s"]


def test_a_full_disk_and_a_failed_backup_are_alerts() -> None:
    AlertRules.objects.create(disk_free_bytes=10**18)
    BackupSchedule.objects.create(error="The disk is full.")
    alerts.watch()
    assert len(titles()) == 2
    assert Alert.objects.get(kind="backup_failed").text == "The disk is full."


def test_what_is_switched_off_is_not_watched() -> None:
    lost_device()
    AlertRules.objects.create(
        watches_devices=False, queue_longer_than=None, wait_p95_seconds=None, disk_free_bytes=None
    )
    alerts.watch()
    assert titles() == []


def test_a_webhook_is_told_once_when_it_opens_and_once_when_it_is_over(receiver: Receiver) -> None:
    AlertRules.objects.create(webhook_url=receiver.url, webhook_secret="s3cret")
    lost_device()
    now = timezone.now()
    for _ in range(2):
        alerts.watch(now)
        notices.deliver(now)
    Device.objects.all().delete()
    later = now + timedelta(minutes=2)
    alerts.watch(later)
    notices.deliver(later)
    told = [json.loads(body) for _, body in receiver.got]
    assert [one["event"] for one in told] == ["alert.opened", "alert.resolved"]
    assert told[0]["alert"]["title"] == "box-1 does not answer"
    assert told[1]["alert"]["resolved_at"] is not None


def test_the_body_is_signed_with_its_time(receiver: Receiver) -> None:
    delivery.post(receiver.url, "s3cret", {"a": 1}, now=1000.0)
    headers, body = receiver.got[0]
    expected = hmac.new(b"s3cret", b"1000." + body, hashlib.sha256).hexdigest()
    assert headers["X-E2LLM-Timestamp"] == "1000"
    assert headers["X-E2LLM-Signature"] == f"sha256={expected}"


def test_a_webhook_that_fails_is_tried_again_later_and_at_last_given_up(receiver: Receiver) -> None:
    receiver.status = 503
    AlertRules.objects.create(webhook_url=receiver.url, webhook_secret="s3cret")
    lost_device()
    now = timezone.now()
    alerts.watch(now)
    notices.deliver(now)
    notices.deliver(now + timedelta(seconds=5))
    assert len(receiver.got) == 1
    assert Notice.objects.get().error.endswith("answered with 503")
    for hour in range(1, 9):
        notices.deliver(now + timedelta(hours=hour))
    assert len(receiver.got) == notices.MOST_TRIES
    assert Notice.objects.get().due_at is None


def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    receiver.status = 302
    with pytest.raises(delivery.NotDelivered, match="answered with 302"):
        delivery.post(receiver.url, "s3cret", {})


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(delivery.NotDelivered, match=r"127\.0\.0\.1:1 was not reached"):
        delivery.post("http://127.0.0.1:1/", "s3cret", {})


def test_mail_is_sent_to_all_when_a_server_is_set(settings: Any) -> None:
    settings.EMAIL_HOST = "mail.example.org"
    AlertRules.objects.create(email_to="ada@example.org, bo@example.org")
    Device.objects.create(name="box\n-1", state=Device.States.LOST)
    alerts.watch()
    notices.deliver()
    assert mail.outbox[0].to == ["ada@example.org", "bo@example.org"]
    assert mail.outbox[0].subject == "[E2LLM] box -1 does not answer"


def test_without_a_mail_server_the_reason_is_kept(settings: Any) -> None:
    settings.EMAIL_HOST = ""
    AlertRules.objects.create(email_to="ada@example.org")
    lost_device()
    alerts.watch()
    notices.deliver()
    assert "E2LLM_EMAIL_HOST" in Notice.objects.get().error


def test_an_alert_is_counted_on_every_page_and_listed_for_everybody(viewer_client: Client) -> None:
    lost_device("<img src=x onerror=alert(1)>")
    alerts.watch()
    text = viewer_client.get("/alerts/").content.decode()
    assert '<span class="count">1' in text
    assert "&lt;img src=x" in text and "<img src=x" not in text
    assert "Rules and delivery" not in text


def test_only_an_admin_sets_the_rules(viewer_client: Client, admin_client: Client) -> None:
    assert viewer_client.get("/settings/alerts/").status_code == 403
    assert viewer_client.post("/settings/alerts/test/", {"way": "webhook"}).status_code == 403
    assert admin_client.get("/settings/alerts/").status_code == 200


RULES = {
    "watches_replicas": "on",
    "queue_longer_than": "",
    "queue_seconds": "30",
    "wait_p95_seconds": "",
    "disk_free_gb": "",
}


def test_saving_makes_a_key_that_is_shown_once(admin_client: Client) -> None:
    answer = admin_client.post(
        "/settings/alerts/", RULES | {"webhook_url": "https://hooks.example.org/a"}, follow=True
    )
    rules = AlertRules.objects.get()
    assert rules.webhook_secret in answer.content.decode()
    assert rules.webhook_secret not in admin_client.get("/settings/alerts/").content.decode()
    assert (rules.watches_devices, rules.queue_longer_than, rules.disk_free_bytes) == (False, None, None)
    entry = AuditEntry.objects.get(action="alerts.changed")
    assert "hooks.example.org" not in json.dumps(entry.detail)


@pytest.mark.parametrize(
    "wrong",
    [
        {"webhook_url": "ftp://example.org/"},
        {"webhook_url": "http:///nohost"},
        {"webhook_url": "http://example.org:99999/"},
        {"webhook_url": "http://example.org/\r\nX-Injected: 1"},
        {"email_to": "ada@example.org, nobody"},
        {"queue_seconds": "0"},
        {"disk_free_gb": "-1"},
        {"disk_free_gb": "nan"},
        {"wait_p95_seconds": "inf"},
        {"queue_longer_than": "99999999999999999999"},
    ],
)
def test_rules_that_mean_nothing_are_refused(admin_client: Client, wrong: dict[str, str]) -> None:
    answer = admin_client.post("/settings/alerts/", RULES | wrong)
    assert answer.status_code == 200
    assert b"field-error" in answer.content
    assert not AlertRules.objects.exists()


def test_the_test_button_says_what_came_of_it(admin_client: Client, receiver: Receiver) -> None:
    AlertRules.objects.create(webhook_url=receiver.url, webhook_secret="s3cret")
    assert (
        b"was taken" in admin_client.post("/settings/alerts/test/", {"way": "webhook"}, follow=True).content
    )
    assert json.loads(receiver.got[0][1])["event"] == "alert.test"
    receiver.status = 404
    answer = admin_client.post("/settings/alerts/test/", {"way": "webhook"}, follow=True)
    assert b"answered with 404" in answer.content
    assert not Alert.objects.exists()


def test_roll_out_that_failed_and_left_nothing_that_serves_opens_one_alert(deployment: Deployment) -> None:
    deployment.wanted, deployment.state = Deployment.Wanted.STOPPED, Deployment.States.FAILED
    deployment.state_reason, deployment.ended_at = "box-1: the model file is cut short.", timezone.now()
    deployment.save()
    alerts.watch()
    alert = Alert.objects.get()
    assert alert.title == "Nothing serves although it was wanted"
    assert "cut short" in alert.text
    deployment.state = Deployment.States.STOPPED
    deployment.save()
    alerts.watch(timezone.now() + timedelta(minutes=2))
    assert not Alert.objects.filter(resolved_at=None).exists(), "somebody wanted it to stop"


def test_a_replica_that_came_back_faster_than_the_next_look_is_an_alert_until_it_is_steady(
    deployment: Deployment,
) -> None:
    deployment.replicas.filter(role="decode").update(state="ready", restarts=1)
    alerts.watch()
    assert titles() == [f"D2 (box-2) of {deployment} went down and was started again"]
    deployment.replicas.update(restarts=0)
    alerts.watch(timezone.now() + timedelta(minutes=2))
    assert titles() == []
