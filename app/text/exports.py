"""What an export made, in words; the page and the command line say the same."""

from app.text import t
from backend.runs.api import Exported


def export_words(made: Exported, lang: str) -> str:
    """Where the model is and what it was made from, as one line."""
    return t(lang, f"export.{made.kind}", folder=made.folder, node=made.node)
