"""What Liger's kernels replace in transformers' modules, by engine and model type.

LLaMA-Factory 0.9.5 lists types (model/model_utils/liger_kernel.py) and only warns about any other. It calls Liger
before it loads a model, and Liger 0.8.2 (transformers/monkey_patch.py) replaces classes by name. A name that the model
does not use changes nothing: for `glm` LLaMA-Factory lets Liger replace the classes of `glm4`, Qwen2-VL's norms stay
transformers' own, and Mllama is loaded as a class whose forward Liger leaves alone. LLaMA-Factory's main (0.9.6.dev0)
also lists qwen3_5_moe.

ms-swift 4.6.0 leaves it to transformers' trainer (integrations/liger.py), which gives the built model to Liger. Liger
looks its type up in MODEL_TYPE_TO_APPLY_LIGER_FN and says nothing about any other. It binds methods to the modules that
it names: most norms of queries and keys are not among them.

The type is that of the whole model (config.model_type), also of a model with a tower. Both tables were read, and seen
in the modules of small models after Liger's calls: with transformers 5.6.0, and 5.19.0 for ms-swift (SmolVLM: read
only). Routed experts have kernels too, which are not described here. Granite's loss gets a kernel that reads all
logits.
"""

from collections.abc import Mapping
from typing import NamedTuple

from backend.job.job import Job


class Kernels(NamedTuple):
    """The parts of a model that Liger's kernels compute."""

    loss: bool = False
    """Output layer and loss are one kernel, which never holds all logits."""
    norms: bool = False
    """RMSNorms of the hidden state are one kernel, which saves the input as it came."""
    head_norms: bool = False
    """The same of RMSNorms of heads, such as of queries and keys. False if some of them are transformers' own."""
    functions: bool = False
    """SwiGLU or GeGLU of dense FFNs and of shared experts is one kernel, which saves its two inputs and overwrites them
    with their gradients."""
    rope: bool = False
    """Rotary embedding of queries and keys is one kernel, which rotates them in place. It saves what transformers'
    operations save: cosines and sines, which all layers share."""


class _Types(NamedTuple):
    """The model types of each part, on one engine."""

    loss: frozenset[str]
    norms: frozenset[str]
    head_norms: frozenset[str]
    functions: frozenset[str]
    rope: frozenset[str]


NONE = Kernels()
ALL = Kernels(loss=True, norms=True, head_norms=True, functions=True, rope=True)

