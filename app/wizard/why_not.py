"""The answer to the question "Why not TP=8 PP=3?" beside the table of plans."""

from collections.abc import Mapping
from typing import Any

from app.text import t
from app.text.plans import all_plans, plan_in_full, problem_words, why_not_words
from app.wizard.draft_state import DraftState
from app.wizard.plans import no_plans_words
from backend.job.mapping import with_values
from backend.job.problems import ProblemsError
from backend.planning import parse_sizes, why_not


def why_not_of(state: DraftState, sizes: str, lang: str) -> dict[str, Any]:
    """Return `words`, why the best plan does not have these sizes, and `choose`, the edit to a plan with them.

    `sizes` is the user's text. If rules refuse the sizes, `choose` is the nearest legal plan. It is None if that is
    the draft's own plan.
    """
    job = state.job
    if job is None or state.shape is None or state.gpu is None:
        return {"words": no_plans_words(state, lang), "choose": None}
    try:
        plans = all_plans(job)
        answer = why_not(job, parse_sizes(sizes), plans)
    except ProblemsError as error:
        return {"words": " ".join(problem_words(lang, problem) for problem in error.problems), "choose": None}
    offered = answer.best or answer.nearest
    is_own = offered is None or with_values(job, offered.edits) == job
    return {
        "words": why_not_words(answer, plans, lang),
        "choose": None if offered is None or is_own else _choice(offered.edits, plan_in_full(offered.job, lang), lang),
    }


def _choice(edits: Mapping[str, object], plan: str, lang: str) -> dict[str, Any]:
    return {"words": t(lang, "wizard.plan.ask.choose", plan=plan), "edits": dict(edits)}
