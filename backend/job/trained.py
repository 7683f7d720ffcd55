"""The parts of a model that a job trains: the freeze switches, as the job's engine applies them."""

from typing import Literal, NamedTuple

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.model.vision_shape import VisionShape

Part = Literal["language_model", "vision_tower", "projector"]
"""Parts of a model, by their freeze switches."""


class Trained(NamedTuple):
    """The trained parts of a model."""

    language: bool = True
    tower: bool = True
    merger: bool = True
    deep_stack: bool = True

    @property
    def vision(self) -> bool:
        """Return whether any part of the vision tower is trained."""
        return self.tower or self.merger or self.deep_stack


_ALL = Trained()

_PROJECTOR_TRAINED = frozenset({("gemma3n", "llamafactory")})
"""Models and environments in which no switch freezes the projector: LLaMA-Factory 0.9.5 looks for
`multi_modal_projector` (model/model_utils/visual.py), but Gemma 3n has `embed_vision` and `embed_audio`."""


_TOWER_TRAINED = frozenset({("dots_ocr", "swift")})
"""Models and environments in which no switch freezes the tower and the projector in full training: ms-swift 4.6.0 names
only the language model of dots.ocr (model/model_arch.py)."""


LANGUAGE_TRAINED = frozenset({("qwen3_omni_moe", "llamafactory")})
"""Models and environments in which no switch freezes the layers of the language model, and that of the projector
freezes the deep-stack mergers: LLaMA-Factory 0.9.5 looks for `language_model` and `visual.merger` in the names of
Qwen3-Omni's thinker (model/model_utils/visual.py), which are `model.layers` and `visual.merger_list`."""


NOT_COMPOSITE = frozenset({
    "aya_vision", "cohere2_vision", "cohere_compass", "deepseek_ocr2", "deepseek_v41", "diffusion_gemma",
    "ernie4_5_vl_moe", "exaone4_5", "gemma4_unified", "glm46v", "glm5_next", "glmga", "granite4_vision",
    "hunyuan_vl", "hyperclovax_vision_v2", "idefics3", "internvl_chat", "kimi_k25", "lfm2_vl", "llava_onevision",
    "llavaonevision1_5", "minicpmv4_7", "minimax_m3_vl", "muse_glimmer", "ovis2_5", "paddleocr_vl", "qwen3_asr",
    "qwen3_asr_thinker", "qwen4_exp", "smolvlm", "step3p7", "voxtral",
})  # fmt: skip
"""Types with a tower whose parts LLaMA-Factory 0.9.5 does not know (model/model_utils/visual.py COMPOSITE_MODELS).
It freezes nothing of them, and gives every linear layer an adapter."""


def ignores_freezing(job: Job, model_type: str) -> bool:
    """Return whether LLaMA-Factory ignores the freeze switches for a model of this type."""
    return job.traits.is_llamafactory_trainer and model_type in NOT_COMPOSITE


def named_targets(job: Job) -> list[str]:
    """Return the names of the modules that get adapters; empty where the engine finds them itself, or the names are
    Megatron's."""
    lora = job.training.lora
    if job.training.method not in ("lora", "qlora") or job.traits.is_megatron or lora.targets == "all":
        return []
    return [name.strip() for name in lora.targets.split(",") if name.strip()]


def frozen_but_adapted(job: Job, shape: ModelShape) -> frozenset[Part]:
    """Return the frozen parts in which ms-swift adapts modules, because the job names modules and not `all`.

    The freeze switches choose the modules of `all-linear` alone (4.6.0 pipelines/train/tuner.py get_target_modules).
    peft finds other names in every part.
    """
    training, freeze, vision = job.training, job.training.freeze, shape.vision
    names = {name.strip() for name in training.lora.targets.split(",")}
    if not job.traits.is_swift_trainer or not vision or training.method not in ("lora", "qlora") or "all" in names:
        return frozenset()
    reached: dict[Part, bool] = {
        "language_model": freeze.language_model and bool(names - _names_of_vision_alone(shape, vision)),
        "vision_tower": freeze.vision_tower and bool(names & vision.block_modules),
        "projector": freeze.projector and bool(names & vision.projector_modules),
    }
    return frozenset(part for part, is_reached in reached.items() if is_reached)


_LLAMA = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})


def _names_of_vision_alone(shape: ModelShape, vision: VisionShape) -> frozenset[str]:
    """Return the names of modules of the tower and the projector that no module of the language model has."""
    own = {name for kind in shape.kinds for _, names in kind.modules for name in names}
    return (vision.block_modules | vision.projector_modules) - _LLAMA - own


def trained_parts(job: Job, shape: ModelShape) -> Trained:
    """Return the parts that a job trains, by its engine's freeze rules, which differ for deep-stack mergers and pt."""
    freeze, traits = job.training.freeze, job.traits
    freezes = freeze.language_model or freeze.vision_tower or freeze.projector
    if not freezes or not shape.vision or (job.training.stage == "pt" and not traits.freezes_in_pretraining):
        return _ALL
    if ignores_freezing(job, shape.model_type):
        return _ALL
    case = (shape.model_type, traits.environment)
    if case in _TOWER_TRAINED and job.training.method == "full":
        return Trained(language=not freeze.language_model)
    adapted = frozen_but_adapted(job, shape)
    frozen_projector = freeze.projector and "projector" not in adapted and case not in _PROJECTOR_TRAINED
    frozen_with = "projector" if case in LANGUAGE_TRAINED else traits.deep_stack_frozen_with
    return Trained(
        language=not freeze.language_model or "language_model" in adapted or case in LANGUAGE_TRAINED,
        tower=not freeze.vision_tower or "vision_tower" in adapted,
        merger=not frozen_projector,
        deep_stack="projector" in adapted
        or not {"tower": freeze.vision_tower, "projector": freeze.projector, "nothing": False}[frozen_with],
    )
