"""Log probabilities as OpenAI's clients know them: llama-server has one shape for chats and plain texts.

It gives none when it is asked for no alternatives, so it is asked for one at least, and those too many are dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Change = Callable[[dict[str, Any]], None]  # changes a choice of an event in its place


def without_alternatives(choice: dict[str, Any]) -> None:
    """For a chat that asked for the log probabilities of its tokens alone."""
    for token in (choice.get("logprobs") or {}).get("content") or []:
        token["top_logprobs"] = []


class PlainTexts:
    """The shape of a completion of plain text; offsets are characters from the beginning of the answer."""

    def __init__(self, alternatives: int) -> None:
        self.alternatives = alternatives
        self._offset = 0

    def __call__(self, choice: dict[str, Any]) -> None:
        tokens = (choice.get("logprobs") or {}).get("content")
        if not tokens:
            return
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(token["token"])
        choice["logprobs"] = {
            "tokens": [token["token"] for token in tokens],
            "token_logprobs": [token["logprob"] for token in tokens],
            "top_logprobs": [self._likeliest(token) for token in tokens],
            "text_offset": offsets,
        }

    def _likeliest(self, token: dict[str, Any]) -> dict[str, float]:
        return {other["token"]: other["logprob"] for other in token["top_logprobs"][: self.alternatives]}
