"""Vendored files are the ones that are listed; numbers and icons read well."""

from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path

import pytest
from django.template import Context, Template

VENDOR = Path("static/vendor")
BUDGET_BYTES = 150_000
ROWS = re.findall(r"^\| (\S+) \|.*`([0-9a-f]{64})` \|$", (VENDOR / "VERSIONS.md").read_text(), re.MULTILINE)


def shown(source: str, **values: object) -> str:
    return Template(source).render(Context(values))


@pytest.mark.parametrize(("name", "checksum"), ROWS)
def test_a_vendored_file_is_the_listed_one(name: str, checksum: str) -> None:
    assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == checksum


def test_every_vendored_file_is_listed() -> None:
    files = {str(path.relative_to(VENDOR)) for path in VENDOR.rglob("*") if path.is_file()}
    unlisted = files - {name for name, _ in ROWS} - {"VERSIONS.md"}
    assert {Path(name).name for name in unlisted} <= {"LICENSE"}


def test_every_icon_in_the_templates_is_in_the_sprite() -> None:
    sprite = set(re.findall(r'<symbol id="([^"]+)"', (VENDOR / "bootstrap-icons/sprite.svg").read_text()))
    templates = "".join(path.read_text() for path in Path("templates").rglob("*.html"))
    used = set(re.findall(r'{% icon "([\w-]+)"', templates)) | set(
        re.findall(r'icon(?:_name)?="([\w-]+)"', templates)
    )
    assert used - sprite == set()


@pytest.mark.parametrize(
    ("source", "value", "text"),
    [
        ("{{ value|bytes }}", 11_520_000_000, ">11.5 GB<"),
        ("{{ value|bandwidth }}", 11_750_000, ">94 Mb/s<"),
        ("{{ value|seconds }}", 0.061, ">61 ms<"),
        ("{{ value|seconds }}", 200, ">3 min 20 s<"),
        ("{{ value|rate }}", 71.43, ">71.4 tokens/s<"),
        ("{{ value|percent }}", 0.42, ">42 %<"),
        ("{{ value|seconds }}", None, "–"),
    ],
)
def test_a_number_is_shown_with_its_unit(source: str, value: float | None, text: str) -> None:
    assert text in shown(source, value=value)


def test_the_raw_value_is_there_on_hover() -> None:
    assert 'title="11,520,000,000 bytes"' in shown("{{ value|bytes }}", value=11_520_000_000)


def test_an_icon_without_words_has_a_label() -> None:
    assert 'aria-label="Running"' in shown('{% icon "arrow-repeat" "spin" "Running" %}')
    assert 'aria-hidden="true"' in shown('{% icon "arrow-repeat" %}')


def test_a_page_without_charts_stays_within_its_budget() -> None:
    named = re.findall(r"static '([^']+\.(?:css|js))'", Path("templates/base.html").read_text())
    imported = [f"js/{name}.js" for name in ("confirm", "copy", "table", "live", "time", "job")]
    assert (
        sum(len(gzip.compress(Path("static", name).read_bytes())) for name in named + imported) < BUDGET_BYTES
    )


def test_nothing_comes_from_another_site() -> None:
    pages = [
        *Path("templates").rglob("*.html"),
        *Path("static/css").glob("*.css"),
        *Path("static/js").glob("*.js"),
    ]
    assert [
        path
        for path in pages
        if re.search(r"""(src|href)=["'](https?:)?//|url\(["']?https?:""", path.read_text())
    ] == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"gpu": 28, "ram": 0}, "gpu 28, ram 0"),
        (["box-1", 2], "box-1, 2"),
        ([], "none"),
        (None, "none"),
        ("", "none"),
        (True, "yes"),
        (7, "7"),
    ],
)
def test_a_json_value_reads_without_brackets(value: object, text: str) -> None:
    assert shown("{{ value|plain }}", value=value) == text
