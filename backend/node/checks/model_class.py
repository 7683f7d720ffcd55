"""Part of the program engine_args.py: whether transformers finds the model's class."""

from __future__ import annotations

import json
import os
import re

UNRECOGNIZED = re.compile(r"model type `([^`]+)` but Transformers does not recognize this architecture")
"""models/auto/configuration_auto.py of transformers: AutoConfig.from_pretrained."""


class ArchitectureUnknownError(ValueError):
    """The installed transformers has no class for the model. The message is its version and the model_type."""


class ClassMissingError(ValueError):
    """The model's config.json names no class."""


class CodeNotAllowedError(ValueError):
    """The model's class is in a Python file of its folder, which the message names. The job does not allow it."""


def require_architecture(folder: str, may_run_code: bool = False) -> None:
    """Raise ValueError if transformers will not find the model's class, before every rank does.

    A model may bring its own code (transformers 5.6.0 models/auto/configuration_auto.py AutoConfig.from_pretrained).
    """
    try:
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        name, own_code = config.get("model_type"), (config.get("auto_map") or {}).get("AutoConfig")
    except (OSError, ValueError, AttributeError):
        return  # Another check finds this.
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if isinstance(name, str) and name in CONFIG_MAPPING:
        return
    if own_code:
        if not may_run_code:
            raise CodeNotAllowedError(str(own_code))
    elif isinstance(name, str):
        raise ArchitectureUnknownError(f"{transformers.__version__} {name}")
    elif int(transformers.__version__.partition(".")[0]) > 4:
        # Earlier versions look for a known name in the folder's path.
        raise ClassMissingError
