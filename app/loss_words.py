"""The losses that an event of a run tells, for the page and for messages."""

from collections.abc import Mapping
from typing import Any


def written_losses(detail: Mapping[str, Any]) -> dict[str, str]:
    """Those there are, as the charts write them."""
    return {name: f"{float(detail[name]):.4g}" for name in ("loss", "usual") if name in detail}
