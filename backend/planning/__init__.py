"""Which plans a job has, and how they compare.

Reading order: space.py, backend/job/rules/batched.py, backend/estimate/batched.py, arrange.py, enumerate.py, order.py,
plans.py, pareto.py, compare.py, recommended.py; then what is answered with them: why_not.py, advice.py, mixed.py,
guides.py. even_out.py and effects.py need none of these: they change the stages, or one value, of a job.
"""

from backend.planning.advice import Strategy, strategies
from backend.planning.compare import Cost, Sentence, best_of_splits, cost, front, why_best
from backend.planning.enumerate import enumerate_plans
from backend.planning.even_out import unequal_stages
from backend.planning.guides import Checked, guides
from backend.planning.mixed import Smallest, smallest_nodes, tokens_per_s
from backend.planning.plans import Candidate, Plans
from backend.planning.recommended import is_tight, recommended
from backend.planning.why_not import WhyNot, parse_sizes, why_not

__all__ = [
    "Candidate",
    "Checked",
    "Cost",
    "Plans",
    "Sentence",
    "Smallest",
    "Strategy",
    "WhyNot",
    "best_of_splits",
    "cost",
    "enumerate_plans",
    "front",
    "guides",
    "is_tight",
    "parse_sizes",
    "recommended",
    "smallest_nodes",
    "strategies",
    "tokens_per_s",
    "unequal_stages",
    "why_best",
    "why_not",
]
