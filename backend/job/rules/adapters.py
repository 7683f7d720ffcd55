"""Rules for LoRA adapters on the Hugging Face engines."""

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.preset_profiles import linear_names, preset_profile, unknown_modules
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules import scopes
from backend.job.rules.bound import BoundRule, problem, registrar
from backend.job.trained import frozen_but_adapted, named_targets

RULES: list[BoundRule] = []
rule = registrar(RULES)

NO_ADAPTERS = ("out_proj", "conv1d")
MAMBA_TYPES = ("falcon_h1", "mamba", "mamba2", "falcon_mamba")
WITHOUT_OUT_PROJ = ("falcon_h1", "mamba", "mamba2", "falcon_mamba", "nemotron_h")
"""Types for which ms-swift leaves `out_proj` out of its `all-linear` (4.6.0 pipelines/train/tuner.py
_drop_mamba_incompatible_targets)."""
FUSED_TYPES = ("bamba", "granitemoehybrid", "nemotron_h")
"""Types that peft does not know as Mamba, and whose fused kernel reads the weight of `out_proj` itself."""
MAMBA_TARGETS = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj,in_proj"
"""The linear layers of Falcon-H1, Bamba and Nemotron-H that may have adapters (transformers 5.6
modeling_falcon_h1.py, modeling_bamba.py, modeling_nemotron_h.py). peft ignores names that a model does not have."""
CONV1D_TARGETS = "c_attn,c_proj,c_fc"
"""The layers of GPT-2 (transformers 5.6 modeling_gpt2.py)."""
GRANITE_TARGETS = "q_proj,k_proj,v_proj,o_proj,in_proj"
"""The layers of Granite's hybrids with experts (transformers 5.6 modeling_granitemoehybrid.py) but `input_linear`,
`output_linear` and `out_proj`."""

GRANITE_TYPES = ("granitemoehybrid", "granitemoeshared")
"""Types with a shared FFN whose modules have the names of the experts (modeling_granitemoeshared.py, too)."""

ALTUP_TYPES = ("gemma3n", "gemma3n_text")
ALTUP_TARGETS = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"
"""The layers of Gemma 3n (transformers 5.6 modeling_gemma3n.py) without those of AltUp and Laurel and of the layers'
own embeddings. An adapter on `correction_coefs` would get no gradient: AltUp reads its weight alone."""

_DELTA_TARGETS = f"{ALTUP_TARGETS},b_proj"
_KIMI_TARGETS = f"{_DELTA_TARGETS},f_a_proj,f_b_proj,g_a_proj,g_b_proj,kv_a_proj_with_mqa,kv_b_proj"
WHOLE_LAYER_TARGETS = {
    "kimi_linear": _KIMI_TARGETS,
    "glm5_next": f"{_KIMI_TARGETS},q_a_proj,q_b_proj",
    "olmo_hybrid": f"{_DELTA_TARGETS},a_proj,g_proj",
}
"""Types with whole layers whose classes have `Linear` in their names, and their linear layers (transformers 5.19
modeling_kimi_linear.py, modeling_glm5_next.py without the indexer and the tower, modeling_olmo_hybrid.py). Moonshot's
own code of Kimi Linear has the name KimiLinearForCausalLM, too."""
PROJECTION_NORM_TYPES = ("glm4v", "glm4v_moe", "glm_ocr")
NEOX_TARGETS = "query_key_value,dense,dense_h_to_4h,dense_4h_to_h"
"""The layers of GPT-NeoX (transformers 5.6 modeling_gpt_neox.py) without its output layer."""


