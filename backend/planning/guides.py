"""The three plans that guides give for Qwen3-VL 8B on 4 nodes of 8 GPUs, with what they claim, beside our figures.

Articles on LLaMA-Factory with Megatron give these plans for full fine-tuning at a global batch of 64. Claimed memory is
a rule of thumb for 80 GB GPUs; claimed speeds are an A100's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from backend.estimate import Estimate, estimate_resolved
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.presets import resolve_gpu, resolve_model
from backend.job.problems import ProblemsError, errors
from backend.job.rules import check_resolved

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
             "expert_tensor": 1, "sequence": True, "recompute": "none", "distributed_optimizer": True}  # fmt: skip
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
    alone: float | None
    """Tokens per second and GPU of one node with the same plan: what a speed-up is against."""


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
        found.append(Checked(claim=claim, job=with_values(job, edits), alone=_alone(with_values(job, edits))))
    return tuple(found)


def _estimate(job: Job) -> Estimate | None:
    """None where the job as it is cannot have the plan."""
    shape, gpu = resolve_model(job.model), resolve_gpu(job.cluster)
    try:
        return None if errors(check_resolved(job, shape, gpu)) else estimate_resolved(job, shape, gpu)
    except ProblemsError:
        return None


def _alone(job: Job) -> float | None:
    """Accumulation stays, so that one node trains on a quarter of the global batch."""
    training = replace(job.training, global_batch_size=None, gradient_accumulation_steps=job.accumulation)
    figures = _estimate(replace(job, cluster=replace(job.cluster, nodes=1), training=training))
    return figures.tokens_per_s_per_gpu if figures else None
