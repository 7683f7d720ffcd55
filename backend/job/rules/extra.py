"""Keys of `extra` that LLaMA-Factory 0.9.5 and mcore_adapter ignore, or refuse with another value (clashes.py).

Sources: LLaMA-Factory src/llamafactory/hparams/parser.py, train/mca/workflow.py; mcore_adapter training_args.py,
trainer/trainer.py.
"""

import re
from collections.abc import Iterable, Mapping

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.mtp import counted_layers, requested_layers
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules import scopes
from backend.job.rules.bound import BoundRule, problem, registrar
from backend.job.rules.clashes import CLASHES, MOST_PIXELS, SWIFT_CLASHES, Clash, is_given
from backend.job.traits import EngineTraits

RULES: list[BoundRule] = []
rule = registrar(RULES)


# Keys that the workflow under USE_MCA=1 and mcore_adapter's trainer never read.
_NOT_MEGATRONS = re.compile(
    r"adapter_name_or_path|additional_target|(disable_)?gradient_checkpointing(_kwargs)?|enable_liger_kernel|flash_attn|"
    r"include_num_input_tokens_seen|ld_alpha|lora(plus)?_.*|mixture_of_depths|moe_aux_loss_coef|neftune_noise_alpha|"
    r"optim|optim_args|optim_target_modules|pissa_.*|pref_ftx|ref_model|rope_scaling|shift_attn|simpo_gamma|"
    r"torch_compile|upcast_(layernorm|lmhead_output)|use_(adam_mini|apollo|asft_loss|badam|dft_loss|dora|eaft_loss|"
    r"galore|llama_pro|muon|reentrant_gc|rslora)"
)

NOT_ESTIMATED = re.compile(
    r"freeze_(extra|trainable)_modules|freeze_parameters(_ratio|_regex)?|mixture_of_depths|modules_to_save|"
    r"moe_expert_capacity_factor|moe_layer_recompute|mtp_(num_layers|shared_weights)|offload_(model|optimizer)|optim_target_modules|"
    r"shift_attn|torch_compile|trainable_parameters(_regex)?|"
    r"use_(adam_mini|apollo|badam|dora|galore|llama_pro|megatron_fsdp|muon|precision_aware_optimizer|unsloth_gc)"
)
"""Keys of the engines that change memory or time, and that no formula of the estimate reads."""


def allow_code(job: Job) -> Mapping[str, Mapping[str, object]]:
    """Return the choice that lets the code in the model's folder run; none for ms-swift, which has no such key."""
    if job.traits.environment != "llamafactory":
        return {}
    return {"allow": {"extra": {**job.extra, "trust_remote_code": True}}}


def is_ignored(key: str, traits: EngineTraits) -> bool:
    """Return whether an engine accepts a key without ever reading it."""
    return scopes.mcore_adapter(traits) and _NOT_MEGATRONS.fullmatch(key) is not None


@rule(scopes.everywhere)
def figures_count_the_keys(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """The estimate reads few keys of `extra`. Of those that it does not read, some change memory or time."""
    keys = [key for key, value in job.extra.items() if value and NOT_ESTIMATED.fullmatch(key)
            and not is_ignored(key, job.traits) and not _is_counted(key, job, shape)]  # fmt: skip
    if not keys:
        return None
    return Problem(code="extra_not_estimated", field="extra", severity="note",
                   values={"keys": ", ".join(f"`{key}`" for key in keys)})  # fmt: skip


def _is_counted(key: str, job: Job, shape: ModelShape) -> bool:
    if key == "mtp_num_layers":
        return counted_layers(job, shape) > 0
    # One layer shares its weights with no other (mcore-bridge 1.6.5 config/model_config.py mtp_unroll_steps).
    return key == "mtp_shared_weights" and requested_layers(job) < 2


@rule(scopes.llamafactory)
def keys_go_with_the_job(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """LLaMA-Factory's parser raises this on every rank, after minutes of imports. The first conflict is returned."""
    if found := _first_clash(job, CLASHES):
        return found
    for name, most in MOST_PIXELS.items():
        # LLaMA-Factory gets the job's bounds for models with a tower alone.
        own, least = getattr(job.training, name) if shape.vision else most, job.extra.get(_least(name))
        if isinstance(least, int) and least > own:
            return _clash(job, _least(name), f"training.{name}" if shape.vision else f"{name}: {most}")
    return None


@rule(scopes.swift_trainer)
def keys_go_with_ms_swift(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """ms-swift's arguments raise this on every rank. The first conflict is returned."""
    return _first_clash(job, SWIFT_CLASHES)


def _first_clash(job: Job, clashes: Iterable[Clash]) -> Problem | None:
    found = next((clash for clash in clashes if is_given(job, clash.key) and clash.applies(job)), None)
    return _clash(job, found.key, found.other) if found else None


def _least(name: str) -> str:
    return name.replace("_max_", "_min_")


def _clash(job: Job, key: str, other: str) -> Problem:
    others = {name: value for name, value in job.extra.items() if name != key}
    program = "ms-swift" if job.traits.environment == "swift" else "LLaMA-Factory"
    return problem("extra_clash", f"extra.{key}", key=key, other=other, program=program, edit={"extra": others})


@rule(scopes.mcore_adapter)
def keys_have_an_effect(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """The parser accepts every key of LLaMA-Factory and transformers; Megatron's trainer reads few of them."""
    ignored = [key for key, value in job.extra.items() if value and is_ignored(str(key), job.traits)]
    if not ignored:
        return None
    others = {key: value for key, value in job.extra.items() if key not in ignored}
    return problem("extra_ignored", f"extra.{ignored[0]}", "warning", keys=", ".join(ignored), engine=job.engine,
                    edit={"extra": others})  # fmt: skip


@rule(scopes.llamafactory_trainer)
def fp8_has_an_effect(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """transformers 5 passes its own precision to Accelerate, so that of LLaMA-Factory is never read.

    LLaMA-Factory 0.9.5 train/fp8_utils.py sets ACCELERATE_MIXED_PRECISION, and for Transformer Engine patches an
    Accelerator without handlers. transformers 5.6.0 trainer.py _build_accelerator_args always passes both. A real run
    logs "Accelerate FP8 status - enabled: False".
    """
    if not job.extra.get("fp8"):
        return None
    others = {key: value for key, value in job.extra.items() if not str(key).startswith("fp8")}
    return problem("fp8_has_no_effect", "extra.fp8", "warning", edit={"extra": others})
