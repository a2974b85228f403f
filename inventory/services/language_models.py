"""Which models nothing can be made with now, and what brings them back."""

from __future__ import annotations

from collections.abc import Sequence

from inventory.core.quantities import counted
from inventory.models import LanguageModel

NAMED = 3


def left_out_text() -> str:
    """Why some known models are not offered, with the remedy; empty while all are."""
    rest = LanguageModel.objects.exclude(pk__in=LanguageModel.objects.usable())
    lost = list(rest.filter(files=None).values_list("name", flat=True))
    odd = list(rest.exclude(files=None).distinct().values_list("name", flat=True))
    texts = []
    if lost:
        texts.append(
            f"Not offered, as no copy is left: {_some(lost)}. "
            "Put the file back on a device or into the library, and look for models again."
        )
    if odd:
        texts.append(f"Not offered, as their files cannot be used: {_some(odd)}. Models says why.")
    return " ".join(texts)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED])
    more = len(names) - NAMED
    return f"{shown} and {counted(more, 'other')}" if more > 0 else shown
