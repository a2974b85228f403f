"""The hops between the stages of a replica: from neighbour to neighbour, or through the master."""

from __future__ import annotations

from typing import Any

from inventory.core.quantities import bandwidth_text, seconds_text

Json = dict[str, Any]


def hop_rows(names: list[str], master: str, cluster: Json | None, bottleneck: Json) -> list[Json | None]:
    """The hop into each stage, None where there is none, and last the way back to the master.

    In a star every worker hands its result to the master, which sends it on: two links between two workers.
    """
    is_star = bool(cluster and cluster["policy"]["topology"] == "star")
    before = [master if is_star else names[0], *names[:-1]]
    ways = [*zip(before, names, strict=True), (names[-1], master if is_star else names[-1])]
    return [
        _hop(left, right, master if is_star else "", cluster, bottleneck) if left != right else None
        for left, right in ways
    ]


def _hop(left: str, right: str, master: str, cluster: Json | None, bottleneck: Json) -> Json:
    via = master if master not in (left, right) else ""
    through = f" through the master {via}" if via else ""
    legs = [(left, via), (via, right)] if via else [(left, right)]
    links = [_link(cluster, set(leg)) for leg in legs] if cluster else []
    speeds = dict.fromkeys(bandwidth_text(link["bytes_per_second"]) for link in links)
    latency_seconds = sum(link["latency_seconds"] for link in links)
    return {
        "text": f"hop from {left}{through} to {right}",
        "via": via,
        "bandwidth_text": ", then ".join(speeds),
        "latency_text": seconds_text(latency_seconds) if links else "",
        "is_bottleneck": "link" in str(bottleneck.get("what")) and bottleneck.get("device") in (left, right),
    }


def _link(cluster: Json, ends: set[str]) -> Json:
    for pair in cluster["links"].get("pairs", []):
        if {pair["a"], pair["b"]} == ends:
            return dict(pair)
    return dict(cluster["links"]["default"])
