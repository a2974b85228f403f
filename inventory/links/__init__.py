"""Bandwidth and round-trip time between devices, with what the hosts have."""

from inventory.links.measure import measure_links

__all__ = ["measure_links"]
