"""Diagnosis of logs with a known cause: how many causes are named rightly, wrongly, or not at all.

    python -m benchmarks.diagnosis --cases FILE [--json]

FILE is a JSON list of cases with `id`, `excerpt` and, where it is known, `category`. An entry of the catalogue
(backend/runs/diagnosis/causes) says which category it means. Two causes that fit equally well count as no answer.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backend.runs.diagnosis.log_causes import is_only_consequence, matches, probable


def main(arguments: Sequence[str] | None = None) -> None:
    """Print `{id: category or null}` as JSON, or a table of the cases without a right answer; then the counts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnosis")
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    cases: list[dict[str, Any]] = json.loads(chosen.cases.read_text(encoding="utf-8"))
    answers = {case["id"]: category_of(case["excerpt"]) for case in cases}
    if chosen.json:
        print(json.dumps(answers, indent=1))
        return
    known = [case for case in cases if case.get("category")]
    wrong = [case for case in known if answers[case["id"]] not in (None, case["category"])]
    none = [case for case in known if answers[case["id"]] is None]
    for title, some in (("wrong", wrong), ("none", none)):
        for case in some:
            print(f"{title:6} {case['id']:32} {case['category']:24} {answers[case['id']] or ''}")
    right = len(known) - len(wrong) - len(none)
    for title, count in (("right", right), ("wrong", len(wrong)), ("none", len(none))):
        print(f"{title:6} {count:4} of {len(known)}  {count / max(1, len(known)):6.1%}")


def category_of(log: str) -> str | None:
    """Return the category of the cause that a single log shows; None if it shows none, or several equally well."""
    shown = probable(matches(log))
    if not shown:
        return "consequence_only" if is_only_consequence(log) else None
    categories = {match.cause.category for match in shown}
    return categories.pop() if len(categories) == 1 else None


if __name__ == "__main__":
    main()
