"""The model type and the chat template of ms-swift for a job's model, from its own registry.

ms-swift finds a model by the name of its folder, and then by its architecture (4.6.0 swift/model/model_meta.py
get_model_info_meta). Several of its types may have one architecture. Written out, a folder may have any name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from backend.engines.engine import Target, target_of
from backend.job.data_folder import data_folder
from backend.job.job import Job
from backend.job.model.config import part
from backend.job.presets import models


@dataclass(frozen=True, kw_only=True, slots=True)
class SwiftModel:
    """A model as ms-swift knows it."""

    model_type: str
    template: str


def swift_model(target: Target) -> SwiftModel | None:
    """Return what ms-swift registers for the model: by its name on a hub, else by its architecture. None if unknown."""
    registry, model = _registry(), target.job.model
    preset = models().get(model.preset or "")
    for name in (model.hub, preset.hub if preset else None, model.path):
        if name and (registered := _by_name().get(_last_part(name))):
            return registered
    architectures = model.hf_config.get("architectures") or ()
    kinds = [registry["types"].get(name) for name in (*architectures, target.shape.model_type)]
    kind = next((kind for kind in kinds if kind), None)
    if kind is None:
        return None
    kind = _OF_VERSION.get(kind, {}).get(_version(model.hf_config), kind)
    if not model.hf_config.get("auto_map"):
        kind = _WITHOUT_OWN_CODE.get(kind, kind)
    template = _template_of(kind, target.job.training.template)
    if kind == "internvl_chat" and template != target.job.training.template:
        template = _template_by_config(model.hf_config) or template
    return SwiftModel(model_type=kind, template=template)


_OF_VERSION: Mapping[str, Mapping[float, str]] = {
    "minicpmv": {2.6: "minicpmv2_6", 4.0: "minicpmv4", 4.5: "minicpmv4_5"}
}
"""Types that have one architecture in ms-swift, by the `version` of config.json."""
_WITHOUT_OWN_CODE: Mapping[str, str] = {"paddle_ocr": "paddleocr_vl"}
"""Types that have the architecture of transformers' class, by the type that runs the folder's code. The parts of the
latter have other names (4.6.0 swift/model/model_arch.py keye_vl, paddleocr_vl), so with it no switch would freeze the
tower of the former."""
_INTERNVL_TEMPLATES: Mapping[str, str] = {
    "qwen3": "internvl3_5",
    "qwen3_moe": "internvl3_5",
    "gpt_oss": "internvl3_5_gpt",
}
"""Templates of InternVL 3.5 by the type of its language model. Its config.json names the template of 2.5."""


def _version(hf_config: Mapping[str, Any]) -> float:
    version = hf_config.get("version")
    return float(version) if isinstance(version, int | float) else 0.0


def _template_by_config(hf_config: Mapping[str, Any]) -> str | None:
    """Return the template of InternVL's generation; None if ms-swift has none for it."""
    language = str((part(hf_config, "llm_config") or {}).get("model_type"))
    template = _INTERNVL_TEMPLATES.get(language, str(hf_config.get("template")))
    return template if template in _registry()["templates"]["internvl_chat"] else None


def swift_names(job: Job) -> dict[str, str]:
    """Return `model_type` and `template` of a job under ms-swift, as far as they are known."""
    model = swift_model(target_of(job)) if job.traits.environment == "swift" else None
    known = {"model_type": model.model_type, "template": model.template} if model else {}
    return known | {key: str(job.extra[key]) for key in ("model_type", "template") if job.extra.get(key)}


def asked_transformers(kind: str) -> str:
    """Return the versions of transformers that ms-swift asks for, for one of its types; empty if it takes the usual."""
    versions: dict[str, str] = _registry()["transformers"]
    return versions.get(kind, "")


def _template_of(kind: str, chosen: str | None) -> str:
    """Return the template of a model type: that which LLaMA-Factory's template `chosen` names, else its first one."""
    candidates: list[str] = _registry()["templates"][kind]
    # LLaMA-Factory 0.9.5 data/template.py: qwen3_nothink; ms-swift template/constant.py: qwen3_nothinking.
    alike = [f"{chosen}ing" if str(chosen).endswith("_nothink") else chosen]
    return next((name for name in alike if name in candidates), candidates[0])


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()


@cache
def _by_name() -> dict[str, SwiftModel]:
    return {
        name: SwiftModel(model_type=kind, template=template)
        for kind, templates in _registry()["models"].items()
        for template, names in templates.items()
        for name in names
    }


@cache
def _registry() -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = (data_folder("presets") / "swift_models.yaml").read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.load(text, Loader=loader)  # noqa: S506 - a safe one
    return loaded
