"""A model with random weights of a config of its language part. Needs transformers."""

from typing import Any

from transformers import AutoModelForCausalLM
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

_TOWER = {
    "depth": 1, "hidden_size": 64, "num_heads": 4, "intermediate_size": 64, "projection_intermediate_size": 64,
}  # fmt: skip


def language_model(config: Any, **options: Any) -> Any:
    """Return the model that transformers builds from the config of a language part. GLM-5.3 has a class for the whole
    model alone (5.19 modeling_glm5_next.py); its tower is taken away."""
    if config.model_type in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return AutoModelForCausalLM.from_config(config, **options)
    whole_type = config.model_type.removesuffix("_text")
    tower = {**_TOWER, "out_hidden_size": config.hidden_size}
    whole = CONFIG_MAPPING[whole_type](text_config=config.to_dict(), vision_config=tower)
    model = modeling_auto.AutoModelForImageTextToText.from_config(whole, **options)
    model.model.visual = None
    return model
