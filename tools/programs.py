"""Where the real engines are, as far as this machine has them."""

import os
from pathlib import Path

NODE_ENVIRONMENT = Path(__file__).parents[1] / ".venv-node"
"""Has torch and the real LLaMA-Factory."""
NODE_PYTHON = NODE_ENVIRONMENT / "bin" / "python"

MCORE_ADAPTER = "MEGABOARD_MCORE_ADAPTER"
SWIFT = "MEGABOARD_SWIFT_PYTHON"


def mcore_adapter_source() -> str | None:
    """mcore_adapter's src folder (github.com/alibaba/ROLL; it is not on PyPI)."""
    return os.environ.get(MCORE_ADAPTER)


def swift_python() -> str | None:
    """An interpreter whose environment has ms-swift: the one named, else what `make engines` put there."""
    built = NODE_PYTHON.with_name("swift-python")
    return os.environ.get(SWIFT) or (str(built) if built.exists() else None)
