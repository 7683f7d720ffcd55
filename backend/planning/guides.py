"""The three plans that guides give for Qwen3-VL 8B on 4 nodes of 8 GPUs, with what they claim, beside our figures.

Articles on LLaMA-Factory with Megatron give these plans for full fine-tuning at a global batch of 64. Claimed memory is
a rule of thumb for 80 GB GPUs; claimed speeds are an A100's.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from backend.estimate import Estimate, estimate_resolved, speed_up
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.presets import resolve_gpu, resolve_model
from backend.job.problems import Problem, ProblemsError, errors
from backend.job.rules import check_resolved
from backend.job.rules.vision import TRAINED_WRONGLY

MODEL, NODES, PER_NODE, GLOBAL_BATCH = "qwen3-vl-8b", 4, 8, 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """What a guide says of a plan: (least, most)."""

    name: str
    edits: Mapping[str, object]
    memory_gb: tuple[float, float] | None = None
    tokens_per_s_per_gpu: tuple[float, float] | None = (3000, 4000)
    bubble_fraction: tuple[float, float] | None = None
    speed_up: tuple[float, float] | None = (3.2, 3.6)
    """Of the four nodes over one."""


def _plan(tensor: int, pipeline: int, virtual: int, micro_batch: int) -> dict[str, object]:
    sizes = {"tensor": tensor, "pipeline": pipeline, "virtual_pipeline": virtual, "context": 1, "expert": 1,
             "expert_tensor": 1, "sequence": True, "recompute": "none", "distributed_optimizer": True,
             "account_for_embedding": False, "account_for_loss": False, "pipeline_layout": None}  # fmt: skip
    accumulation = GLOBAL_BATCH * tensor * pipeline // (NODES * PER_NODE * micro_batch)
    return {
        **{f"parallel.{name}": value for name, value in sizes.items()},
        "training.micro_batch_size": micro_batch,
        "training.gradient_accumulation_steps": accumulation,
    }


CLAIMS = (
    Claim(name="TP4 PP1", edits=_plan(4, 1, 1, 1), memory_gb=(40, 40)),
    Claim(name="TP8 PP1", edits=_plan(8, 1, 1, 2), memory_gb=(45, 45)),
    Claim(name="TP2 PP2 VPP2", edits=_plan(2, 2, 2, 1), bubble_fraction=(0.10, 0.15)),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """A guide's plan with our figures for the job."""

    claim: Claim
    job: Job
    """The job with this plan; keeps the wanted global batch where there is one."""
    estimate: Estimate | None
    """None if the wanted global batch rules the plan out, or if nothing models it; likewise `speed_up`."""
    speed_up: float | None
    """Over one node: estimate/time/speed_up.py."""
    wrong: Problem | None
    """What the engine trains wrongly with this plan; such a plan is not among the plans."""


def guides(job: Job) -> tuple[Checked, ...]:
    """The guides' plans where the job is their case: model, machines, full fine-tuning on Megatron; else nothing."""
    cluster, training = job.cluster, job.training
    is_case = job.model.preset == MODEL and (cluster.nodes, cluster.gpus_per_node) == (NODES, PER_NODE)
    if not is_case or training.method != "full":
        return ()
    engine = job.engine if job.traits.is_megatron else "llamafactory-megatron"
    found = []
    for claim in CLAIMS:
        edits = {"engine": engine, **claim.edits}
        if training.global_batch_size is not None:
            del edits["training.gradient_accumulation_steps"]
        chosen = with_values(job, edits)
        found.append(_checked(claim, chosen))
    return tuple(found)


def _checked(claim: Claim, job: Job) -> Checked:
    figures, speed, wrong = None, None, None
    with suppress(ProblemsError):  # not modelled on this GPU
        shape, gpu = resolve_model(job.model), resolve_gpu(job.cluster)
        problems = check_resolved(job, shape, gpu)
        if not errors(problems):
            wrong = next((problem for problem in problems if problem.code in TRAINED_WRONGLY), None)
            figures = estimate_resolved(job, shape, gpu)
            speed = speed_up(job, shape, gpu, figures)
    return Checked(claim=claim, job=job, estimate=figures, speed_up=speed, wrong=wrong)
