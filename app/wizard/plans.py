"""The table of plans: the best of every way to split the model, what each costs against the best, and why."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from app.text import render_problem, t
from app.text.plans import all_plans, instead_words, plan_name, plan_sizes, problem_words, why_words
from app.wizard.draft_state import Reading
from backend.estimate import doubtful_above_gib
from backend.estimate.batched import PARTS, Figures
from backend.estimate.time.timing import COMMUNICATION, hours_of
from backend.job.problems import Problem, ProblemsError
from backend.planning import Plans, best_of_splits, front, recommended
from backend.planning.space import CUT, RECOMPUTE, SIZES

CHOICES = ("sequence", "distributed_optimizer", *CUT)
KEYS = (
    "engine", *SIZES, *CHOICES, "micro_batch", *RECOMPUTE, "rank", "data", "accumulation", "need_gib", "fits",
    "over_host", "bubble", "exposed", "speed", "hours", "slower", "part", "marks",
)  # fmt: skip
_UNSPLIT = {"sequence": True, "distributed_optimizer": False, "account_for_embedding": False, "account_for_loss": False,
            "pipeline_layout": None}  # fmt: skip
"""Of engines that have no such choice."""
"""What a row says, in order; those before `rank` are what distinguishes one plan from another."""
ROWS, FRONT = 300, 60
"""Rows that are sent at most: the best of the ways to split the model, and the front of memory against speed."""
_PATHS = {
    "engine": "engine",
    "micro_batch": "training.micro_batch_size",
    "accumulation": "training.gradient_accumulation_steps",
    **{name: f"parallel.{name}" for name in (*SIZES, *CHOICES, *RECOMPUTE)},
}


def edits_of(asked: Any) -> dict[str, Any]:
    """What choosing a row writes into the draft; raises ProblemsError for what is no row."""
    if not isinstance(asked, Mapping) or any(name not in asked for name in KEYS[: KEYS.index("rank")]):
        raise ProblemsError([Problem(code="not_a_row")])
    edits = {path: asked[name] for name, path in _PATHS.items() if name != "accumulation"}
    if asked.get("accumulation") is not None:
        edits[_PATHS["accumulation"]] = asked["accumulation"]
    return edits


def plans_of(reading: Reading, lang: str, loads: Callable[..., bool] | None = None) -> dict[str, Any]:
    """The table's rows, which of them is the draft's, and why the first is first.

    `loads`: whether the checkpoint that the draft begins with can be loaded into a plan (continuing.py).
    """
    job = reading.job
    if job is None or reading.shape is None or reading.gpu is None:
        return {"rows": [], "why": why_none(reading, lang)}
    try:
        plans = all_plans(job)
    except ProblemsError as error:
        return {"rows": [], "why": render_problem(lang, error.problems[0])["message"]}
    own = plans.rank_of(job)
    offered = recommended(plans)
    others = (rank for rank in (own, offered) if rank is not None)
    ranks = sorted({*best_of_splits(plans, ROWS), *front(plans, FRONT), *others})
    rows = _rows(plans, ranks, loads)
    return {
        "keys": KEYS,
        "rows": rows,
        "loads": None if loads is None else _loaded(plans, rows, lang),
        "own": own,
        "recommended": offered,
        "count": len(plans),
        "fitting": plans.fitting,
        "keeps_batch": job.training.global_batch_size is None,
        "gpu_gib": reading.gpu.memory_gib,
        "doubtful_gib": doubtful_above_gib(job, reading.gpu.memory_gib),
        "why": why_words(plans, lang),
        "instead": " ".join(instead_words(plans, offered, lang)),
    }


def why_none(reading: Reading, lang: str) -> str:
    """Why there are no plans: the model cannot be estimated, or errors come first."""
    if not reading.is_sound or reading.no_figures is None:
        return t(lang, "wizard.plan.unread")
    return problem_words(lang, reading.no_figures)


def _rows(plans: Plans, ranks: Sequence[int], loads: Callable[..., bool] | None) -> list[list[Any]]:
    """A list for each row, in the order of KEYS."""
    at = np.array(ranks, int)
    figures, (part, _) = plans.figures_of(at), plans.at(at)
    engines = np.array([space.job.engine for space in plans.spaces], str)
    columns: dict[str, list[Any]] = {"engine": engines[part].tolist(), "rank": list(ranks)}
    for name in (*SIZES, *CHOICES):
        columns[name] = plans.values(f"parallel.{name}", at, _UNSPLIT.get(name, 1)).tolist()
    columns["micro_batch"] = (batch := plans.values("training.micro_batch_size", at)).tolist()
    chosen = plans.recompute(at)
    columns["recompute"] = [kind for kind, _, _ in chosen]
    columns["recompute_modules"] = [list(modules) for _, modules, _ in chosen]
    columns["recompute_num_layers"] = [layers for _, _, layers in chosen]
    together = np.prod([plans.values(f"parallel.{name}", at) for name in ("tensor", "pipeline", "context")], axis=0)
    columns["data"] = (copies := plans.job.world_size // together).tolist()
    columns["accumulation"] = (plans.global_batch // (batch * copies)).tolist()
    columns["need_gib"] = np.round(figures.need_gib, 3).tolist()
    columns["fits"] = figures.fits.astype(bool).tolist()
    columns["over_host"] = _over_host(plans, figures)
    columns["bubble"] = np.round(figures.bubble_fraction, 4).tolist()
    columns |= _speeds(plans, at, figures)
    # p: on the Pareto front; x: the checkpoint cannot be loaded into the plan.
    on_front = np.isin(plans.indices(at), plans.front).tolist()
    columns["marks"] = ["p" if is_pareto else "" for is_pareto in on_front]
    if loads is not None:
        named = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        fits = (loads(row["engine"], **{name: row[name] for name in (*SIZES, *CHOICES)}) for row in named)
        columns["marks"] = [marks + ("" if fit else "x") for marks, fit in zip(columns["marks"], fits, strict=True)]
    return [list(row) for row in zip(*(columns[name] for name in KEYS), strict=True)]


def _loaded(plans: Plans, rows: Sequence[Sequence[Any]], lang: str) -> str:
    """Which of the rows is the best that the checkpoint can be loaded into."""
    rank, marks = KEYS.index("rank"), KEYS.index("marks")
    found = next((row[rank] for row in rows if "x" not in row[marks]), None)
    if found is None:
        return t(lang, "wizard.plan.loads.none")
    job = plans[found].job
    plan = f"{t(lang, f'wizard.engine.{job.engine}')} {plan_name(plan_sizes(job))}"
    key = "wizard.plan.loads.best" if found == 0 else "wizard.plan.loads"
    return t(lang, key, plan=plan, place=f"{found + 1:,}", count=f"{len(plans):,}")


def _over_host(plans: Plans, figures: Figures) -> list[float]:
    """RAM that some plans need beyond a node's; 0 where that suffices or is not known."""
    host, memory_gib = figures.host_memory_gib, plans.job.cluster.host_memory_gib
    if host is None or memory_gib is None:
        return [0.0] * len(figures.reserved_gib)
    found: list[float] = np.round(np.maximum(host - memory_gib, 0.0), 3).tolist()
    return found


def _speeds(plans: Plans, at: Any, figures: Figures) -> dict[str, list[Any]]:
    """Speed, hours, and what is lost against the best, of some plans."""
    parts, best = plans.parts_s(at), plans.parts_s(slice(1))
    seconds, best_s = figures.iteration_s, plans.figures_of(slice(1)).iteration_s
    if seconds is None or best_s is None or parts is None or best is None:
        return {name: [None] * len(at) for name in ("exposed", "speed", "hours", "slower", "part")}
    tokens = plans.step_tokens / plans.job.world_size
    communication = parts[[PARTS.index(name) for name in COMMUNICATION]].sum(axis=0)
    grown = parts - best
    return {
        "exposed": np.round(communication / seconds, 4).tolist(),
        "speed": np.round(tokens / seconds, 1).tolist(),
        "hours": [
            hours_of(plans.spaces[part].job, plans.global_batch, each)
            for part, each in zip(plans.at(at)[0].tolist(), seconds.tolist(), strict=True)
        ],
        "slower": np.round(1 - best_s / seconds, 4).tolist(),
        "part": [PARTS[place] for place in grown.argmax(axis=0).tolist()],
    }
