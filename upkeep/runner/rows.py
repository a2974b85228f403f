"""The rows of our tables as lines of JSON, the same from SQLite and PostgreSQL; secrets stay encrypted in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date, datetime, time
from itertools import islice
from typing import IO, Any

from django.apps.registry import Apps
from django.core.management.color import no_style
from django.db import connection, models
from django.db.models import Model

from accounts import vault
from accounts.vault import EncryptedTextField

OUR_APPS = ("accounts", "jobs", "inventory", "planner", "serving", "upkeep")
HISTORY = frozenset(
    {
        "serving.RequestSample",
        "serving.RequestText",
        "serving.RequestRollUp",
        "serving.RollUpMark",
        "serving.TrafficSample",
    }
)
BATCH = 500
CHUNK = 2_000


def tables(apps: Apps) -> list[type[Model]]:
    """Every table of ours, the hidden ones between two tables too, unless it leads to a table of somebody else."""
    found = []
    for label in OUR_APPS:
        for model in apps.get_app_config(label).get_models(include_auto_created=True):
            targets = [field.related_model for field in model._meta.concrete_fields if field.is_relation]
            if all(target._meta.app_label in OUR_APPS for target in targets if isinstance(target, type)):
                found.append(model)
    return found


def write(model: type[Model], file: IO[str], tick: Callable[[], None]) -> int:
    """One line for the columns, then one a row; how many rows. `tick` is called now and then, and may raise."""
    fields = model._meta.concrete_fields
    names = [field.attname for field in fields]
    file.write(json.dumps(names) + "\n")
    count = 0
    for row in model._base_manager.order_by("pk").values_list(*names).iterator(chunk_size=CHUNK):
        if count % CHUNK == 0:
            tick()
        values = [stored(field, value) for field, value in zip(fields, row, strict=True)]
        file.write(json.dumps(values, ensure_ascii=False) + "\n")
        count += 1
    return count


def stored(field: models.Field[Any, Any], value: Any) -> Any:
    if isinstance(field, EncryptedTextField):
        return field.get_prep_value(value)
    return value.isoformat() if isinstance(value, datetime | date | time) else value


def read(model: type[Model], file: IO[str]) -> int:
    """Write the rows of the lines into an empty table; how many."""
    for field in model._meta.concrete_fields:
        field.auto_now = field.auto_now_add = False  # type: ignore[attr-defined]  # the old times are the right ones
    by_name = {field.attname: field for field in model._meta.concrete_fields}
    fields = [by_name[name] for name in json.loads(file.readline())]
    count = 0
    for lines in batches(file):
        rows = [
            [plain(field, value) for field, value in zip(fields, json.loads(line), strict=True)]
            for line in lines
        ]
        made = [
            model(**{field.attname: value for field, value in zip(fields, row, strict=True)}) for row in rows
        ]
        model._base_manager.bulk_create(made)
        count += len(made)
    return count


def batches(file: IO[str]) -> Iterator[list[str]]:
    while lines := list(islice(file, BATCH)):
        yield lines


def plain(field: models.Field[Any, Any], value: Any) -> Any:
    if isinstance(field, EncryptedTextField):
        return vault.decrypt(value) if value else value
    if isinstance(field, models.JSONField) or field.is_relation:
        return value
    return field.to_python(value)


def reset_sequences(written: list[type[Model]]) -> None:
    """Let the database number new rows after the ones that were written."""
    with connection.cursor() as cursor:
        for statement in connection.ops.sequence_reset_sql(no_style(), written):
            cursor.execute(statement)
