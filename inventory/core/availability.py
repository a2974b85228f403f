"""When a device may be used: on which days of the week, in which hours, until which day."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@dataclass(frozen=True)
class Window:
    """No day means every day, no hours the whole day, no `until` for ever; 22:00 to 06:00 ends on the next day."""

    days: frozenset[int] = frozenset()
    start: time | None = None
    end: time | None = None
    until: date | None = None

    def closed_reason(self, now: datetime) -> str:
        """Why the device may not be used at `now`; empty while it may."""
        if self.until is not None and now.date() > self.until:
            return f"available until {self.until:%d %b %Y} only"
        return "" if self._is_open(now) else f"available {self.text} only"

    @property
    def text(self) -> str:
        """The weekly hours in words; empty when there are none."""
        days = ", ".join(DAYS[day] for day in sorted(self.days)) if self.days else "every day"
        hours = f" {self.start:%H:%M} to {self.end:%H:%M} UTC" if self.start and self.end else ""
        return f"{days}{hours}" if self.days or hours else ""

    def _is_open(self, now: datetime) -> bool:
        clock, today = now.time(), now.date()
        if self.start is None or self.end is None:
            return self._has(today)
        if self.start < self.end:
            return self._has(today) and self.start <= clock < self.end
        late = self._has(today) and clock >= self.start
        return late or (self._has(today - timedelta(days=1)) and clock < self.end)

    def _has(self, day: date) -> bool:
        return not self.days or day.weekday() in self.days
