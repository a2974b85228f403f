"""Requests added up in steps of five minutes and of an hour, each counted once, whenever its row came in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from django.db import transaction
from django.db.models import Max

from serving.core.tally import Look, Tally
from serving.models import RequestRollUp, RequestSample, RollUpMark

STEPS = (timedelta(minutes=5), timedelta(hours=1))
BATCH = 20_000
TAIL = 20_000
COLUMNS = (
    "received_at",
    "outcome",
    "handover",
    "prefill_replica",
    "decode_replica",
    "queued_seconds",
    "prefill_seconds",
    "handover_seconds",
    "first_token_seconds",
    "total_seconds",
    "prefilled_tokens",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
)

Way = tuple[int | None, int | None]  # prefill replica, decode replica
Groups = dict[datetime, dict[Way, Tally]]


def bucket(at: datetime, step: timedelta) -> datetime:
    """Start of the step that `at` lies in."""
    seconds = step.total_seconds()
    return datetime.fromtimestamp(at.timestamp() // seconds * seconds, UTC)


def grouped(looks: Iterable[Look], step: timedelta) -> Groups:
    groups: Groups = defaultdict(lambda: defaultdict(Tally))
    for look in looks:
        groups[bucket(look.received_at, step)][look.prefill_replica, look.decode_replica].add(look)
    return groups


def roll_up() -> None:
    """Add up what came in before the last call; what came in since waits for the next.

    Two gateways may commit their rows in another order than the ids they got, so a look at the highest id
    proves nothing about the rows below it until some time has passed.
    """
    while _roll_up_batch():
        pass
    highest = RequestSample.objects.aggregate(highest=Max("pk"))["highest"] or 0
    RollUpMark.objects.update_or_create(pk=1, defaults={"seen": highest})


def _roll_up_batch() -> bool:
    with transaction.atomic():
        mark, _ = RollUpMark.objects.select_for_update().get_or_create(pk=1)
        rows = RequestSample.objects.filter(pk__gt=mark.rolled_up, pk__lte=mark.seen).order_by("pk")
        found = list(rows.values_list("pk", *COLUMNS)[:BATCH])
        if not found:
            return False
        looks = [Look(*row[1:]) for row in found]
        for step in STEPS:
            for at, ways in grouped(looks, step).items():
                _merge(at, int(step.total_seconds()), ways)
        mark.rolled_up = found[-1][0]
        mark.save(update_fields=["rolled_up"])
    return True


def _merge(at: datetime, step_seconds: int, ways: dict[Way, Tally]) -> None:
    rows = RequestRollUp.objects.filter(at=at, step_seconds=step_seconds)
    known = {(row.prefill_replica_id, row.decode_replica_id): row for row in rows}
    for way, tally in ways.items():
        row = known.get(way) or RequestRollUp(
            at=at, step_seconds=step_seconds, prefill_replica_id=way[0], decode_replica_id=way[1]
        )
        if row.pk:
            tally.merge(Tally.from_dict(row.tally))
        row.tally = tally.to_dict()
        row.save()


def since(start: datetime, step: timedelta) -> Groups:
    """All requests received since `start`: roll-ups of the longest step that fits, and rows that are in none yet."""
    mark = RollUpMark.objects.first() or RollUpMark()
    rest = RequestSample.objects.filter(pk__gt=mark.rolled_up, received_at__gt=start).order_by("-pk")
    groups = grouped((Look(*row) for row in rest.values_list(*COLUMNS)[:TAIL]), step)
    longest = max((one for one in STEPS if 4 * one <= step), default=STEPS[0])
    rows = RequestRollUp.objects.filter(at__gt=start, step_seconds=int(longest.total_seconds())).order_by(
        "at"
    )
    for at, prefill, decode, tally in rows.values_list("at", "prefill_replica", "decode_replica", "tally"):
        groups[bucket(at, step)][prefill, decode].merge(Tally.from_dict(tally))
    return groups
