"""Which plans a job has, and how they compare."""

from backend.planning.enumerate import Candidate, Plans, candidates, enumerate_plans

__all__ = ["Candidate", "Plans", "candidates", "enumerate_plans"]
