"""The model that the engine would load, built full-size on the meta device."""

from __future__ import annotations

import ast
import importlib.util
import os
from typing import Any

from .problem import ProfileError, reason
from .sources import ModelFolder

THINKERS = ("qwen2_5_omni", "qwen3_omni_moe")
"""Model types of which LLaMA-Factory trains only the part `thinker`."""
GROUPS = ("projector", "vision", "audio", "language")


def read_config(source: ModelFolder, trust_remote_code: bool) -> Any:
    """Return the configuration as the engine's class."""
    from transformers import AutoConfig, __version__
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type = source.config["model_type"]
    has_remote_code = bool(source.config.get("auto_map"))
    if model_type not in CONFIG_MAPPING and not has_remote_code:
        raise ProfileError("model_type_unknown", model_type=model_type, version=__version__)
    if has_remote_code and model_type not in CONFIG_MAPPING and not trust_remote_code:
        raise ProfileError("remote_code", model_type=model_type, auto_map=source.config["auto_map"])
    try:
        return AutoConfig.from_pretrained(source.folder, trust_remote_code=trust_remote_code, local_files_only=True)
    except Exception as error:
        raise ProfileError("config_refused", model_type=model_type, reason=reason(error)) from error


def build_model(config: Any, trust_remote_code: bool) -> Any:
    """Return the model on the meta device, of the class that LLaMA-Factory loads (model/loader.py, 0.9.5)."""
    import torch
    import transformers

    thinker = getattr(config, "thinker_config", None)
    if config.model_type in THINKERS and type(thinker) in transformers.AutoModelForImageTextToText._model_mapping:
        # Only this part is trained, so a config.json need not have the others.
        config = thinker
    automatic = transformers.AutoModelForCausalLM
    for name in ("AutoModelForImageTextToText", "AutoModelForSeq2SeqLM", "AutoModelForTextToWaveform"):
        candidate = getattr(transformers, name, None)
        if candidate is not None and type(config) in candidate._model_mapping:
            automatic = candidate
            break
    if automatic is transformers.AutoModelForCausalLM and not (
        type(config) in automatic._model_mapping or (trust_remote_code and getattr(config, "auto_map", None))
    ):
        raise ProfileError("no_model_class", model_type=config.model_type, config_class=type(config).__name__)
    config.quantization_config = None
    del config.quantization_config
    try:
        with torch.device("meta"), _without_initial_values():
            # The name in transformers 4 is torch_dtype.
            dtype = {"dtype" if int(transformers.__version__.partition(".")[0]) > 4 else "torch_dtype": torch.bfloat16}
            model = automatic.from_config(config, trust_remote_code=trust_remote_code, **dtype)
        # no_init_weights leaves it out, too.
        model.tie_weights()
    except Exception as error:
        raise ProfileError("model_not_built", model_type=config.model_type, reason=reason(error)) from error
    if config.model_type in THINKERS and hasattr(model, "thinker"):
        model = model.thinker
    model.requires_grad_(True)
    return model.train()


def _without_initial_values() -> Any:
    """Return the context in which transformers fills no weights."""
    try:
        from transformers.initialization import no_init_weights
    except ImportError:
        from transformers.modeling_utils import no_init_weights
    return no_init_weights()


def freezing_keys(model_type: str) -> dict[str, list[str]] | None:
    """Return LLaMA-Factory's keys of the parts of a composite model; None without LLaMA-Factory or for other models.

    The registry is read from its source file, because importing LLaMA-Factory takes longer than a profile.
    """
    spec = importlib.util.find_spec("llamafactory")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = os.path.join(folder, "model", "model_utils", "visual.py")
        with open(path, encoding="utf-8") as file:
            calls = [node for node in ast.walk(ast.parse(file.read())) if isinstance(node, ast.Call)]
        for call in calls:
            if getattr(call.func, "id", None) != "_register_composite_model":
                continue
            keys = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
            if keys.pop("model_type") == model_type:
                return {
                    "projector": keys.get("projector_keys") or ["multi_modal_projector"],
                    "vision": keys.get("vision_model_keys") or ["vision_tower"],
                    "language": keys.get("language_model_keys") or ["language_model", "lm_head"],
                    "lora_conflict": keys.get("lora_conflict_keys") or [],
                }
    return None


def group_of(name: str, keys: dict[str, list[str]] | None) -> str:
    """Return the trainability group of a parameter or module by its name."""
    if not keys:
        return "language"
    if any(key in name for key in keys["projector"]):
        return "projector"
    if any(key in name for key in keys["vision"]):
        return "audio" if any(word in name for word in ("audio", "apm", "tts")) else "vision"
    return "language" if any(key in name for key in keys["language"]) else "other"


def parameter_groups(model: Any, keys: dict[str, list[str]] | None) -> dict[str, Any]:
    """Return the exact number of parameters: in total, by group, and by the freezing option that freezes them.

    `router_biases` are elements of checkpoints that are buffers in transformers, so `total` is without them.
    """
    groups: dict[str, int] = {}
    frozen = {"vision": 0, "projector": 0, "language": 0}
    dtypes: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        size = parameter.numel()
        group = group_of(name, keys)
        groups[group] = groups.get(group, 0) + size
        dtype = str(parameter.dtype).replace("torch.", "")
        dtypes[dtype] = dtypes.get(dtype, 0) + size
        for part in frozen:
            frozen[part] += size * any(key in name for key in (keys or {}).get(part, ()))
    experts = sum(p.numel() for name, p in model.named_parameters() if is_expert(name, p))
    biases = sum(buffer.numel() for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias"))
    return {
        "total": sum(groups.values()),
        "groups": groups,
        "frozen_by": frozen if keys else None,
        "dtypes": dtypes,
        "experts": experts,
        "router_biases": biases,
    }


def is_expert(name: str, parameter: Any) -> bool:
    """Return whether a parameter belongs to one of many experts."""
    return ".experts." in name and "shared" not in name
