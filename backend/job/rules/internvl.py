"""Rules of InternVL in OpenGVLab's own form, which has its code in the model's folder."""

from backend.job.job import Job
from backend.job.megatron_model_types import SWIFT_CHAT_LANGUAGE_MODELS
from backend.job.model import ModelShape
from backend.job.model.config import part
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules import scopes
from backend.job.rules.bound import BoundRule, problem, registrar
from backend.job.traits import sibling

RULES: list[BoundRule] = []
rule = registrar(RULES)

_OWN_FORM = "internvl_chat"


@rule(scopes.llamafactory_trainer)
def own_form_needs_ms_swift(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """LLaMA-Factory 0.9.5 model/patcher.py patch_config: `Please download the internvl models in a Hugging
    Face-compatible format`."""
    if shape.model_type != _OWN_FORM:
        return None
    edit: dict[str, object] = {"engine": job.engine.replace("llamafactory", "swift")}
    if job.traits.is_fsdp:
        edit |= {"parallel.fsdp.version": 2}
    return problem("internvl_own_form", "model", model_type=_OWN_FORM, edit=edit)


@rule(scopes.swift_megatron)
def megatron_knows_the_language_model(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore-bridge 1.6.5 model/mm_gpts/internvl.py: `llm_model_type is not supported for internvl_chat model`."""
    if shape.model_type != _OWN_FORM:
        return None
    language = str((part(job.model.hf_config, "llm_config") or {}).get("model_type", ""))
    if not language or language in SWIFT_CHAT_LANGUAGE_MODELS:
        return None
    allowed = ", ".join(sorted(SWIFT_CHAT_LANGUAGE_MODELS))
    return problem("internvl_language_model", "model", engine=job.engine, language_model=language, allowed=allowed,
                   edit={"engine": sibling(job.traits, "zero3")})  # fmt: skip
