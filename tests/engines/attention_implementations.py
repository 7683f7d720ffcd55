"""Print what transformers makes of bounded scores and of sinks, in small models.

The answer is {"default": {model: implementation}, "softcap": {implementation: largest change of an output if the bound
of the scores changes}}. `default` is what transformers takes if nobody asks for an implementation.
"""

import json
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from benchmarks.small_models import SMALL_MODELS

TOKENS = 32


def outputs(keys: dict[str, Any], implementation: str) -> torch.Tensor:
    """Return the logits of one batch. The weights are the same at each call."""
    torch.manual_seed(0)
    config = CONFIG_MAPPING[keys["model_type"]].from_dict(keys)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=implementation).float().eval()
    tokens = torch.arange(TOKENS).unsqueeze(0) + 3
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4)
        logits: torch.Tensor = model(input_ids=tokens, use_cache=False).logits
    return logits


def main() -> None:
    """Print the answer as JSON."""
    default, softcap = {}, {}
    for name in ("gemma2", "gpt_oss", "llama"):
        config = CONFIG_MAPPING[name].from_dict(dict(SMALL_MODELS[name]))
        default[name] = AutoModelForCausalLM.from_config(config).config._attn_implementation
    for implementation in ("eager", "sdpa"):
        loose, tight = (
            outputs({**SMALL_MODELS["gemma2"], "attn_logit_softcapping": cap}, implementation) for cap in (50.0, 0.01)
        )
        softcap[implementation] = float((loose - tight).abs().max())
    print(json.dumps({"default": default, "softcap": softcap}))


if __name__ == "__main__":
    main()
