from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from e2llm_web.database_url import database


def test_without_a_url_sqlite_lies_in_the_data_folder() -> None:
    entry = database("", Path("/srv/e2llm"))
    assert (entry["ENGINE"], entry["NAME"]) == ("django.db.backends.sqlite3", "/srv/e2llm/e2llm.sqlite3")


def test_postgresql_url_may_name_a_socket_folder() -> None:
    entry = database("postgresql://ada:p%40ss@/lab?host=/run/postgresql", Path("/srv"))
    assert (entry["HOST"], entry["USER"], entry["PASSWORD"], entry["NAME"]) == (
        "/run/postgresql",
        "ada",
        "p@ss",
        "lab",
    )


def test_other_database_is_refused_with_the_expected_form() -> None:
    with pytest.raises(ImproperlyConfigured, match="postgresql://user:password@host"):
        database("mysql://ada@db/lab", Path("/srv"))
