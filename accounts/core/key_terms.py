"""What an API key may do, with which models, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    GENERATE = "generate"
    EMBED = "embed"
    TOKENIZE = "tokenize"
    METRICS = "metrics"


EVERYTHING = tuple(Scope)
NO_LIMIT = 0


@dataclass(frozen=True)
class KeyTerms:
    """No model named means every model; a limit of 0 is none."""

    scopes: tuple[str, ...] = EVERYTHING
    model_names: tuple[str, ...] = ()
    max_concurrent: int = NO_LIMIT
    tokens_per_minute: int = NO_LIMIT


UNLIMITED = KeyTerms()
