"""Step 2: the model to train, by name or by its config.json, and its folder on the nodes."""

from collections.abc import Mapping
from typing import Any

from app.services import Services
from app.wizard.draft_state import DraftState
from app.wizard.fields import Form
from app.wizard.layout import grid, place, section
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.job.model import ModelShape
from backend.job.preset_profiles import linear_names, preset_profile
from backend.job.presets import models
from backend.job.unestimated import UnestimatedModel

STEP = "model"
GROUPS = ("language", "vision", "audio", "projector", "other")
"""The trainability groups of a profile (backend/node/model_profile/build.py group_of)."""


def build(form: Form) -> None:
    """Build the step's widgets."""
    form.start(STEP)
    with section(form.lang, "which_model"):
        with grid():
            form.field("model.preset")
            form.field("model.path", placeholder="/shared/models/Qwen3-VL-8B-Instruct")
            form.field("model.hub", placeholder="Qwen/Qwen3-VL-8B-Instruct")
            form.field("model.hub_kind")
            form.field("model.hub_endpoint", placeholder="https://hf-mirror.com")
        place("fetch_model")
        form.field("model.hf_config", lines=12, placeholder='{"model_type": "qwen3", "hidden_size": 4096, ...}')
        place("model")


def data(state: DraftState, form: Form, services: Services) -> dict[str, Any]:
    """Return the model's card: name, published size, shape."""
    model, job = state.model, state.job
    if job is None or model is None:
        return {"model": None}
    if isinstance(model, UnestimatedModel):
        return {"model": {"name": "", "type": model.model_type, "parameters": None, "facts": []}}
    preset = models().get(job.model.preset or "")
    parameters = preset.parameters if preset else model_parameters(model_layers(model))
    facts = [*_facts(model), *(_profiled(preset_profile(preset.key)) if preset else [])]
    return {"model": {"name": preset.name if preset else "", "type": model.model_type, "parameters": parameters,
                      "facts": facts}}  # fmt: skip


def _facts(shape: ModelShape) -> list[tuple[str, Any]]:
    """Return (catalogue key under wizard.model., value) of every figure of the shape."""
    facts: list[tuple[str, Any]] = [("layers", shape.layers), ("hidden", shape.hidden)]
    if shape.ffn:
        facts.append(("ffn", shape.ffn))
    facts += [
        ("heads", shape.heads), ("kv_heads", shape.kv_heads), ("head_dim", shape.head_dim), ("vocab", shape.vocab),
    ]  # fmt: skip
    if shape.experts:
        facts += [("experts", shape.experts), ("top_k", shape.top_k), ("expert_ffn", shape.expert_ffn)]
    if shape.vision:
        vision = shape.vision
        facts += [("vision_depth", vision.depth), ("vision_hidden", vision.hidden), ("patch", vision.patch)]
    return facts


def _profiled(profile: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return what torch counted in a preset's model: parameters by part, the names of its linear layers, and by which
    transformers."""
    if not profile:
        return []
    groups = profile["parameters"]["groups"]
    facts = [(f"{group}_parameters", groups[group]) for group in GROUPS if group in groups] if len(groups) > 1 else []
    versions = profile["versions"]
    source = f"transformers {versions['transformers']}, torch {versions['torch']}"
    return [*facts, ("linears", ", ".join(linear_names(profile))), ("profiled_by", source)]
