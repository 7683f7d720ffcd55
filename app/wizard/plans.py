"""The table of plans: the best plan of each split of the model, its cost against the best, and the reasons."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from app.text import render_problem, t
from app.text.plans import (
    all_plans,
    doubtful_words,
    plan_name,
    plan_sizes,
    problem_words,
    untimed_key,
    why_words,
)
from app.wizard.draft_state import DraftState
from backend.estimate.batched import PARTS, Figures
from backend.estimate.interval import is_memory_assumed, memory_interval, time_interval, unknown_for_time
from backend.estimate.time.timing import COMMUNICATION, hours_of
from backend.job.job import Job
from backend.job.problems import Problem, ProblemsError
from backend.job.rules.batched import as_sizes
from backend.planning import Plans, best_of_splits, front, possibly_fit_gib, recommended, surely_fit_gib
from backend.planning.lazy_sort import Indices
from backend.planning.space import CUT, RECOMPUTE, SIZES

CHOICES = ("sequence", "distributed_optimizer", *CUT)
KEYS = (
    "engine", *SIZES, *CHOICES, "micro_batch", *RECOMPUTE, "rank", "data", "accumulation", "need_gib", "fits",
    "over_host", "bubble", "exposed", "speed", "hours", "slower", "part", "marks",
)  # fmt: skip
"""The columns of a row, in order. Those before `rank` distinguish one plan from another."""
_UNSPLIT = {"sequence": True, "distributed_optimizer": False, "account_for_embedding": False, "account_for_loss": False,
            "pipeline_layout": None}  # fmt: skip
"""Values for engines without these choices."""
ROWS, FRONT = 300, 60
"""Maximum numbers of rows: the best splits of the model, and the Pareto front of memory against speed."""
_PATHS = {
    "engine": "engine",
    "micro_batch": "training.micro_batch_size",
    "accumulation": "training.gradient_accumulation_steps",
    **{name: f"parallel.{name}" for name in (*SIZES, *CHOICES, *RECOMPUTE)},
}


def row_edits(row: Any) -> dict[str, Any]:
    """Return the edits of the draft for a row. Raises ProblemsError if it is not a row."""
    if not isinstance(row, Mapping) or any(name not in row for name in KEYS[: KEYS.index("rank")]):
        raise ProblemsError([Problem(code="not_a_row")])
    edits = {path: row[name] for name, path in _PATHS.items() if name != "accumulation"}
    if row.get("accumulation") is not None:
        edits[_PATHS["accumulation"]] = row["accumulation"]
    return edits


def plans_of(state: DraftState, lang: str, can_load: Callable[..., bool] | None = None) -> dict[str, Any]:
    """Return the table's rows, the ranks of the draft's and the recommended plan, and the reasons.

    `can_load` says whether the draft's checkpoint can be loaded into a plan (continuing.py).
    """
    job = state.job
    if job is None or state.shape is None or state.gpu is None:
        return {"rows": [], "why": no_plans_words(state, lang)}
    try:
        plans = all_plans(job)
    except ProblemsError as error:
        return {"rows": [], "why": render_problem(lang, error.problems[0])["message"]}
    own = plans.rank_of(job)
    recommended_rank = recommended(plans)
    extra_ranks = (rank for rank in (own, recommended_rank) if rank is not None)
    ranks = sorted({*best_of_splits(plans, ROWS), *front(plans, FRONT), *extra_ranks})
    rows = _rows(plans, ranks, can_load)
    return {
        "keys": KEYS,
        "rows": rows,
        "loads": None if can_load is None else _best_loadable(plans, rows, lang),
        "own": own,
        "recommended": recommended_rank,
        "count": len(plans),
        "fitting": plans.fitting,
        "surely_fitting": plans.surely_fitting,
        "keeps_batch": job.training.global_batch_size is None,
        "gpu_gib": state.gpu.memory_gib,
        "doubtful_gib": surely_fit_gib(plans),
        "possible_gib": possibly_fit_gib(plans),
        "intervals": {space.job.engine: _factors(space.job) for space in plans.spaces},
        "untimed": untimed_key(job),
        "why": why_words(plans, lang),
        "instead": " ".join(doubtful_words(plans, recommended_rank, lang)),
    }


def no_plans_words(state: DraftState, lang: str) -> str:
    """Return why there are no plans: the draft has errors, or the model cannot be estimated."""
    if not state.is_sound or state.no_figures is None:
        return t(lang, "wizard.plan.unread")
    return problem_words(lang, state.no_figures)


def _rows(plans: Plans, ranks: Sequence[int], can_load: Callable[..., bool] | None) -> list[list[Any]]:
    """Return a list for each row, in the order of KEYS."""
    indices = np.array(ranks, int)
    figures, (part, _) = plans.figures_of(indices), plans.at(indices)
    engines = np.array([space.job.engine for space in plans.spaces], str)
    columns: dict[str, list[Any]] = {"engine": engines[part].tolist(), "rank": list(ranks)}
    for name in (*SIZES, *CHOICES):
        columns[name] = plans.values(f"parallel.{name}", indices, _UNSPLIT.get(name, 1)).tolist()
    columns["micro_batch"] = (batch := as_sizes(plans.values("training.micro_batch_size", indices))).tolist()
    chosen = plans.recompute(indices)
    columns["recompute"] = [kind for kind, _, _ in chosen]
    columns["recompute_modules"] = [list(modules) for _, modules, _ in chosen]
    columns["recompute_num_layers"] = [layers for _, _, layers in chosen]
    sizes = [as_sizes(plans.values(f"parallel.{name}", indices)) for name in ("tensor", "pipeline", "context")]
    columns["data"] = (copies := plans.job.world_size // np.prod(sizes, axis=0)).tolist()
    columns["accumulation"] = (plans.global_batch // (batch * copies)).tolist()
    columns["need_gib"] = np.round(figures.need_gib, 3).tolist()
    columns["fits"] = figures.fits.astype(bool).tolist()
    columns["over_host"] = _over_host(plans, figures)
    columns["bubble"] = np.round(figures.bubble_fraction, 4).tolist()
    columns |= _speeds(plans, indices, figures)
    # p: the plan is on the Pareto front. x: the checkpoint cannot be loaded into the plan.
    on_front = np.isin(plans.indices(indices), plans.front).tolist()
    columns["marks"] = ["p" if is_pareto else "" for is_pareto in on_front]
    if can_load is not None:
        plan_rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        fits = (can_load(row["engine"], **{name: row[name] for name in (*SIZES, *CHOICES)}) for row in plan_rows)
        columns["marks"] = [marks + ("" if fit else "x") for marks, fit in zip(columns["marks"], fits, strict=True)]
    return [list(row) for row in zip(*(columns[name] for name in KEYS), strict=True)]


def _best_loadable(plans: Plans, rows: Sequence[Sequence[Any]], lang: str) -> str:
    """Return a sentence that names the best row into which the checkpoint can be loaded."""
    rank, marks = KEYS.index("rank"), KEYS.index("marks")
    best_rank = next((row[rank] for row in rows if "x" not in row[marks]), None)
    if best_rank is None:
        return t(lang, "wizard.plan.loads.none")
    job = plans[best_rank].job
    plan = f"{t(lang, f'wizard.engine.{job.engine}')} {plan_name(plan_sizes(job))}"
    key = "wizard.plan.loads.best" if best_rank == 0 else "wizard.plan.loads"
    return t(lang, key, plan=plan, place=f"{best_rank + 1:,}", count=f"{len(plans):,}")


def _factors(job: Job) -> dict[str, tuple[float | None, float] | None]:
    """Return the factors (low, high) of the memory and of the hours of an engine's plans.

    Those of the memory are None if it is assumed, the lower one of the hours if the lengths of samples are not known.
    """
    memory, time = memory_interval(job), time_interval(job)
    return {
        "memory": None if is_memory_assumed(job) else (memory.low, memory.high),
        "hours": (None if "lengths" in unknown_for_time(job) else time.low, time.high),
    }


def _over_host(plans: Plans, figures: Figures) -> list[float]:
    """Return the GiB that plans need beyond a node's RAM. 0 if the RAM suffices or is unknown."""
    host, memory_gib = figures.host_memory_gib, plans.job.cluster.host_memory_gib
    if host is None or memory_gib is None:
        return [0.0] * len(figures.reserved_gib)
    over_gib: list[float] = np.round(np.maximum(host - memory_gib, 0.0), 3).tolist()
    return over_gib


def _speeds(plans: Plans, at: Indices, figures: Figures) -> dict[str, list[Any]]:
    """Return speed, hours, and the loss against the best plan."""
    part_times, best_times = plans.parts_s(at), plans.parts_s(slice(1))
    seconds, best_s = figures.iteration_s, plans.figures_of(slice(1)).iteration_s
    if seconds is None or best_s is None or part_times is None or best_times is None:
        return {name: [None] * len(at) for name in ("exposed", "speed", "hours", "slower", "part")}
    tokens = plans.step_tokens / plans.job.world_size
    communication = part_times[[PARTS.index(name) for name in COMMUNICATION]].sum(axis=0)
    increase = part_times - best_times
    return {
        "exposed": np.round(communication / seconds, 4).tolist(),
        "speed": np.round(tokens / seconds, 1).tolist(),
        "hours": [
            hours_of(plans.spaces[part].job, seconds_per_step, plans.global_batch)
            for part, seconds_per_step in zip(plans.at(at)[0].tolist(), seconds.tolist(), strict=True)
        ],
        "slower": np.round(1 - best_s / seconds, 4).tolist(),
        "part": [PARTS[index] for index in increase.argmax(axis=0).tolist()],
    }