@rule(scopes.hugging_face)
def adapters_suit_mamba(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """peft 0.18.1 tuners_utils.py _check_lora_target_modules_mamba raises for these modules; `all` names `out_proj`."""
    training = job.training
    if training.method not in ("lora", "qlora") or shape.model_type not in MAMBA_TYPES:
        return None
    names = training.lora.targets.split(",")
    refused = [name for name in names if name.strip() in (*NO_ADAPTERS, *_all_with_out_proj(job, shape))]
    if not refused:
        return None
    kept = ",".join(name for name in names if name not in refused) or MAMBA_TARGETS
    modules = ", ".join("out_proj" if name.strip() == "all" else name.strip() for name in refused)
    return problem("adapters_on_mamba", "training.lora.targets", model_type=shape.model_type,
                   modules=modules, edit={"training.lora.targets": kept})  # fmt: skip


@rule(scopes.hugging_face)
def adapters_are_trained(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mamba_ssm's fused kernel gets `out_proj.weight` from transformers 5.6 (modeling_bamba.py cuda_kernels_forward and
    others), so an adapter on `out_proj` is never computed.

    Its weights get no gradient. DDP then raises in the second step, because LLaMA-Factory tells it that all parameters
    are used (hparams/parser.py). Without mamba_ssm the adapter is trained, in a loop that is many times slower.
    """
    training = job.training
    if training.method not in ("lora", "qlora") or shape.model_type not in FUSED_TYPES:
        return None
    names = [name.strip() for name in training.lora.targets.split(",")]
    if not {"out_proj", *_all_with_out_proj(job, shape)} & {*names}:
        return None
    usual = GRANITE_TARGETS if shape.model_type == "granitemoehybrid" else MAMBA_TARGETS
    kept = ",".join(name for name in names if name not in ("out_proj", "all")) or usual
    return problem("adapters_not_trained", "training.lora.targets", "warning", model_type=shape.model_type,
                   edit={"training.lora.targets": kept})  # fmt: skip


def _all_with_out_proj(job: Job, shape: ModelShape) -> tuple[str, ...]:
    """Return the word `all` if it names `out_proj`."""
    is_left_out = job.traits.environment == "swift" and shape.model_type in WITHOUT_OUT_PROJ
    return () if is_left_out else ("all",)


def adapted_modules(job: Job, shape: ModelShape) -> str:
    """Return the modules with adapters: those that the job names, without `out_proj` where `all` leaves it out."""
    targets = job.training.lora.targets
    return MAMBA_TARGETS if targets.strip() == "all" and not _all_with_out_proj(job, shape) else targets


def _has_adapters_on_all(job: Job) -> bool:
    return job.training.method in ("lora", "qlora") and job.training.lora.targets.strip() == "all"


@rule(scopes.hugging_face)
def all_finds_linear_layers(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Both engines look for `linear` in the names of classes (LLaMA-Factory 0.9.5 model/model_utils/misc.py
    find_all_linear_modules, ms-swift 4.6.0 utils/transformers_utils.py find_all_linears).

    GPT-2 has transformers' Conv1D instead, so `all` finds none and peft raises. In WHOLE_LAYER_TARGETS it finds whole
    layers, or the whole model with an empty name, and peft raises (tests/engines/test_adapters_of_all.py).
    """
    if not _has_adapters_on_all(job):
        return None
    if shape.model_type == "gpt2":
        return problem("adapters_find_nothing", "training.lora.targets", model_type=shape.model_type,
                       edit={"training.lora.targets": CONV1D_TARGETS})  # fmt: skip
    if targets := WHOLE_LAYER_TARGETS.get(shape.model_type):
        return problem("adapters_on_whole_layers", "training.lora.targets", model_type=shape.model_type,
                       edit={"training.lora.targets": targets})  # fmt: skip
    return None


@rule(scopes.hugging_face)
def all_spares_the_output_layer(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Both engines know the output layer by the name `lm_head`. That of GPT-NeoX is `embed_out` in transformers 5.6
    (5.19: `lm_head`). ms-swift has no entry of the type that names another (model/models/llm.py)."""
    if not _has_adapters_on_all(job) or shape.model_type != "gpt_neox":
        return None
    return problem("adapters_on_output", "training.lora.targets", "warning", model_type=shape.model_type,
                   edit={"training.lora.targets": NEOX_TARGETS})  # fmt: skip


@rule(scopes.swift_trainer)
def all_spares_altup(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """ms-swift names AltUp's modules by their whole paths, so peft adapts them (LLaMA-Factory: adapters_on_layers).

    The adapters on `correction_coefs` get no gradient (one step of a small model with ms-swift's names, transformers
    5.6.0).
    """
    if not _has_adapters_on_all(job) or shape.model_type not in ALTUP_TYPES:
        return None
    return problem("adapters_on_altup", "training.lora.targets", "warning", model_type=shape.model_type,
                   edit={"training.lora.targets": ALTUP_TARGETS})  # fmt: skip


@rule(scopes.swift_trainer)
def named_modules_are_in_trained_parts(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """frozen_but_adapted says why. The adapters are trained: the tower keeps its gradients for them (4.6.0
    model/patcher.py patch_frozen_module)."""
    adapted = frozen_but_adapted(job, shape)
    if not adapted:
        return None
    parts = [part for part in ("vision_tower", "projector", "language_model") if part in adapted]
    return problem("adapters_in_frozen_part", "training.lora.targets", "warning", parts=", ".join(parts),
                   edit={"training.lora.targets": "all"})  # fmt: skip


@rule(scopes.llamafactory_trainer)
def all_names_modules_for_adapters(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """LLaMA-Factory 0.9.5 looks for `Linear` in the names of classes (model_utils/misc.py find_all_linear_modules).

    In Granite's models with a shared FFN, the names are those of the experts too, whose class peft 0.18.1 refuses. In
    Gemma 3n it finds AltUp's lists of projections, whose names are numbers, as are those of the layers, whose class
    peft refuses.
    """
    if not _has_adapters_on_all(job):
        return None
    if shape.model_type in GRANITE_TYPES and shape.experts:
        modules = "input_linear, output_linear"
        return problem("adapters_on_experts", "training.lora.targets", model_type=shape.model_type, modules=modules,
                       edit={"training.lora.targets": GRANITE_TARGETS})  # fmt: skip
    if shape.model_type in ALTUP_TYPES:
        return problem("adapters_on_layers", "training.lora.targets", model_type=shape.model_type,
                       edit={"training.lora.targets": ALTUP_TARGETS})  # fmt: skip
    return None


@rule(scopes.llamafactory_trainer)
def all_spares_norms(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """LLaMA-Factory 0.9.5 model/model_utils/visual.py patch_target_modules takes every module whose path contains a
    name that `all` found. The tower of GLM-4V has `proj`, and its merger `post_projection_norm`, which peft refuses
    (seen with glm4v, transformers 5.6.0; the others have the same names)."""
    freeze = job.training.freeze
    if not _has_adapters_on_all(job) or shape.model_type not in PROJECTION_NORM_TYPES:
        return None
    if freeze.vision_tower or freeze.projector:
        return None
    return problem("adapters_on_norm", "training.freeze.projector", model_type=shape.model_type,
                   edit={"training.freeze.projector": True})  # fmt: skip


@rule(scopes.hugging_face)
def named_modules_are_in_the_preset(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """The names of a preset's modules are in its profile, before any node has the model. peft skips a name that no
    module has, and raises if it finds none (0.18.1 tuners_utils.py inject_adapter)."""
    profile, names = preset_profile(job.model.preset) if job.model.preset else {}, named_targets(job)
    unknown = unknown_modules(profile, names) if profile else []
    if not unknown:
        return None
    usual = ALTUP_TARGETS if shape.model_type in ALTUP_TYPES else "all"
    kept = ",".join(name for name in names if name not in unknown) or usual
    return problem("lora_targets_unknown", "training.lora.targets", "warning", names=", ".join(unknown),
                   version=profile["versions"]["transformers"], known=", ".join(linear_names(profile)),
                   edit={"training.lora.targets": kept})  # fmt: skip


@rule(scopes.hugging_face)
def altup_is_not_in_4_bits(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """transformers 5.6 modeling_gemma3n.py clamps the weights of AltUp's coefficients and multiplies by one of them, as
    if they were plain tensors. In 4 bits they are packed bytes of another shape (read, not run: it needs a GPU)."""
    if job.training.method != "qlora" or shape.model_type not in ALTUP_TYPES:
        return None
    return problem("altup_in_4_bits", "training.method", model_type=shape.model_type, edit={"training.method": "lora"})
