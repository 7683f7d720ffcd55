"""How far a run is with its data, in words; the page and the command line say the same."""

from app.text import t
from backend.runs.records import Preparing


def preparing_words(preparing: Preparing, lang: str) -> str:
    """What node 0 is doing to the data, as one line."""
    done, total = f"{preparing.done:,}", "?" if preparing.total is None else f"{preparing.total:,}"
    return t(lang, "monitor.preparing", stage=t(lang, f"monitor.preparing.{preparing.stage}", done=done, total=total))
