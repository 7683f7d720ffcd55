"""The best plan of each training strategy for the draft's model and cluster, with the rules of guides."""

from collections.abc import Callable, Mapping
from typing import Any

from app.text import render_problem, t
from app.text.plans import compared_words, plan_in_full, reason_words
from app.wizard.draft_state import DraftState
from app.wizard.plans import no_plans_words
from backend.estimate import is_close, over_gpu_gib
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.problems import ProblemsError
from backend.planning import Strategy, strategies

RULES: Mapping[str, tuple[float, float, float | None]] = {
    "ddp": (0, float("inf"), 12.0),
    "zero2": (0, float("inf"), 1.5),
    "zero3-offload": (70e9, float("inf"), None),
    "fsdp": (70e9, float("inf"), None),
    "megatron": (7e9, 70e9, None),
    "lora-ddp": (0, 7e9, None),
    "qlora": (0, 7e9, None),
}
"""Rules of thumb of five guides to training with LLaMA-Factory and ms-swift, under `wizard.rule.<strategy>`: for models
of how many parameters, and GB a GPU for each billion of them. DDP's is full fp32: parameters x 4 bytes x 3."""


_ENDS = ("need_gib_low", "need_gib_high", "hours_low", "hours_high")


def strategies_of(
    state: DraftState,
    lang: str,
    can_load: Callable[[Job], bool] = lambda _: True,
    find: Callable[[Job], tuple[Strategy, ...]] = strategies,
) -> dict[str, Any]:
    """Return `rows` with their texts, or `why` there are none. `batch` is set if their global batch is not the draft's.

    `can_load` says whether the draft's checkpoint can be loaded into a plan (continuing.py). `find` returns the
    strategies of a job.
    """
    job, shape = state.job, state.shape
    if job is None or shape is None or state.gpu is None:
        return {"rows": [], "why": no_plans_words(state, lang)}
    try:
        listed = find(job)
    except ProblemsError as error:
        return {"rows": [], "why": render_problem(lang, error.problems[0])["message"]}
    parameters = model_parameters(model_layers(shape))
    compared = compared_words(job, listed, lang)
    return {
        "batch": [compared, t(lang, "advice.batch.choose", batch=f"{listed[0].global_batch:,}")] if compared else None,
        "rows": [_row(row, job, parameters, lang, can_load) for row in listed],
        "gpu_gib": state.gpu.memory_gib,
        "parameters": parameters,
    }


def _row(row: Strategy, job: Job, parameters: int, lang: str, can_load: Callable[[Job], bool]) -> dict[str, Any]:
    plan = plan_in_full(row.best.job, lang) if row.best else None
    is_chosen = (job.engine, job.training.method) == (row.engine, row.method)
    return {
        "name": t(lang, f"strategy.{row.key}"),
        "plan": plan,
        "fits": row.fits,
        "near": row.best is not None and is_close(row.best.estimate),
        "over": row.best is not None and over_gpu_gib(row.best.estimate) > 0,
        "recommended": row.recommended,
        "is_own": is_chosen and plan == plan_in_full(job, lang) and row.global_batch == job.global_batch,
        "is_unfit": row.best is not None and not can_load(with_values(job, row.edits)),
        "need_gib": row.memory_gib,
        **{name: getattr(row.best.estimate, name) if row.best else None for name in _ENDS},
        "hours_up_to": row.best is not None and "lengths" in row.best.estimate.time_unknown,
        "speed": row.tokens_per_s_per_gpu,
        "hours": row.hours,
        "why": reason_words(row, lang),
        "rule": _rule(row.key, parameters, lang),
        "edits": {path: list(value) if isinstance(value, tuple) else value for path, value in row.edits.items()},
    }


def _rule(key: str, parameters: int, lang: str) -> dict[str, Any] | None:
    """Return a guide's rule, and whether it applies to a model of this size."""
    if key not in RULES:
        return None
    low, high, gb = RULES[key]
    needs = (gb or 0.0) * parameters / 1e9
    size = f"{needs:.0f}" if needs >= 10 else f"{needs:.2g}"
    return {"words": t(lang, f"wizard.rule.{key}", gb=size), "meant": gb is None and low <= parameters <= high}
