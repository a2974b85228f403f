"""The menu: where the pages are and which one is open."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from django.http import HttpRequest

from accounts.models import User
from e2llm_web.outages import low_disk
from upkeep.services.alerts import open_count


@dataclass(frozen=True)
class Entry:
    label: str
    path: str
    icon: str
    is_current: bool = False
    count: int = 0


MENU: dict[str, tuple[Entry, ...]] = {
    "": (Entry("Home", "/", "house"),),
    "What we have": (
        Entry("Devices", "/devices/", "hdd-network"),
        Entry("Links", "/links/", "arrow-left-right"),
        Entry("Models", "/models/", "box-seam"),
        Entry("Profiles", "/profiles/", "speedometer2"),
    ),
    "What should run": (
        Entry("Workload", "/workload/", "sliders"),
        Entry("Plans", "/plans/", "diagram-3"),
    ),
    "What is running": (
        Entry("Deployments", "/deployments/", "rocket-takeoff"),
        Entry("Traffic", "/traffic/", "activity"),
        Entry("Playground", "/playground/", "chat-dots"),
    ),
    "This site": (
        Entry("Alerts", "/alerts/", "bell"),
        Entry("Jobs", "/jobs/", "clock-history"),
        Entry("Settings", "/settings/", "gear"),
    ),
}
PHONE_BAR = ("Home", "Deployments", "Traffic", "Playground")


def menu(request: HttpRequest) -> dict[str, Any]:
    """Context of every page: the menu in groups, the phone's bar, open alerts, and a disk that runs full."""
    if not isinstance(getattr(request, "user", None), User):
        return {}
    alerts = open_count()
    groups = {
        heading: [_marked(entry, request.path, alerts) for entry in entries]
        for heading, entries in MENU.items()
    }
    bar = [entry for group in groups.values() for entry in group if entry.label in PHONE_BAR]
    return {"menu_groups": groups.items(), "phone_bar": bar, "low_disk": low_disk(), "open_alerts": alerts}


def _marked(entry: Entry, path: str, alerts: int) -> Entry:
    is_current = path == "/" if entry.path == "/" else path.startswith(entry.path)
    return replace(entry, is_current=is_current, count=alerts if entry.label == "Alerts" else 0)
