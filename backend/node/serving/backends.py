"""Choice of the program that generates."""

from __future__ import annotations

import importlib.util
from typing import Callable


def choose_backend(
    devices: str, is_quantized: bool, has_adapter: bool, is_installed: Callable[[str], bool] | None = None
) -> str:
    """Return LLaMA-Factory's `infer_backend` for a model: vllm or sglang on GPUs where the node has them.

    Both refuse models that bitsandbytes quantizes (0.9.5 src/llamafactory/hparams/parser.py, get_infer_args), and
    SGLang takes no adapter here.
    """
    is_installed = is_installed or _is_installed
    if not devices or is_quantized:
        return "huggingface"
    if is_installed("vllm"):
        return "vllm"
    return "sglang" if is_installed("sglang") and not has_adapter else "huggingface"


def _is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
