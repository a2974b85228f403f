"""How many tokens a prompt has, asked of a replica only when it matters."""

from __future__ import annotations

from dataclasses import dataclass

from serving import upstream
from serving.core.openai import CHAT_PATH, Generation
from serving.gateway.errors import ApiError
from serving.gateway.routes import Endpoint


@dataclass(frozen=True)
class Prompt:
    """The prompt as the model sees it; `tokens` is empty when a bound on their number was enough."""

    token_count: int
    tokens: tuple[int, ...]
    max_tokens: int


async def prompt_of(
    request: Generation, endpoint: Endpoint, context_tokens: int, needs_tokens: bool, timeout_seconds: float
) -> Prompt:
    """Refuse what does not fit the context of one slot before it takes a place in the queue."""
    bound = request.token_bound
    wanted = request.max_tokens
    if wanted is not None and wanted > context_tokens:
        raise too_long(
            f"{wanted} tokens for the answer are more than the context of {context_tokens}", "max_tokens"
        )
    if not needs_tokens and wanted is not None and bound + wanted <= context_tokens:
        return Prompt(bound, (), wanted)
    tokens = await tokens_of(request, endpoint, timeout_seconds)
    room = context_tokens - len(tokens)
    if room < 1:
        raise too_long(
            f"the messages take {len(tokens)} tokens, the context holds {context_tokens}", "messages"
        )
    # A long conversation must not fail for a generous max_tokens: the answer ends with "length" instead.
    return Prompt(len(tokens), tuple(tokens), min(wanted or room, room))


def too_long(text: str, param: str) -> ApiError:
    return ApiError(400, "context_length_exceeded", text, param=param)


async def tokens_of(request: Generation, endpoint: Endpoint, timeout_seconds: float) -> list[int]:
    """The tokens that the replica would make of the same body."""
    if request.path != CHAT_PATH:
        return await tokenise(endpoint, request.body["prompt"], timeout_seconds)
    return await tokenise(endpoint, await render(request, endpoint, timeout_seconds), timeout_seconds)


async def render(request: Generation, endpoint: Endpoint, timeout_seconds: float) -> str:
    """The messages of a chat as the text that the model sees."""
    answer = await upstream.call(endpoint.target, "POST", "/apply-template", request.body, timeout_seconds)
    return str(answer["prompt"])


async def tokenise(endpoint: Endpoint, text: str, timeout_seconds: float) -> list[int]:
    content = {"content": text, "add_special": True, "parse_special": True}
    answer = await upstream.call(endpoint.target, "POST", "/tokenize", content, timeout_seconds)
    return [int(token) for token in answer["tokens"]]
