"""Icons, styled form fields and readable numbers in every template, without a load tag."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from django import template
from django.forms import BoundField, CheckboxInput, CheckboxSelectMultiple, RadioSelect, Select
from django.templatetags.static import static
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from inventory.core import quantities

register = template.Library()
SPRITE = "vendor/bootstrap-icons/sprite.svg"
ABSENT = mark_safe('<span class="muted">–</span>')


@register.simple_tag
def icon(name: str, css_class: str = "", label: str = "") -> SafeString:
    """An icon of the sprite; with `label` it is read out, without it is decoration beside words."""
    manner = format_html('role="img" aria-label="{}"', label) if label else mark_safe('aria-hidden="true"')
    classes = f"icon {css_class}".strip()
    return format_html('<svg class="{}" {}><use href="{}#{}"/></svg>', classes, manner, static(SPRITE), name)


@register.filter
def styled(field: BoundField) -> SafeString:
    """The field's widget with the classes of the design."""
    widget = field.field.widget
    if isinstance(widget, (RadioSelect, CheckboxSelectMultiple)):
        return field.as_widget()
    if isinstance(widget, CheckboxInput):
        own = "form-check-input"
    else:
        own = "form-select" if isinstance(widget, Select) else "form-control"
    given = str(widget.attrs.get("class", ""))
    invalid = "is-invalid" if field.errors else ""
    return field.as_widget(attrs={"class": " ".join(filter(None, (own, given, invalid)))})


@register.filter
def words(text: str) -> list[str]:
    """The words of a text, to loop over in a template."""
    return text.split()


@register.filter
def spaced(name: str) -> str:
    """A field's name as words."""
    return name.replace("_", " ")


@register.filter
def plain(value: object) -> str:
    """A value of a JSON field without brackets and quotes."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {plain(part)}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(plain, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value in (None, "") else str(value)


@register.filter
def is_checkbox(field: BoundField) -> bool:
    return isinstance(field.field.widget, CheckboxInput)


@register.filter
def is_choice_group(field: BoundField) -> bool:
    return isinstance(field.field.widget, (RadioSelect, CheckboxSelectMultiple))


def _with_raw(value: float | None, text: Callable[[float], str], unit: str) -> SafeString:
    if value is None:
        return ABSENT
    return format_html('<data value="{}" title="{} {}">{}</data>', value, f"{value:,}", unit, text(value))


@register.filter
def bytes(value: float | None) -> SafeString:
    return _with_raw(value, quantities.bytes_text, "bytes")


@register.filter
def bandwidth(value: float | None) -> SafeString:
    return _with_raw(value, quantities.bandwidth_text, "bytes per second")


@register.filter
def seconds(value: float | None) -> SafeString:
    return _with_raw(value, quantities.seconds_text, "seconds")


@register.filter
def rate(value: float | None, unit: str = "tokens/s") -> SafeString:
    return _with_raw(value, lambda number: quantities.rate_text(number, unit), unit)


@register.filter
def percent(value: float | None) -> SafeString:
    """A fraction as per cent."""
    return _with_raw(value, quantities.percent_text, "as a fraction")


@register.filter
def number(value: float | None) -> SafeString:
    return _with_raw(value, lambda given: quantities.significant(given, 4), "")


@register.filter
def age(value: datetime | None) -> SafeString:
    """Relative age that time.js keeps fresh; the UTC time until then."""
    return _time(value, '<time datetime="{}" data-age>{}</time>')


@register.filter
def moment(value: datetime | None) -> SafeString:
    """Date and time, local once time.js has run."""
    return _time(value, '<time datetime="{}" data-local>{}</time>')


def _time(value: datetime | None, markup: str) -> SafeString:
    if value is None:
        return mark_safe('<span class="muted">never</span>')
    return format_html(markup, value.isoformat(), value.strftime("%Y-%m-%d %H:%M:%S UTC"))
