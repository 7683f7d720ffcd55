"""Where the real engines are, as far as this machine has them."""

import os
from pathlib import Path

LLAMAFACTORY_PYTHON = Path(__file__).parents[2] / ".venv-node" / "bin" / "python"
MCORE_ADAPTER = "MEGABOARD_MCORE_ADAPTER"
SWIFT = "MEGABOARD_SWIFT_PYTHON"


def mcore_adapter_source() -> str | None:
    """mcore_adapter's src folder (github.com/alibaba/ROLL; it is not on PyPI)."""
    return os.environ.get(MCORE_ADAPTER)


def swift_python() -> str | None:
    """An interpreter whose environment has ms-swift."""
    return os.environ.get(SWIFT)
