"""Embeddings: a model that makes them is started for that, whole or split; any other is named as what it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from asgiref.sync import async_to_sync
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from inventory.core.gguf import header_from_bytes
from inventory.core.model_shape import shape_of
from inventory.models import LanguageModel, ModelFile
from planner.from_inventory import CannotPlan
from serving.core.body import BadRequest
from serving.core.commands import ModelFacts, replica_commands
from serving.core.embedding import MAX_INPUTS, embedding_request
from serving.core.placement import BadLaunch
from serving.gateway.limits import Limits
from serving.gateway.routes import load_wanted
from serving.models import Deployment
from serving.runner import liveness
from serving.services import launches
from serving.services.deployments import CannotDeploy
from serving.services.embedders import serve_embeddings
from tests.serving.conftest import Laboratory
from tests.serving.gateway_server import MODEL, Running, endpoint, running_gateway
from tests.serving.stub_replica import Stub, running_stub
from tests.serving.test_commands import host, one, stage
from tests.serving.tiny_embedder import BLOCKS, CONTEXT_TOKENS, LENGTH, write_embedder

TEXTS = ["a b c", "x", "q r s t u v"]


@pytest.fixture
def embedders(laboratory: Laboratory, tmp_path: Path) -> Laboratory:
    """The laboratory with a model that makes embeddings on every device."""
    path = write_embedder(tmp_path / "embedder.gguf")
    size = path.stat().st_size
    shape = shape_of([header_from_bytes(path.read_bytes(), size)])
    model = LanguageModel.objects.create(
        name="embedder",
        architecture=shape.architecture,
        fingerprint="e" * 64,
        size_bytes=size,
        shape=shape.to_dict(),
    )
    for device in laboratory.devices.values():
        ModelFile.objects.create(
            model=model, device=device, path=str(path), size_bytes=size, seen_at=timezone.now()
        )
    return replace(laboratory, model=model, blocks=BLOCKS, context_tokens=CONTEXT_TOKENS)


def embedded(deployment: Deployment) -> list[list[float]]:
    """What a client gets through the gateway."""

    async def ask() -> list[list[float]]:
        async with running_gateway() as gateway:
            gateway.gateway.routes.apply(wanted)
            answer = await gateway.openai.embeddings.create(model=deployment.name, input=TEXTS)
            assert answer.usage.prompt_tokens == 5 + 3 + 8
            with pytest.raises(openai.BadRequestError, match="takes 66 tokens, the context holds 64"):
                await gateway.openai.embeddings.create(model=deployment.name, input=["a " * CONTEXT_TOKENS])
            with pytest.raises(openai.BadRequestError, match="makes embeddings and no text"):
                await gateway.openai.completions.create(model=deployment.name, prompt="a")
            return [one.embedding for one in answer.data]

    wanted = load_wanted()
    return async_to_sync(ask)()


def served(embedders: Laboratory, client: Client) -> Deployment:
    """Deployed by the form of the model's page, on one device."""
    page = reverse("serving:serve_embeddings", args=[embedders.model.pk])
    assert "box-3" in client.get(page).content.decode()
    sent = {"device": embedders.devices["box-3"].pk, "slots": 2, "context_tokens": CONTEXT_TOKENS}
    assert client.post(page, sent).status_code == 302
    embedders.work()
    deployment = Deployment.objects.latest("pk")
    for path in (f"/deployments/{deployment.pk}/", "/deployments/", "/", "/traffic/", "/models/"):
        assert client.get(path).status_code == 200, path
    return deployment


def test_a_real_model_embeds_whole_and_split_alike(embedders: Laboratory, admin_client: Client) -> None:
    found = []
    for start in (
        lambda: served(embedders, admin_client),
        lambda: embedders.deploy(embedders.split()),
    ):
        deployment = start()
        assert deployment.state == Deployment.States.RUNNING, deployment.state_reason
        assert async_to_sync(liveness.hung)(list(deployment.replicas.all())) == {}
        found.append(embedded(deployment))
    assert [len(one) for one in found[0]] == [LENGTH] * 3
    for whole, split in zip(*found, strict=True):
        assert split == pytest.approx(whole, abs=1e-4)
    assert found[0][0] != pytest.approx(found[0][1], abs=1e-2)


