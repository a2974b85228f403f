"""Plans and runs as pictures: view models and plotly figures."""

from planner.charts.figures import convergence, waiting
from planner.charts.stages import stage_rows

__all__ = ["convergence", "stage_rows", "waiting"]
