"""Step 4: engine, batch and parallel sizes; every legal plan with its cost, and the chosen one in pictures."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.i18n import render_problem, t
from app.services import Services
from app.wizard.fields import Form
from app.wizard.layout import grid, more, place, section, tabs
from app.wizard.memory import memory
from app.wizard.placement import placement
from app.wizard.reading import Reading
from app.wizard.timeline import timeline
from backend.estimate.estimate import Estimate
from backend.job.job import Job, Parallel
from backend.job.mapping import with_values
from backend.job.problems import ProblemsError
from backend.planning import Candidate, candidates

STEP = "plan"
SIZES = ("tensor", "pipeline", "virtual_pipeline", "context", "expert", "expert_tensor")
"""What distinguishes one plan from another: fields of Parallel."""
EDITED = (*(f"parallel.{name}" for name in SIZES), "training.gradient_accumulation_steps")
"""What choosing a plan may write."""


def build(form: Form) -> None:
    """The step's widgets."""
    form.start(STEP)
    with section(form.lang, "strategy"):
        with grid():
            form.fields("engine", "training.micro_batch_size", "training.gradient_accumulation_steps")
            form.fields("training.global_batch_size", "parallel.recompute", "parallel.recompute_num_layers")
            form.field("parallel.recompute_modules")
        with more(form.lang, "strategy.more"):
            with grid():
                form.fields(*(f"parallel.{name}" for name in SIZES))
            with grid():
                form.fields(*(f"parallel.{name}" for name in _REST))
    with section(form.lang, "plans"):
        place("plans")
    with section(form.lang, "chosen"):
        tabs(form.lang, "chosen", ("memory", "schedule", "ranks"))


_REST = (
    "gradient_dtype", "optimizer_offload_fraction", "offload_device", "offload_folder", "moe_token_dispatcher",
    "sequence", "distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather", "account_for_embedding",
    "account_for_loss", "bias_activation_fusion", "rope_fusion", "cross_entropy_fusion", "moe_grouped_gemm",
    "fsdp.version", "fsdp.reshard_after_forward", "fsdp.offload",
)  # fmt: skip


def edits_of(asked: Mapping[str, Any]) -> dict[str, int]:
    """What choosing a plan writes into the draft; KeyError or ValueError for sizes that are none."""
    edits = {f"parallel.{name}": int(asked[name]) for name in SIZES}
    if asked.get("accumulation") is not None:
        edits["training.gradient_accumulation_steps"] = int(asked["accumulation"])
    return edits


def data(reading: Reading, form: Form, services: Services) -> dict[str, Any]:
    """The table of plans, why the first is first, and the chosen one's memory and map."""
    ranks = placement(reading.job) if reading.job and reading.is_sound else None
    return {
        "plans": _plans(reading, form.lang),
        "memory": memory(reading),
        "schedule": timeline(reading),
        "ranks": ranks,
    }


def _plans(reading: Reading, lang: str) -> dict[str, Any]:
    job = reading.job
    if job is None or reading.shape is None or reading.gpu is None:
        return {"rows": [], "why": t(lang, "wizard.plan.unread")}
    try:
        rows = _rows(job)
    except ProblemsError as error:
        return {"rows": [], "why": render_problem(lang, error.problems[0])["message"]}
    return {
        "rows": rows,
        "own": {name: getattr(job.parallel, name) for name in SIZES},
        "keeps_batch": job.training.global_batch_size is None,
        "gpu_gib": reading.gpu.memory_gib,
        "why": explain(rows, reading.gpu.memory_gib, lang),
    }


_newest: tuple[Job, int, list[dict[str, Any]]] | None = None


def _rows(job: Job) -> list[dict[str, Any]]:
    """The table's rows; kept while only another plan is chosen, for the table does not depend on that."""
    global _newest
    bare = with_values(job, {path: 1 for path in EDITED if path != "parallel.context"})
    kept = _newest
    if kept is None or kept[0] != bare or kept[1] != job.global_batch:
        kept = _newest = (bare, job.global_batch, [_row(candidate) for candidate in candidates(job)])
    return kept[2]


def explain(rows: Sequence[Mapping[str, Any]], gpu_gib: float, lang: str) -> str:
    """Why the first plan is first, from its figures."""
    if not rows:
        return t(lang, "wizard.plan.none")
    best = rows[0]
    values = {"plan": plan_name(best), "need": f"{best['need_gib']:.1f}", "gpu": f"{gpu_gib:.1f}",
              "bubble": f"{100 * best['bubble']:.1f}" if best["bubble"] else "0", "count": len(rows)}  # fmt: skip
    if not best["fits"]:
        smallest = min(rows, key=lambda row: row["need_gib"])
        values |= {"plan": plan_name(smallest), "need": f"{smallest['need_gib']:.1f}"}
        return t(lang, "wizard.plan.no_fit", **values)
    if len(rows) == 1:
        return t(lang, "wizard.plan.only", **values)
    fitting = sum(bool(row["fits"]) for row in rows)
    ties = sum(bool(row["fits"]) and row["bubble"] == best["bubble"] for row in rows)
    key = "wizard.plan.best_tie" if ties > 1 else "wizard.plan.best"
    return t(lang, key, **values, fitting=fitting, ties=ties)


def plan_name(sizes: Mapping[str, Any]) -> str:
    """`TP4 PP2 VPP2 DP4`: what is split, and DP; `DP32` where nothing is."""
    short = {"tensor": "TP", "pipeline": "PP", "virtual_pipeline": "VPP", "context": "CP", "expert": "EP",
             "expert_tensor": "ETP"}  # fmt: skip
    is_split = any(sizes[name] > 1 for name in short)
    always = ("tensor", "pipeline") if is_split else ()
    split = [f"{word}{sizes[name]}" for name, word in short.items() if sizes[name] > 1 or name in always]
    return " ".join([*split, f"DP{sizes['data']}"])


def _row(candidate: Candidate) -> dict[str, Any]:
    found = candidate.estimate
    return {
        **{name: getattr(candidate, name) for name in SIZES},
        "data": found.data_parallel,
        "micro_batch": candidate.micro_batch_size,
        "accumulation": found.micro_batches,
        "need_gib": need_gib(found),
        "fits": found.fits,
        "bubble": round(found.bubble_fraction, 6),
    }


def plan_sizes(job: Job) -> dict[str, int]:
    """The parallel sizes and DP of a job's plan."""
    parallel = job.parallel if job.traits.is_megatron else Parallel()
    return {**{name: getattr(parallel, name) for name in SIZES}, "data": job.data_parallel}


def need_gib(found: Estimate | None) -> float | None:
    """What the fullest GPU needs in all: the allocator's reserve and what lies outside it."""
    return round(found.reserved_gib + found.outside_gib, 3) if found else None
