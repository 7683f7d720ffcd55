"""Write docs/causes.en.md and docs/causes.zh.md from the catalogue of causes.

python -m tools.write_causes        (make docs)
"""

from collections import Counter
from pathlib import Path

from app.text import LANGUAGES, t
from backend.runs.diagnosis.cause_catalogue import Cause, causes

FOLDER = Path(__file__).parents[1] / "docs"
_LANGUAGES = {"en": "English", "zh": "中文"}
_VALUES = dict.fromkeys(("detail", "keys", "interface", "wanted", "operation", "ranks", "waited_s", "waiting"), "…")


def page(lang: str) -> str:
    """Return the table of all causes in one language, as Markdown."""
    other = next(name for name in LANGUAGES if name != lang)
    counts = Counter(_first_caught(cause) for cause in causes())
    lead = t(lang, "causes.lead", count=len(causes()), **counts)
    parts = [f"# {t(lang, 'causes.title')}", f"[{_LANGUAGES[other]}](causes.{other}.md)", lead, t(lang, "causes.made")]
    for area in dict.fromkeys(cause.area for cause in causes()):
        rows = [_row(lang, cause) for cause in causes() if cause.area == area]
        head = [t(lang, f"causes.column.{name}") for name in ("cause", "fix", "checked", "code")]
        lines = [_line(head), _line(["---"] * len(head)), *map(_line, rows)]
        parts += [f"## {t(lang, f'causes.area.{area}')}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def _row(lang: str, cause: Cause) -> list[str]:
    values = {"node": t(lang, "causes.node"), **_VALUES}
    codes = ", ".join(f"`{code}`" for code in cause.checked)
    checked = t(lang, f"causes.found.{_first_caught(cause)}", codes=codes)
    message = t(lang, f"problem.{cause.code}", **values).removesuffix(": …").removesuffix("：…")
    return [message, t(lang, f"problem.{cause.code}.fix", **values), checked, f"[`{cause.code}`]({cause.source})"]


def _first_caught(cause: Cause) -> str:
    if cause.checked:
        return "before"
    return "late" if cause.late else "start"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


if __name__ == "__main__":
    for language in LANGUAGES:
        (FOLDER / f"causes.{language}.md").write_text(page(language), encoding="utf-8")
