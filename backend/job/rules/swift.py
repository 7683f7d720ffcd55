"""Rules of ms-swift's engines."""

from backend.job.job import Job
from backend.job.megatron_model_types import SWIFT_DEV_MEGATRON
from backend.job.model import ModelShape
from backend.job.model.linear_shape import GatedDeltaNet, LightningAttention
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules import scopes
from backend.job.rules.bound import BoundRule, problem, registrar
from backend.job.rules.clashes import PADDED_KINDS, swift_kind
from backend.job.traits import sibling

RULES: list[BoundRule] = []
rule = registrar(RULES)

MAX_STREAMING_LOADERS = 1
"""Loader processes per rank that ms-swift's Megatron keeps with streaming (4.6.0 arguments/megatron_base_args.py)."""


@rule(scopes.swift_trainer)
def packing_needs_flash_attention(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """ms-swift 4.6.0 arguments/sft_args.py: `The "packing" feature requires a flash attention implementation.`"""
    if not job.training.packing or gpu.device != "cpu":
        return None
    return problem("packing_on_cpu", "training.packing", engine=job.engine, edit={"training.packing": False})


@rule(scopes.swift_trainer)
def packing_is_of_the_stage(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """ms-swift 4.6.0 arguments/rlhf_args.py: `The current rlhf_type 'rm' does not support padding_free/packing.`

    It supports dpo, kto and grpo. For GRPO see grpo.py, and for padding_free clashes.py.
    """
    kind = swift_kind(job)
    if not job.training.packing or kind not in PADDED_KINDS:
        return None
    return problem("packing_not_of_stage", "training.packing", kind=kind, edit={"training.packing": False})


@rule(scopes.swift_megatron)
def streaming_has_one_loader(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """ms-swift 4.6.0 arguments/megatron_base_args.py: `setting args.dataloader_num_workers to 1`."""
    workers = job.training.workers.data_loader
    if not job.extra.get("streaming") or workers <= MAX_STREAMING_LOADERS:
        return None
    return problem("swift_streams_with_one", "training.workers.data_loader", "note", workers=workers,
                   edit={"training.workers.data_loader": MAX_STREAMING_LOADERS})  # fmt: skip


@rule(scopes.swift_megatron)
def megatron_core_builds_the_model(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore-bridge 1.6.5 needs the dev branch of Megatron-LM for some types; with megatron-core up to 0.19.2 the run
    ends when it builds the model."""
    if shape.model_type not in SWIFT_DEV_MEGATRON:
        return None
    return problem("megatron_core_dev", "engine", "warning", model_type=shape.model_type)


@rule(scopes.swift_megatron)
def megatron_has_the_linear_attention(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore-bridge 1.6.5 model/gpts/bailing_hybrid.py has the linear attention of Ling 2.5 alone. It looks for
    `query_key_value.weight`, which the layers of Ling 3 do not have."""
    nets = [kind.attention for kind in shape.kinds if isinstance(kind.attention, GatedDeltaNet)]
    if not any(net.decays_channels for net in nets):
        return None
    return problem("linear_attention_differs", "engine", "warning", model_type=shape.model_type,
                   edit={"engine": sibling(job.traits, "zero3")})  # fmt: skip


@rule(scopes.swift_megatron)
def lightning_attention_has_whole_sequences(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore-bridge 1.6.5 model/gpts/bailing_hybrid.py LinearAttention.forward: each rank of context parallelism runs
    the recurrence over its own part of the sequence, from an empty state, and no rank sends its state on."""
    if not shape.has_lightning_attention or job.parallel.context == 1:
        return None
    return problem("lightning_with_context", "parallel.context", model_type=shape.model_type,
                   context=job.parallel.context, edit={"parallel.context": 1})  # fmt: skip


@rule(scopes.swift_megatron)
def lightning_attention_has_as_many_keys(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore-bridge 1.6.5 model/gpts/bailing_moe.py _set_qkv cuts the joined weight by num_key_value_heads. That of
    linear attention has as many keys as queries (inclusionAI/Ring-V2.5 models/modeling_bailing_moe_v2_5.py)."""
    nets = [kind.attention for kind in shape.kinds if isinstance(kind.attention, LightningAttention)]
    if not any(net.key_heads != net.heads for net in nets):
        return None
    return problem("lightning_key_heads", "engine", "warning", model_type=shape.model_type,
                   edit={"engine": sibling(job.traits, "zero3")})  # fmt: skip


@rule(scopes.swift_megatron)
def shared_keys_are_not_recomputed(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore-bridge 1.6.5 model/modules/transformer_block.py _checkpointed_forward: full recompute runs a layer first
    without gradients, and later layers read the keys of that pass (model/mm_gpts/gemma4.py shared_kv_states). Their
    gradients do not reach the layer that projected the keys (counted by benchmarks/layer_inputs.py)."""
    if not shape.layers_with_shared_keys or job.recompute != "full":
        return None
    return problem("shared_keys_recomputed", "parallel.recompute", model_type=shape.model_type,
                   edit={"parallel.recompute": "selective"})  # fmt: skip
