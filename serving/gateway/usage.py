"""What each API key has used, in memory until the next writing."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import DatabaseError, transaction
from django.db.models import F

from accounts.models import ApiKey


@dataclass
class Used:
    prompt_tokens: int = 0
    output_tokens: int = 0
    refusals: int = 0


class KeyUsage:
    """Added to by requests, written by whoever keeps time."""

    def __init__(self) -> None:
        self._used: dict[int, Used] = {}

    def add(
        self, key_id: int | None, prompt_tokens: int = 0, output_tokens: int = 0, refusals: int = 0
    ) -> None:
        """Requests of our own pages have no key, and are not added up."""
        if key_id is None:
            return
        used = self._used.setdefault(key_id, Used())
        used.prompt_tokens += prompt_tokens
        used.output_tokens += output_tokens
        used.refusals += refusals

    def write(self) -> None:
        """Add what came together to the rows; a key deleted meanwhile is passed over."""
        used, self._used = self._used, {}
        if not used:
            return
        try:
            with transaction.atomic():
                for key_id, one in used.items():
                    ApiKey.objects.filter(pk=key_id).update(
                        prompt_tokens=F("prompt_tokens") + one.prompt_tokens,
                        output_tokens=F("output_tokens") + one.output_tokens,
                        refusals=F("refusals") + one.refusals,
                    )
        except DatabaseError:
            for key_id, one in used.items():
                self.add(key_id, one.prompt_tokens, one.output_tokens, one.refusals)
            raise
