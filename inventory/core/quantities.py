"""Numbers as a person reads them: three significant digits and a unit."""

from __future__ import annotations

MINUTE = 60
HOUR = 60 * MINUTE
DAY = 24 * HOUR
LEAST_SECONDS = 1e-9


def significant(value: float, digits: int = 3) -> str:
    """Plain decimal text, never an exponent, without trailing zeros behind the point."""
    if value == 0:
        return "0"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    text = f"{float(f'{value:.{digits}g}'):.10f}".rstrip("0")
    return text.removesuffix(".")


def scaled(value: float, units: tuple[str, ...], digits: int = 3) -> str:
    """Value with the largest of `units`, 1000 apart, that leaves it at 1 or more."""
    power = 0
    while abs(value) >= 999.5 and power < len(units) - 1:
        value /= 1000
        power += 1
    return f"{significant(value, digits)} {units[power]}"


def bytes_text(n_bytes: float) -> str:
    return scaled(n_bytes, ("B", "kB", "MB", "GB", "TB", "PB"))


def bandwidth_text(bytes_per_second: float) -> str:
    """In bits a second, as network gear is labelled."""
    return scaled(8 * bytes_per_second, ("b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s"))


def seconds_text(seconds: float) -> str:
    if seconds < 0:
        return f"-{seconds_text(-seconds)}"
    if seconds == 0:
        return "0 s"
    if seconds < LEAST_SECONDS:
        return "under 1 ns"
    if seconds < 1e-7:
        return scaled(seconds * 1e9, ("ns",))
    if seconds < 0.9995:
        return scaled(seconds * 1e6, ("µs", "ms"))
    if seconds < MINUTE - 0.5:
        return f"{significant(seconds)} s"
    whole = round(seconds)
    if whole < HOUR:
        return _two_units(whole // MINUTE, "min", whole % MINUTE, "s")
    if whole < DAY:
        return _two_units(whole // HOUR, "h", whole % HOUR // MINUTE, "min")
    return _two_units(whole // DAY, "d", whole % DAY // HOUR, "h")


def _two_units(large: int, unit: str, small: int, smaller_unit: str) -> str:
    return f"{large:,} {unit} {small} {smaller_unit}" if small else f"{large:,} {unit}"


def rate_text(per_second: float, unit: str = "tokens/s") -> str:
    return f"{significant(per_second)} {unit}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 slot`, `4 slots`, `1,200 slots`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def visible(text: str) -> str:
    """The text with control and direction characters escaped: what a file or host says moves no cursor."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text
    )


def percent_text(fraction: float) -> str:
    return f"{significant(100 * fraction, 3 if abs(fraction) < 1 else 4)} %"
