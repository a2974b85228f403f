"""Times a model on devices with slices of it, without loading the whole model anywhere."""

from inventory.profiling.run import mark_stale, profile, recalibrate, stale_reason
from inventory.profiling.settings import QUICK, THOROUGH, Grid

__all__ = ["QUICK", "THOROUGH", "Grid", "mark_stale", "profile", "recalibrate", "stale_reason"]
