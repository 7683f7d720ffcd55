"""Part of the program engine_args.py: what is wrong with the engine's environment itself."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

COMPILED = ("flash_attn", "transformer_engine.pytorch", "torchvision", "torchaudio", "bitsandbytes")
"""Packages with compiled parts. transformers imports most of them where they are installed, even if a run does not use
them."""


def faults() -> dict[str, Any]:
    """Return what is wrong with the environment itself: `packages`, `gpu`. Empty if nothing is."""
    problems = {"packages": broken_packages(), "gpu": gpu_without_code()}
    return {name: value for name, value in problems.items() if value}


def broken_packages() -> dict[str, str]:
    """Return package -> its error, for the installed compiled packages that cannot be imported."""
    broken = {}
    for name in COMPILED:
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            continue
        try:
            importlib.import_module(name)
        except Exception as error:
            broken[name.partition(".")[0]] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    return broken


def gpu_without_code() -> str:
    """Return the first GPU for which torch has no code, with what torch has. Empty if there is none."""
    try:
        import torch

        if not torch.cuda.is_available():
            return ""
        known = torch.cuda.get_arch_list()
        own = [torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())]
    except (ImportError, AttributeError, OSError, RuntimeError, AssertionError):
        return ""
    lacking = next((capability for capability in own if not has_code(capability, known)), None)
    return f"sm_{lacking[0]}{lacking[1]}: {' '.join(known)}"[:300] if lacking and known else ""


def has_code(capability: tuple[int, int], known: list[str]) -> bool:
    """Return whether a build runs on a GPU: with code of its major version, or with older PTX.

    `known` is torch's list, such as sm_86 and compute_90
    (https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc/index.html#gpu-feature-list).
    """
    for kind, _, digits in (name.partition("_") for name in known):
        number = digits.rstrip("af")
        if not number.isdigit():
            continue
        major, minor = divmod(int(number), 10)
        if kind == "compute" and (major, minor) <= capability:
            return True
        if kind == "sm" and major == capability[0] and minor <= capability[1]:
            return True
    return False
