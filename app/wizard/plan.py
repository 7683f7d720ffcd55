"""Step 4: engine, batch and parallel sizes. It shows every legal plan with its cost, and charts of the chosen plan."""

from typing import Any

from app.services import Services
from app.wizard import continuing
from app.wizard.draft_state import DraftState
from app.wizard.fields import Form
from app.wizard.layout import grid, more, section, tabs
from app.wizard.memory import memory
from app.wizard.placement import placement
from app.wizard.plans import plans_of
from app.wizard.time_breakdown import time_breakdown
from app.wizard.timeline import timeline
from backend.planning.space import SIZES

STEP = "plan"


def build(form: Form) -> None:
    """Build the step's widgets."""
    form.start(STEP)
    with section(form.lang, "strategy"):
        with grid():
            form.fields("engine", "training.micro_batch_size", "training.gradient_accumulation_steps")
            form.fields("training.global_batch_size", "cluster.memory_margin", "parallel.recompute")
            form.fields("parallel.recompute_num_layers", "parallel.recompute_modules")
        with more(form.lang, "strategy.more"):
            with grid():
                form.fields(*(f"parallel.{name}" for name in (*SIZES, "pipeline_layout")))
            with grid():
                form.fields(*(f"parallel.{name}" for name in _OTHER_PARALLEL))
    with section(form.lang, "plans"):
        tabs(form.lang, "plans", ("plans", "pareto", "strategies"))
    with section(form.lang, "chosen"):
        tabs(form.lang, "chosen", ("memory", "time", "schedule", "ranks"))


_OTHER_PARALLEL = (
    "gradient_dtype", "optimizer_offload_fraction", "offload_device", "offload_folder", "offload_parameters",
    "moe_token_dispatcher", "sequence", "distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather",
    "account_for_embedding", "account_for_loss", "bias_activation_fusion", "rope_fusion", "cross_entropy_fusion",
    "moe_grouped_gemm", "fsdp.version", "fsdp.reshard_after_forward", "fsdp.offload",
)  # fmt: skip


def data(state: DraftState, form: Form, services: Services) -> dict[str, Any]:
    """Return the table of plans with its explanation, and the data of the chosen plan's pictures."""
    ranks = placement(state.job) if state.job and state.is_sound else None
    return {
        "plans": plans_of(state, form.lang, continuing.load_check(services, state.job) if state.job else None),
        "memory": memory(state),
        "time": time_breakdown(state),
        "schedule": timeline(state),
        "ranks": ranks,
    }
