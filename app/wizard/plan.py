"""Step 4: engine, batch and parallel sizes; every legal plan with its cost, and the chosen one in pictures."""

from typing import Any

from app.services import Services
from app.wizard import continuing
from app.wizard.draft_state import Reading
from app.wizard.fields import Form
from app.wizard.layout import grid, more, section, tabs
from app.wizard.memory import memory
from app.wizard.placement import placement
from app.wizard.plans import plans_of
from app.wizard.time_breakdown import spent
from app.wizard.timeline import timeline
from backend.planning.space import SIZES

STEP = "plan"


def build(form: Form) -> None:
    """The step's widgets."""
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
                form.fields(*(f"parallel.{name}" for name in _REST))
    with section(form.lang, "plans"):
        tabs(form.lang, "plans", ("plans", "pareto", "strategies"))
    with section(form.lang, "chosen"):
        tabs(form.lang, "chosen", ("memory", "time", "schedule", "ranks"))


_REST = (
    "gradient_dtype", "optimizer_offload_fraction", "offload_device", "offload_folder", "moe_token_dispatcher",
    "sequence", "distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather", "account_for_embedding",
    "account_for_loss", "bias_activation_fusion", "rope_fusion", "cross_entropy_fusion",
    "moe_grouped_gemm", "fsdp.version", "fsdp.reshard_after_forward", "fsdp.offload",
)  # fmt: skip


def data(reading: Reading, form: Form, services: Services) -> dict[str, Any]:
    """The table of plans, why the first is first, and the chosen one's pictures."""
    ranks = placement(reading.job) if reading.job and reading.is_sound else None
    return {
        "plans": plans_of(reading, form.lang, continuing.loads(services, reading.job) if reading.job else None),
        "memory": memory(reading),
        "time": spent(reading),
        "schedule": timeline(reading),
        "ranks": ranks,
    }
