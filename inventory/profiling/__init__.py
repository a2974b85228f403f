"""Times a model on devices with slices of it, without loading the whole model anywhere."""

from inventory.profiling.run import profile
from inventory.profiling.settings import QUICK, THOROUGH, Grid
from inventory.profiling.versions import (
    Offer,
    mark_stale,
    offers,
    recalibrate,
    reuse,
    stale_reason,
)

__all__ = [
    "QUICK",
    "THOROUGH",
    "Grid",
    "Offer",
    "mark_stale",
    "offers",
    "profile",
    "recalibrate",
    "reuse",
    "stale_reason",
]