def test_what_keeps_a_model_from_being_served_is_said_in_the_form(
    embedders: Laboratory, admin_client: Client
) -> None:
    page = reverse("serving:serve_embeddings", args=[embedders.model.pk])
    sent = {"device": embedders.devices["box-3"].pk, "slots": 2, "context_tokens": CONTEXT_TOKENS + 1}
    answer = admin_client.post(page, sent)
    assert answer.status_code == 422 and "up to 64 tokens; 65 are too many" in answer.content.decode()
    answer = admin_client.post(page, {**sent, "slots": 64, "context_tokens": CONTEXT_TOKENS, "device": 999})
    assert answer.status_code == 422
    boxes = [device.pk for device in embedders.devices.values()]
    timed = {"model": embedders.model.pk, "devices": boxes, "thoroughness": "quick"}
    answer = admin_client.post(reverse("inventory:profiles_start"), timed)
    assert "no tokens to time" in answer.content.decode()
    with pytest.raises(CannotPlan, match="makes embeddings and no text"):
        launches.start_launch(embedders.model, list(embedders.devices.values()), {}, {}, None)
    with pytest.raises(CannotDeploy, match="makes text and no embeddings"):
        serve_embeddings(LanguageModel.objects.get(name="tiny"), embedders.devices["box-3"], 1, 64, None)
    assert not Deployment.objects.exists()


def test_a_file_says_whether_it_makes_embeddings(tmp_path: Path, small_model: Path) -> None:
    path = write_embedder(tmp_path / "embedder.gguf")
    embedder = shape_of([header_from_bytes(path.read_bytes(), path.stat().st_size)])
    with small_model.open("rb") as file:
        chatty = shape_of([header_from_bytes(file.read(2**24), small_model.stat().st_size)])
    assert (embedder.pooling, chatty.pooling) == ("mean", "")


def test_the_server_is_started_for_embeddings_with_each_text_in_one_batch() -> None:
    facts = ModelFacts(4, 512, pooling="cls")
    plan = one("mixed", stage("a", 4, master=True), slots=3)
    argv = " ".join(replica_commands(plan, facts, {"a": host("a", 1)})[0].master.argv)
    assert "--ctx-size 1536 --batch-size 512 --ubatch-size 512 --embeddings --pooling cls" in argv


def test_embeddings_cannot_be_divided_into_prefill_and_decode() -> None:
    plan = one("prefill", stage("a", 4, master=True))
    with pytest.raises(BadLaunch, match="nothing to decode"):
        replica_commands(plan, ModelFacts(4, 512, pooling="cls"), {"a": host("a", 1)})


@pytest.fixture
async def gateway(stub: Stub) -> AsyncIterator[Running]:
    async with running_gateway(Limits(connect_seconds=1.0)) as running:
        running.serve(endpoint(1, stub.port), makes_embeddings=True)
        yield running


async def embed(gateway: Running, texts: list[str], **options: Any) -> Any:
    return await gateway.openai.embeddings.create(
        model=MODEL, input=texts, encoding_format="float", **options
    )


async def test_many_texts_come_back_in_their_order_and_leave_no_slot_taken(
    gateway: Running, stub: Stub
) -> None:
    texts = ["word " * count for count in range(1, 41)]
    answer = await embed(gateway, texts)
    assert [one.embedding for one in answer.data] == [[float(count)] for count in range(1, 41)]
    assert [one.index for one in answer.data] == list(range(40))
    assert answer.usage.total_tokens == sum(range(1, 41)) == gateway.last.prompt_tokens
    assert all(set(body) == {"input", "encoding_format"} for body in stub.bodies)
    await gateway.settled()


async def test_a_replica_that_fails_is_left_for_another(gateway: Running, stub: Stub) -> None:
    stub.fault = "crash"
    async with running_stub() as other:
        gateway.serve(endpoint(1, stub.port), endpoint(2, other.port), makes_embeddings=True)
        for _ in range(6):
            assert (await embed(gateway, ["a b"])).data[0].embedding == [2.0]
        assert stub.bodies
        await gateway.settled()


async def test_a_client_that_leaves_gives_its_slots_back(gateway: Running, stub: Stub) -> None:
    stub.fault = "hang"
    waits = asyncio.create_task(embed(gateway, ["a", "b", "c"]))
    async with asyncio.timeout(60):
        while len(stub.bodies) < 2:
            await asyncio.sleep(0.01)
    waits.cancel()
    stub.go_on.set()
    await gateway.settled()


WRONG: dict[str, dict[str, Any]] = {
    "nothing": {"input": None},
    "no text": {"input": []},
    "an empty text": {"input": ["a", ""]},
    "tokens": {"input": [1, 2, 3]},
    "lists of tokens": {"input": [[1, 2], [3]]},
    "too many texts": {"input": ["a"] * (MAX_INPUTS + 1)},
    "another encoding": {"encoding_format": "int8"},
    "dimensions": {"dimensions": 64},
    "no model": {"model": None},
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_embedded_is_refused_by_field(what: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        embedding_request({"model": "m", "input": "a", **WRONG[what]})
    (field,) = WRONG[what]
    assert str(refusal.value.param).startswith(field)
