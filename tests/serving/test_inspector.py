"""One request inspected, and the log of a process: every fact is there, and nothing hostile gets through."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from accounts.models import AuditEntry
from serving.charts.traffic import chosen_range
from serving.models import Deployment, ManagedProcess, RequestSample, RequestText
from serving.services import logs, traffic
from tests.serving.test_pages import deployment, request_sample

__all__ = ["deployment", "request_sample"]

pytestmark = pytest.mark.django_db
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>"


def page(client: Client, sample: RequestSample, **changed: Any) -> str:
    RequestSample.objects.filter(pk=sample.pk).update(**changed)
    return client.get(f"/traffic/requests/{sample.request_id}/").content.decode()


def test_each_step_of_a_hand_over_has_its_time_and_the_link_its_speed(
    admin_client: Client, request_sample: RequestSample
) -> None:
    text = page(
        admin_client,
        request_sample,
        save_seconds=0.05,
        move_seconds=0.1,
        restore_seconds=0.05,
        cached_tokens=75,
    )
    for label, seconds in (("save", "50 ms"), ("move", "100 ms"), ("restore", "50 ms")):
        assert f"Hand-over: {label}</span>" in text
        assert f">{seconds}</strong>" in text
    assert "10.5 MB in 200 ms, the file itself at 839 Mb/s" in text
    assert "100 tokens, 75 reused (75 %)" in text
    assert "P1 (box-1) → D2 (box-2)" in text


def test_the_bars_of_a_request_that_was_answered_fill_its_whole_time(
    admin_client: Client, request_sample: RequestSample
) -> None:
    text = page(admin_client, request_sample)
    widths = [float(part.split("%")[0]) for part in text.split("width: ")[1:] if "%" in part[:8]]
    assert sum(widths) == pytest.approx(100, abs=0.1)


def test_a_second_try_says_why_there_was_one(admin_client: Client, request_sample: RequestSample) -> None:
    text = page(admin_client, request_sample, retry_reason="D3 (box-3) failed: connection refused")
    assert "tried again on another replica" in text
    assert "D3 (box-3) failed: connection refused" in text
    assert "(second try)" in text


@pytest.mark.parametrize(
    ("status", "error", "remedy"),
    [
        (429, "this key already has 2 requests under way", "raise its limits in Settings"),
        (503, "no slot became free within 30 s", "more slots or fewer clients"),
        (400, "the prompt has 9000 tokens, a slot holds 8192", "asking again does not help"),
        (413, "the body has 6 MiB", "send less"),
    ],
)
def test_a_refused_request_says_why_how_long_it_waited_and_what_helps(
    admin_client: Client, request_sample: RequestSample, status: int, error: str, remedy: str
) -> None:
    nothing = dict.fromkeys(
        ["prefill_replica", "decode_replica", "queued_seconds", "prefill_seconds", "handover_seconds",
         "first_token_seconds", "handover_bytes", "output_tokens"]
    )  # fmt: skip
    text = page(
        admin_client,
        request_sample,
        outcome="refused",
        status=status,
        error=error,
        handover="none",
        **nothing,
    )
    assert f"refused before it reached a replica: {error}" in text
    assert remedy in text
    assert "Until it was refused" in text


def test_a_fallback_and_a_cut_say_their_reasons(admin_client: Client, request_sample: RequestSample) -> None:
    text = page(
        admin_client,
        request_sample,
        handover="fallback",
        handover_error="move: connection refused",
        outcome="cut",
        status=502,
        error="the replica failed: the connection was lost",
    )
    assert "fell back to a plain prompt on the decode replica: move: connection refused." in text
    assert "the connection was lost" in text


def test_hostile_words_of_a_host_are_shown_as_words(
    admin_client: Client, request_sample: RequestSample
) -> None:
    for name in ("error", "retry_reason", "handover_error"):
        text = page(admin_client, request_sample, **{name: HOSTILE}, handover="fallback", outcome="failed")
        assert HOSTILE not in text
        assert "&lt;script&gt;alert(1)" in text
    table = admin_client.get("/traffic/").content.decode()
    assert HOSTILE not in table


def test_an_unknown_request_is_a_page_that_is_missing(admin_client: Client) -> None:
    assert admin_client.get("/traffic/requests/req-nothing/").status_code == 404


def test_what_was_asked_is_for_admins_and_each_look_is_written_down(
    admin_client: Client, viewer_client: Client, request_sample: RequestSample
) -> None:
    assert "What was asked" not in page(admin_client, request_sample)
    RequestText.objects.create(sample=request_sample, prompt=f"a secret {HOSTILE}")
    shown = page(admin_client, request_sample)
    assert "What was asked" in shown
    assert "a secret" not in shown
    assert "What was asked" not in page(viewer_client, request_sample)
    address = "/traffic/requests/req-1/text/"
    assert viewer_client.post(address).status_code == 403
    assert not AuditEntry.objects.filter(action="request.text_read").exists()
    answer = admin_client.post(address).content.decode()
    assert "a secret &lt;script&gt;" in answer
    assert AuditEntry.objects.get(action="request.text_read").target == "req-1"


def test_a_log_is_searched_counted_and_free_of_what_a_terminal_would_obey() -> None:
    log = "\x1b[31mred\x1b[0m slot 1\r\n\x1b]0;title\x07plain\x00 slot 2\n\u202ereversed\nslot\n"
    found = logs.matching(log, "")
    assert found.text == "red slot 1\nplain slot 2\nreversed\nslot"
    found = logs.matching(log, "SLOT 2")
    assert (found.text, found.summary) == ("plain slot 2", "1 of 4 lines read hold these words.")
    long = logs.matching("\n".join(f"line {number}" for number in range(1000)), "line")
    assert long.text.splitlines()[0] == "line 700"
    assert long.summary == "The last 300 of 1,000 lines read."


def test_the_log_of_an_ended_process_is_text_and_its_absence_is_explained(
    admin_client: Client, deployment: Deployment
) -> None:
    process = ManagedProcess.objects.create(
        replica=deployment.replicas.get(role="decode"),
        kind="master",
        marker="e2llm-000000000000",
        state="exited",
        ended_at=timezone.now(),
        exit_reason=f"error: {HOSTILE}",
    )
    address = f"/processes/{process.pk}/log/"
    text = admin_client.get(address, {"words": '"><script>alert(2)</script>'}).content.decode()
    assert "<script>" not in text
    assert HOSTILE not in admin_client.get(address).content.decode()
    ManagedProcess.objects.update(exit_reason="")
    assert "left no word" in admin_client.get(address).content.decode()


def test_an_answer_that_was_stopped_spent_its_first_seconds_in_prefill(
    admin_client: Client, request_sample: RequestSample
) -> None:
    untold = dict.fromkeys(["prefill_seconds", "handover_seconds", "save_seconds", "move_seconds",
                            "restore_seconds", "prefill_replica", "handover_bytes"])  # fmt: skip
    text = page(
        admin_client,
        request_sample,
        outcome="cancelled",
        handover="none",
        queued_seconds=0.0,
        first_token_seconds=0.5,
        **untold,
    )
    assert "Prefill and first step</span>" in text
    assert "First decode step" not in text
    means = traffic.page(chosen_range("1h"))["figures"]["phases"]["data"]
    shares = {series["name"]: series["y"] for series in means}
    assert shares["Prefill"] == [pytest.approx(0.5)]
    assert shares["First decode step"] == [pytest.approx(0.0)]


@pytest.mark.parametrize(
    ("from_playground", "status", "asker"),
    [
        (True, 200, "none: asked in the playground"),
        (False, 200, "a key that was removed since"),
        (False, 401, "none that is known"),
        (None, 200, "the playground or a removed key"),
    ],
)
def test_a_request_without_a_key_says_where_it_came_from(
    admin_client: Client,
    request_sample: RequestSample,
    from_playground: bool | None,
    status: int,
    asker: str,
) -> None:
    text = page(admin_client, request_sample, from_playground=from_playground, status=status)
    assert f"<dt>Key</dt><dd>{asker}</dd>" in text


def test_tokens_of_a_stopped_answer_are_those_that_were_sent(
    admin_client: Client, request_sample: RequestSample
) -> None:
    assert "21 tokens, " in page(admin_client, request_sample)
    text = page(admin_client, request_sample, outcome="cancelled")
    assert "21 tokens sent before the client left, " in text
