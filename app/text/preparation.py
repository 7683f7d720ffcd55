"""Text of the data preparation of a run, for the page and the command line."""

from app.text import t
from backend.runs.records import Preparing


def preparing_words(preparing: Preparing, lang: str) -> str:
    """Return one line: what node 0 does with the data, and its progress."""
    done, total = f"{preparing.done:,}", "?" if preparing.total is None else f"{preparing.total:,}"
    return t(lang, "monitor.preparing", stage=t(lang, f"monitor.preparing.{preparing.stage}", done=done, total=total))
