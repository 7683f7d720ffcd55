"""Text of an export, for the page and the command line."""

from app.text import t
from backend.runs.api import Exported


def export_words(exported: Exported, lang: str) -> str:
    """Return one line: where the model is, and from what it was made."""
    return t(lang, f"export.{exported.kind}", folder=exported.folder, node=exported.node)
