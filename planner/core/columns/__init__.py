"""Large clusters: integer programs over replicas as columns, with a bound that no plan can beat."""

from planner.core.columns.enumeration import enumerable_size
from planner.core.columns.generation import can_generate, generate
from planner.core.columns.kinds import largest_replica, solve
from planner.core.columns.step import ColumnsStep

__all__ = ["ColumnsStep", "can_generate", "enumerable_size", "generate", "largest_replica", "solve"]
