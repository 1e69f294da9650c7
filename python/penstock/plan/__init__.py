"""Plans: which samples each rank gets at each step.

A plan is anything that keeps the contract of :class:`Plan`; :class:`FullShuffle` is the one that the Loader uses by
itself. ``penstock.testing.PlanSuite`` checks that contract for any plan.
"""

from penstock.plan.contract import Plan, Step
from penstock.plan.full import FullShuffle

__all__ = ["FullShuffle", "Plan", "Step"]
