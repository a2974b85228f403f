"""What a person writes for a number in an address or a form is refused in words, however strange or long."""

from __future__ import annotations

import json

import pytest
from django.test import Client

from accounts.core.asked_number import LARGEST_ROW_ID, asked_number
from accounts.models import User
from inventory.models import LanguageModel
from inventory.views.language_models import USUAL_CONTEXT
from tests.planner_app.conftest import shape

STRANGE = ["²", "9" * 24, "9" * 5000, "-1", "1.5", "abc", ""]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def page(operator: User) -> Client:
    client = Client()
    client.force_login(operator)
    return client


@pytest.mark.parametrize("text", [*STRANGE, str(LARGEST_ROW_ID + 1), "٣"])
def test_a_text_that_is_no_id_is_the_id_of_no_row(text: str) -> None:
    assert asked_number(text) == 0


def test_the_largest_id_is_one() -> None:
    assert asked_number(str(LARGEST_ROW_ID)) == LARGEST_ROW_ID
    assert asked_number("65", largest=64) == 0


@pytest.mark.parametrize("text", STRANGE)
@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/plans/compare/?run=1&run=", 302),
        ("/plans/new/?devices=", 200),
        ("/plans/new/?model=", 200),
        ("/plans/new/hint/?devices=", 200),
        ("/plans/?page=", 200),
        ("/profiles/?device=", 200),
        ("/profiles/?model=", 200),
        ("/playground/?chat=", 200),
        ("/traffic/?deployment=", 200),
        ("/traffic/?range=", 200),
        ("/jobs/?page=", 200),
        ("/launches/new/?model=", 200),
    ],
)
def test_a_page_is_shown_whatever_number_its_address_asks_for(
    page: Client, address: str, status: int, text: str
) -> None:
    assert page.get(address + text).status_code == status


@pytest.mark.parametrize("text", STRANGE)
@pytest.mark.parametrize(
    ("address", "name", "status"),
    [
        ("/plans/new/", "devices", 422),
        ("/plans/new/", "model", 422),
        ("/profiles/start/", "devices", 422),
        ("/profiles/start/", "model", 422),
        ("/deployments/deploy/", "plan_run", 404),
        ("/deployments/left-over/stop/", "device", 404),
    ],
)
def test_a_form_with_such_a_number_is_refused(
    page: Client, address: str, name: str, status: int, text: str
) -> None:
    assert page.post(address, {name: text}).status_code == status


@pytest.mark.parametrize("text", STRANGE)
def test_a_model_is_shown_for_the_usual_context_and_copied_nowhere(page: Client, text: str) -> None:
    model = LanguageModel.objects.create(
        name="Tiny", architecture="llama", fingerprint="f" * 64, size_bytes=10**10, shape=shape().to_dict()
    )
    shown = page.get(f"/models/{model.pk}/?context={text}")
    assert shown.context["context_tokens"] == USUAL_CONTEXT
    assert page.post(f"/models/{model.pk}/copy/", {"device": text}).status_code == 404


@pytest.mark.parametrize("digits", [24, 5000])
@pytest.mark.parametrize(
    "address", ["plans", "deployments", "launches", "devices", "models", "profiles", "jobs"]
)
def test_a_row_of_an_endless_number_is_not_there(page: Client, address: str, digits: int) -> None:
    assert page.get(f"/{address}/{'9' * digits}/").status_code == 404


@pytest.mark.parametrize("given", ["abc", [1], 1e999, 10**30, -1, None])
def test_a_chat_with_no_id_of_ours_is_kept_as_a_new_one(page: Client, operator: User, given: object) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    answer = page.post(
        "/playground/keep/", json.dumps({"id": given, "messages": messages}), content_type="application/json"
    )
    assert answer.status_code == 200
    assert operator.conversations.count() == 1
