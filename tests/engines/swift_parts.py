"""Which parts of ms-swift's registry the classes of transformers have. An interpreter with ms-swift runs this file.

It prints {model type of ms-swift: names of model_arch.py that the class of its architecture does not have} for the
classes that can be built with their own defaults, without weights.
"""

import json

import torch
import transformers
from swift.model import MODEL_MAPPING
from swift.utils import deep_getattr

PARTS = ("language_model", "vision_tower", "aligner")
SIZES = ("num_hidden_layers", "depth", "encoder_layers")


def built(name: str) -> torch.nn.Module | None:
    """Return the module of a class with few layers; None if its own configuration cannot be built."""
    try:
        kind = getattr(transformers, name)
        config = kind.config_class()
        for part in (getattr(config, key, None) for key in ("text_config", "vision_config", "audio_config")):
            for size in SIZES:
                if hasattr(part, size):
                    setattr(part, size, 4)
        with torch.device("meta"):
            module: torch.nn.Module = kind(config)
    except Exception:
        return None
    return module


def main() -> None:
    missing: dict[str, list[str]] = {}
    for kind, meta in MODEL_MAPPING.items():
        names = [name for name in meta.architectures or [] if hasattr(transformers, name)]
        if not meta.is_multimodal or meta.model_arch is None or not names:
            continue
        model = built(names[0])
        if model is not None:
            prefixes = [prefix for part in PARTS for prefix in getattr(meta.model_arch, part)]
            missing[kind] = [prefix for prefix in prefixes if deep_getattr(model, prefix) is None]
    print("\n" + json.dumps(missing))


main()
