"""Paths of the real engines that this machine has."""

import os
from pathlib import Path

NODE_ENVIRONMENT = Path(__file__).parents[1] / ".venv-node"
"""Interpreter with torch and the real LLaMA-Factory."""
NODE_PYTHON = NODE_ENVIRONMENT / "bin" / "python"
NEWER_PYTHON = NODE_PYTHON.with_name("newer-python")
"""Interpreter with the transformers of requirements/newer.in, if `make engines` has built it."""

MCORE_ADAPTER = "MEGABOARD_MCORE_ADAPTER"
SWIFT = "MEGABOARD_SWIFT_PYTHON"
LLAMAFACTORY_MAIN = "MEGABOARD_LLAMAFACTORY_MAIN"


def mcore_adapter_source() -> str | None:
    """Return the source folder of mcore_adapter (github.com/alibaba/ROLL; it is not on PyPI)."""
    return os.environ.get(MCORE_ADAPTER)


def llamafactory_main_source() -> str | None:
    """Return the src folder of a checkout of LLaMA-Factory's main branch, the next release."""
    return os.environ.get(LLAMAFACTORY_MAIN)


def swift_python() -> str | None:
    """Return an interpreter whose environment has ms-swift: the one in the variable, else that of `make engines`."""
    built_python = NODE_PYTHON.with_name("swift-python")
    return os.environ.get(SWIFT) or (str(built_python) if built_python.exists() else None)