_WHOLE = frozenset(
    {
        "gemma", "gemma2", "gemma3", "gemma3_text", "glm4", "llama", "mistral", "olmo2", "paligemma", "phi3", "qwen2",
        "qwen3", "qwen3_5",
    }
)  # fmt: skip
_NO_FUNCTIONS = frozenset({"gpt_oss", "mixtral", "qwen3_moe", "qwen3_next"})
_NO_ROPE = frozenset(
    {
        "gemma4", "gemma4_text", "glm4", "glm4v", "glm4v_moe", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text",
        "qwen3_5_text", "qwen3_next",
    }
)  # fmt: skip
"""Types with kernels of Liger whose rotary embedding stays transformers' own: `liger_rotary_pos_emb is not available
for Glm4 models.`"""
_LLAMAFACTORY = _Types(
    loss=_WHOLE | _NO_FUNCTIONS | {"glm4v", "llava", "qwen2_vl", "qwen2_5_vl"},
    norms=_WHOLE | _NO_FUNCTIONS | {"glm4v", "granite", "mllama"},
    head_norms=frozenset({"gemma3", "gemma3_text", "mllama", "olmo2", "qwen3", "qwen3_moe"}),
    functions=_WHOLE | {"granite", "mllama", "qwen2_vl", "qwen2_5_vl"},
    rope=(_WHOLE | _NO_FUNCTIONS | {"granite", "mllama", "qwen2_vl", "qwen2_5_vl"}) - _NO_ROPE,
)
_SWIFT_WHOLE = _WHOLE | {
    "exaone4", "falcon_h1", "gemma4", "gemma4_text", "glm4v", "glm4v_moe", "hunyuan_v1_dense", "internvl",
    "llama4_text", "llava", "ministral", "mllama", "olmo3", "qwen2_vl", "qwen2_5_vl", "qwen3_5_text", "smollm3",
    "smolvlm",
}  # fmt: skip
_SWIFT_NO_FUNCTIONS = _NO_FUNCTIONS | {
    "hunyuan_v1_moe", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_vl", "qwen3_vl_moe",
}  # fmt: skip
_SWIFT = _Types(
    # Norms inside DeepSeek-V4's attention stay transformers' own, and Nemotron's are LayerNorms.
    loss=_SWIFT_WHOLE | _SWIFT_NO_FUNCTIONS | {"deepseek_v4", "nemotron"},
    norms=_SWIFT_WHOLE | _SWIFT_NO_FUNCTIONS | {"granite", "llama4"},
    head_norms=frozenset({"exaone4", "gemma3", "gemma3_text", "qwen3_vl", "qwen3_vl_moe"}),
    # The instances of shared experts are replaced, and so are dense FFNs. LLaMA-Factory's way leaves their class alone.
    functions=_SWIFT_WHOLE | {"granite", "llama4", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next"},
    # Liger replaces a function that Qwen2-VL has in transformers 5.6, and no longer in 5.19.
    rope=(_SWIFT_WHOLE | _SWIFT_NO_FUNCTIONS | {"granite", "llama4"}) - _NO_ROPE - {"qwen2_vl", "qwen2_5_vl"},
)
_TYPES: Mapping[str, _Types] = {"llamafactory": _LLAMAFACTORY, "swift": _SWIFT}

_OWN_LOSSES: Mapping[str, tuple[str, ...]] = {
    "llamafactory": ("label_smoothing_factor", "use_asft_loss", "use_dft_loss", "use_eaft_loss"),
    "swift": ("enable_channel_loss", "enable_dft_loss", "label_smoothing_factor", "loss_type"),
}
"""Keys with which the trainer computes the loss itself, from all logits (LLaMA-Factory 0.9.5 train/sft/trainer.py and
transformers 5.6.0 trainer.py compute_loss; ms-swift 4.6.0 trainers/seq2seq_trainer.py compute_loss)."""
_WEIGHTS = frozenset({"agentflan", "alpha_umi", "hermes", "qwen", "react"})
"""ms-swift's loss scales that give tokens weights other than 0 and 1 (4.6.0 loss_scale/mapping.py, config/*.json), from
which it computes the loss itself."""
_OFF = frozenset({"", "0", "0.0", "false", "none"})


def kernels_of(job: Job, model_type: str) -> Kernels:
    """Return the parts of a model of this type that Liger's kernels compute.

    Only pt and sft have Liger's loss (LLaMA-Factory 0.9.5 model/loader.py require_logits). The Megatron engines have no
    kernels of Liger.
    """
    if not job.training.liger or job.traits.is_megatron:
        return NONE
    kernels = Kernels(*(model_type in types for types in _TYPES[job.traits.environment]))
    fuses = kernels.loss and job.training.stage in ("pt", "sft") and own_loss(job) is None
    return kernels if fuses else kernels._replace(loss=False)


def has_effect(job: Job, model_type: str) -> bool:
    """Return whether the job's engine gives a model of this type any kernel of Liger.

    Under ms-swift GRPO and KTO ask for losses of Liger that depend on no type (4.6.0 rlhf_trainers/grpo_trainer.py; trl
    0.29.1 experimental/kto/kto_trainer.py). KTO fails with it (rules/liger.py).
    """
    if job.traits.is_megatron:
        return False
    if job.traits.environment == "swift" and job.training.stage in ("grpo", "kto"):
        return True
    return any(model_type in types for types in _TYPES[job.traits.environment])


def has_fused_loss(job: Job, model_type: str) -> bool:
    """Return whether Liger has a loss without logits for this type on the job's Hugging Face engine."""
    return model_type in _TYPES[job.traits.environment].loss


def own_loss(job: Job) -> str | None:
    """Return the job's key with which the Hugging Face trainer computes the loss itself."""
    extra, environment = job.extra, job.traits.environment
    if not extra:
        return None
    if environment == "swift" and _WEIGHTS & set(str(extra.get("loss_scale")).split("+")):
        return "loss_scale"
    # LLaMA-Factory's trainer of pt reads none of its own keys.
    is_pretraining = environment == "llamafactory" and job.training.stage == "pt"
    keys = ("label_smoothing_factor",) if is_pretraining else _OWN_LOSSES[environment]
    return next((key for key in keys if str(extra.get(key)).lower() not in _OFF), None)
