"""Enumeration and comparison of the plans of a job.

Reading order: space.py, backend/job/rules/batched.py, backend/estimate/batched.py, arrange.py, enumerate.py,
lazy_sort.py, plans.py, pareto.py, compare.py, recommended.py. why_not.py, advice.py and smallest_nodes.py answer
questions with them. rebalance.py and effects.py use none of these: they change the stages, or one value, of a job.
"""

from backend.planning.advice import Strategy, strategies
from backend.planning.compare import Cost, Sentence, best_of_splits, cost, front, why_best
from backend.planning.enumerate import enumerate_plans
from backend.planning.plans import Candidate, Plans
from backend.planning.rebalance import unequal_stages
from backend.planning.recommended import (
    is_tight,
    possibly_fit_gib,
    recommended,
    surely_fit_gib,
    tight_and_faster,
    warned_engines,
)
from backend.planning.smallest_nodes import SmallestNodes, smallest_nodes, tokens_per_s
from backend.planning.why_not import WhyNot, parse_sizes, why_not

__all__ = [
    "Candidate",
    "Cost",
    "Plans",
    "Sentence",
    "SmallestNodes",
    "Strategy",
    "WhyNot",
    "best_of_splits",
    "cost",
    "enumerate_plans",
    "front",
    "is_tight",
    "parse_sizes",
    "possibly_fit_gib",
    "recommended",
    "smallest_nodes",
    "strategies",
    "surely_fit_gib",
    "tight_and_faster",
    "tokens_per_s",
    "unequal_stages",
    "warned_engines",
    "why_best",
    "why_not",
]
