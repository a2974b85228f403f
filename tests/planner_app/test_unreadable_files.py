"""Files that hold no JSON are refused in a person's words."""

from __future__ import annotations

import html
import json
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from accounts.models import User
from tests.planner_app.conftest import finished_run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("valkey_url")]

PNG = b"\x89PNG\r\n"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (
            PNG,
            "is not UTF-8 text (byte 1). A cluster file is JSON, a text in UTF-8. Choose another file, or save",
        ),
        (b"Hello", "is not JSON (line 1, column 1). A cluster file is JSON, a text in UTF-8. Choose another"),
        (
            b'{"a": 1,\n}',
            "is not JSON (line 2, column 1). A cluster file is JSON, a text in UTF-8. Mend it and",
        ),
    ],
)
def test_a_file_that_is_no_json_is_told_with_what_helps(page: Client, content: bytes, told: str) -> None:
    sent = {"cluster": SimpleUploadedFile("lab.json", content), "method": "ga", "seed": 1}
    text = html.unescape(page.post(reverse("planner:file"), sent).content.decode())
    assert f"lab.json {told}" in text
    assert "codec" not in text and "Expecting" not in text


def test_a_file_that_is_no_json_is_to_be_exported_where_there_is_a_plan(
    page: Client, operator: User, small_cluster: dict[str, Any]
) -> None:
    finished_run(small_cluster, operator)
    sent = {"cluster": SimpleUploadedFile("lab.json", PNG), "method": "ga", "seed": 1}
    text = page.post(reverse("planner:file"), sent).content.decode()
    assert "Choose one that the page of a plan gives under Export, “Cluster file (JSON)”." in text


def test_the_mark_that_editors_put_before_a_text_does_no_harm(
    page: Client, small_cluster: dict[str, Any]
) -> None:
    content = b"\xef\xbb\xbf" + json.dumps(small_cluster).encode()
    sent = {"cluster": SimpleUploadedFile("lab.json", content), "method": "ga", "seed": 1}
    assert page.post(reverse("planner:file"), sent).status_code == 302
