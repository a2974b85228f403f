"""Does a replica still make tokens? Its processes may run and its health may be fine while a worker hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from asgiref.sync import sync_to_async

from inventory import upstream
from inventory.upstream import LlamaServer, UpstreamError
from serving.models import Replica

TOKEN_SECONDS = 20.0


async def hung(replicas: Iterable[Replica]) -> dict[int, str]:
    """Replica id -> what went wrong, for those that make no token; all are tried at once."""
    chosen = list(replicas)
    embedding = await sync_to_async(making_embeddings)(chosen)
    found = await asyncio.gather(*(fault(replica, replica.pk in embedding) for replica in chosen))
    return {replica.pk: text for replica, text in zip(chosen, found, strict=True) if text}


def making_embeddings(replicas: list[Replica]) -> set[int]:
    """Ids of those whose model makes embeddings and no tokens."""
    rows = Replica.objects.filter(pk__in=[replica.pk for replica in replicas])
    return {row.pk for row in rows.select_related("deployment__model") if row.deployment.makes_embeddings}


async def fault(replica: Replica, makes_embeddings: bool) -> str:
    assert replica.host and replica.port, "a ready replica has an address"
    try:
        async with (
            asyncio.timeout(TOKEN_SECONDS + 5.0),
            upstream.open_server(replica.port, replica.api_key, host=replica.host) as server,
        ):
            if makes_embeddings:
                await server.embed("Hello", timeout_seconds=TOKEN_SECONDS)
                return ""
            return await stalled(server)
    except TimeoutError:
        return f"It made no token within {TOKEN_SECONDS:.0f} s."
    except UpstreamError as error:
        return f"It made no token: {error}."


async def stalled(server: LlamaServer) -> str:
    """One token on an idle slot; when all are busy, whether any of them gets on."""
    before = await server.slots()
    idle = next((slot["id"] for slot in before if not slot["is_processing"]), None)
    if idle is not None:
        tokens = await server.tokenize("Hello")
        await server.prefill(tokens, int(idle), keep=False, timeout_seconds=TOKEN_SECONDS)
        return ""
    for _ in range(int(TOKEN_SECONDS)):
        await asyncio.sleep(1.0)
        if marks(await server.slots()) != marks(before):
            return ""
    return f"All its slots are busy and none moved for {TOKEN_SECONDS:.0f} s."


def marks(slots: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What changes in a slot that gets on."""
    return [
        (slot["is_processing"], slot.get("id_task"), slot.get("next_token"), slot.get("n_past"))
        for slot in slots
    ]
