"""Memory of the completions that GRPO generates, beside the states of the training, in bytes.

The formulas follow the programs' code; no measured run confirms them. With transformers a rank generates its share of a
step at once (ms-swift 4.6.0 rlhf_trainers/rollout_mixin.py _prepare_vllm, max_batch_size=0): it keeps the keys and
values of these completions, and ZeRO-3 gathers the whole model for it (swift/utils/transformers_utils.py
unwrap_model_for_generation). vLLM in the same process takes a share of the GPU for its weights and its cache.
"""

from backend.estimate.array_ops import Number, larger, largest
from backend.estimate.frozen_dataclass import frozen_dataclass
from backend.estimate.memory.memory_term import NOTHING, Piece, piece
from backend.estimate.memory.sharding import States
from backend.estimate.memory.stage import RankParameters
from backend.estimate.memory.terms import Moment, moment
from backend.estimate.model.layers import ModelLayers, counted_kinds, operators_of
from backend.estimate.plan import Plan
from backend.job.job import Job
from backend.job.memory_traits import MemoryTraits
from backend.job.model.operators import Attention, Linear
from backend.job.presets import Gpu

GIB = 2.0**30


@frozen_dataclass
class Rollout:
    """How a job generates completions."""

    prompt_tokens: int
    completion_tokens: int
    element: int
    """Bytes of an element of the cache and of a gathered weight."""
    steps: int | None
    """Micro-batches that are generated together; None: those of a step."""
    gathers_all: bool
    """Whether all parameters are gathered on every rank."""
    vllm: float
    """Bytes of vLLM's share of the GPU; 0: transformers generates."""
    sleeps: bool
    """Whether vLLM frees its share while the model is trained."""


def rollout_of(job: Job, gpu: Gpu) -> Rollout | None:
    """Return how a job generates completions; None if it does not."""
    if job.training.stage != "grpo":
        return None
    grpo, steps = job.training.grpo, job.extra.get("steps_per_generation")
    return Rollout(
        prompt_tokens=job.training.cutoff_len,
        completion_tokens=job.completion_tokens,
        element=4 if job.training.precision == "fp32" else 2,
        steps=steps if isinstance(steps, int) else None,
        gathers_all=job.traits.zero_stage == 3,
        vllm=grpo.vllm_memory * gpu.memory_gib * GIB if grpo.rollout == "vllm" else 0.0,
        sleeps=grpo.vllm_sleep,
    )


def beside_training(rollout: Rollout | None) -> tuple[Piece, ...]:
    """Return what is there at every moment of a step."""
    if rollout is None or not rollout.vllm or rollout.sleeps:
        return ()
    return (piece("workspace_vllm", rollout.vllm),)


def rollout_moment(
    layers: ModelLayers,
    plan: Plan,
    memory: MemoryTraits,
    parameters: RankParameters,
    states: States,
    copies: Piece,
    rollout: Rollout,
) -> Moment:
    """Return what the generation needs beside weights and optimizer. `copies` are the weights that autocast casts."""
    gradients = states.gradients if memory.keeps_gradients else NOTHING
    if rollout.vllm:
        share = rollout.vllm if rollout.sleeps else 0.0
        return moment(gradients, workspace=(piece("workspace_vllm", share),))
    sequences = plan.micro_batch * (plan.micro_batches if rollout.steps is None else rollout.steps)
    tokens = sequences * (rollout.prompt_tokens + rollout.completion_tokens)
    gathered = states.gathered
    if rollout.gathers_all:
        gathered = larger(gathered, rollout.element * (parameters.dense + parameters.expert))
    each = rollout.element
    cached, read = each * tokens * cached_elements(layers), _prefill(layers, rollout, sequences)
    work = (
        piece("workspace_kv_cache", cached, bytes_each=each, elements=None),
        piece("workspace_prefill", read, bytes_each=each, elements=None),
        piece("workspace_gathered", gathered, bytes_each=each, elements=None),
        copies,
    )
    return moment(gradients, workspace=work)


def cached_elements(layers: ModelLayers) -> int:
    """Return the keys and values of a token in all layers.

    Windows are not counted: transformers' default cache is not cut to them for every model.
    """
    return sum(
        count * attention.kv_heads * (attention.key_dim + attention.value_dim)
        for kind, count in counted_kinds(layers)
        for attention in operators_of(kind, Attention)
        if not attention.cross
    )


def _prefill(layers: ModelLayers, rollout: Rollout, sequences: Number) -> Number:
    """Return the bytes of the largest layer while it reads the prompts without gradients.

    The residual stream and its normed copy are there, and three outputs of a gated MLP: the activated gate, the other
    projection and their product (transformers 5.6.0 models/qwen3/modeling_qwen3.py Qwen3MLP.forward).
    """
    widest = [
        2 * kind.hidden + 3 * max((linear.outputs for linear in operators_of(kind, Linear)), default=0)
        for kind in layers.kinds
    ]
    return rollout.element * sequences * rollout.prompt_tokens * largest(*widest)
