"""A request for embeddings, read against an allow-list like every other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from serving.core.body import BadRequest
from serving.core.openai import shown

MAX_INPUTS = 256
EMBEDDING_PATH = "/v1/embeddings"


@dataclass(frozen=True)
class EmbeddingRequest:
    model: str
    texts: tuple[str, ...]
    encoding: str

    def body(self, text: str) -> dict[str, Any]:
        """What a replica is sent for one of the texts."""
        return {"input": text, "encoding_format": self.encoding}


def embedding_request(value: dict[str, Any]) -> EmbeddingRequest:
    model = value.get("model")
    if not isinstance(model, str) or not model:
        raise BadRequest("model must be text that is not empty", "model")
    encoding = value.get("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise BadRequest(
            f"encoding_format is {shown(encoding)}; it must be float or base64", "encoding_format"
        )
    if value.get("dimensions") is not None:
        raise BadRequest("dimensions is not supported: an embedding has as many as its model", "dimensions")
    return EmbeddingRequest(model, _texts(value.get("input")), encoding)


def _texts(value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts:
        raise BadRequest("input must be a text or a list of texts", "input")
    if len(texts) > MAX_INPUTS:
        raise BadRequest(f"input holds {len(texts)} texts, {MAX_INPUTS} are allowed", "input")
    for index, text in enumerate(texts):
        if not isinstance(text, str) or not text:
            raise BadRequest(
                f"input[{index}] is {shown(text)}; it must be text that is not empty. Numbers of tokens are "
                "not taken: they would be those of another model's tokenizer",
                f"input[{index}]",
            )
    return tuple(texts)
