"""Writes the tables of docs/parity.*.md."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.parity.cases import CASES, ONE, PAIRS, Case
from benchmarks.parity.verdicts import Difference, difference
from benchmarks.parity.words import COLUMNS, EXPLAINED, PARTS

DOCS = Path(__file__).parents[2] / "docs"


def write_pages(results: Mapping[str, Any]) -> None:
    """Write the tables into the page, in both languages."""
    for number, language in enumerate(("en", "zh")):
        path = DOCS / f"parity.{language}.md"
        path.write_text(with_tables(path.read_text(encoding="utf-8"), results, number), encoding="utf-8")


def with_tables(text: str, results: Mapping[str, Any], language: int) -> str:
    """Return the page with new tables; `language` is 0 for English and 1 for Chinese."""
    pairs = [_row(results, pair.case, CASES[pair.case], pair.reference, pair.explained, language) for pair in PAIRS]
    cases = [_row(results, name, case, case.reference, case.explained, language) for name, case in CASES.items()]
    for name, rows in {"pairs": pairs, "cases": cases}.items():
        table = "\n".join([COLUMNS[language], "|---" * 7 + "|", *filter(None, rows)])
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        text = f"{text.partition(begin)[0]}{begin}\n{table}\n{end}{text.partition(end)[2]}"
    return text


def _row(results: Mapping[str, Any], name: str, case: Case, reference: str, explained: str, language: int) -> str:
    result, right = results.get(name), results.get(reference)
    if not result or not right or result["error"] or right["error"]:
        return ""
    first, last = result["steps"][0], result["steps"][-1]
    differs = difference(result["steps"], right["steps"])
    plan = case.plan if reference == case.reference else f"{case.group}, {case.plan} / {reference}"
    group = case.group if reference == case.reference else ""
    known = EXPLAINED[explained][language] if explained else ""
    cells = (
        group if case.plan == ONE or not group else "",
        plan,
        f"{first['loss']:.4f} → {last['loss']:.4f}",
        _percent(differs.loss),
        _percent(differs.gradient),
        _parts(differs, language),
        known,
    )
    return f"| {' | '.join(cells)} |"


def _percent(share: float) -> str:
    return "NaN" if share == float("inf") else "0" if share < 5e-8 else f"{100 * share:.2g}%"


def _parts(differs: Difference, language: int) -> str:
    return ", ".join(f"{PARTS[part][language]} {share:.3f}" for part, share in differs.parts.items())
