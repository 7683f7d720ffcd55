"""Whether an engine recomputes activations (gradient checkpointing), and in which of torch's two ways."""

from backend.job.extra_values import mapping_of
from backend.job.job import Job

WITHOUT = frozenset({"nemotron_h"})
"""Types whose Hugging Face class has no gradient checkpointing; LLaMA-Factory only logs that (model/model_utils/
checkpointing.py)."""
SWITCHED_OFF = frozenset({"gemma3n"})
"""Types for which LLaMA-Factory 0.9.5 turns gradient checkpointing off (model/patcher.py patch_model)."""


def can_checkpoint(job: Job, model_type: str) -> bool:
    """Return whether the engine recomputes activations of a model of this type if the job asks for it."""
    is_off = model_type in SWITCHED_OFF and job.traits.environment == "llamafactory"
    return job.traits.is_megatron or not (is_off or model_type in WITHOUT)


def makes_checkpoints(job: Job) -> bool:
    """Return whether a Hugging Face engine recomputes activations, for models that can do so."""
    if job.traits.environment == "swift":
        is_off = _is_false(job.extra.get("gradient_checkpointing"))
    else:
        is_off = str(job.extra.get("disable_gradient_checkpointing")).lower() == "true"
    return job.recompute != "none" and not is_off


def makes_reentrant_checkpoints(job: Job) -> bool:
    """Return whether the job's checkpoints are reentrant on a Hugging Face engine, for models that can have them."""
    return makes_checkpoints(job) and would_be_reentrant(job)


def would_be_reentrant(job: Job) -> bool:
    """Return whether checkpoints on the job's Hugging Face engine are reentrant, whether or not the job makes any.

    LLaMA-Factory's are by default, but not with FSDP 2 (model/model_utils/checkpointing.py). Those of ms-swift 4.6.0
    are on one GPU and with DeepSpeed (trainers/mixin.py _fix_gradient_checkpointing).
    """
    extra = job.extra
    if job.traits.environment == "swift":
        chosen = mapping_of(extra.get("gradient_checkpointing_kwargs")).get("use_reentrant")
        if _is_false(chosen):
            return False
        return chosen is not None or job.world_size == 1 or job.traits.zero_stage > 0
    is_fsdp_2 = job.traits.is_fsdp and job.parallel.fsdp.version == 2
    return not is_fsdp_2 and not _is_false(extra.get("use_reentrant_gc"))


def recomputes_tower(job: Job) -> bool:
    """Return whether a trained vision tower recomputes its activations whatever the job's `recompute` is: ms-swift's
    Megatron does so unless told otherwise (4.6.0 megatron/arguments/megatron_args.py vit_gradient_checkpointing)."""
    is_swift_megatron = job.traits.is_swift_megatron
    return is_swift_megatron and not _is_false(job.extra.get("vit_gradient_checkpointing"))


def _is_false(value: object) -> bool:
    return str(value).lower() == "false"
