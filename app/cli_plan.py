"""`megaboard estimate`, `plan` and `render`: everything that needs neither a cluster nor the page."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from app.cli_output import DONE, FAILED, WRONG_INPUT, print_json, print_problems
from app.cli_tables import AXES, estimate_text, plans_text
from app.home import home_path
from app.i18n import render_problem, t
from app.jobfile import STDIN, job_of, read_job, refuse_errors
from backend.engines import export
from backend.estimate import Estimate, estimate, over_host_memory, over_memory, to_json
from backend.job.job import Job
from backend.job.problems import Problem, ProblemsError, errors
from backend.job.rules import check
from backend.planning.enumerate import Candidate, enumerate_plans


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Options of the command."""
    if name == "estimate":
        parser.add_argument("files", nargs="+", metavar="FILE", help=t(lang, "cli.file.help"))
        form = parser.add_mutually_exclusive_group()
        form.add_argument("--json", action="store_true", help=t(lang, "cli.estimate.json.help"))
        form.add_argument("--jsonl", action="store_true", help=t(lang, "cli.estimate.jsonl.help"))
        parser.set_defaults(run=run_estimate)
        return
    parser.add_argument("file", metavar="FILE", help=t(lang, "cli.file.help"))
    if name == "plan":
        parser.add_argument("--top", type=int, metavar="N", help=t(lang, "cli.plan.top.help"))
        parser.add_argument("--json", action="store_true", help=t(lang, "cli.json.help"))
        parser.set_defaults(run=run_plan)
    else:
        parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=t(lang, "cli.render.out.help"))
        parser.set_defaults(run=run_render)


def run_estimate(chosen: argparse.Namespace, lang: str) -> int:
    """Estimate every file: a table each, or JSON; 2 when a job is wrong, 1 when there are no figures for it."""
    if chosen.jsonl:
        for answer in _answer_lines(_lines(chosen.files), lang):
            print_json(answer, compact=True)
        return DONE
    answers, status = [], DONE
    for source in chosen.files:
        figures, problems = _estimate(lambda source=source: read_job(source, home_path()))
        status = max(status, WRONG_INPUT if errors(problems) else DONE if figures else FAILED)
        if chosen.json:
            answers.append(_answer(figures, problems, lang, source))
            continue
        print_problems(lang, problems)
        if figures:
            print(estimate_text(figures, lang))
    if chosen.json:
        print_json(answers if len(answers) > 1 else answers[0])
    return status


def run_plan(chosen: argparse.Namespace, lang: str) -> int:
    """List the legal plans, best first; 1 when there is none."""
    job, problems = read_job(chosen.file, home_path())
    print_problems(lang, problems)
    found = enumerate_plans(job)
    shown = found.candidates if chosen.top is None else found.candidates[: max(0, chosen.top)]
    if chosen.json:
        plans = [_plan(one, lang) for one in shown]
        print_json({"count": len(found.candidates), "rejected": dict(found.rejected), "plans": plans})
    else:
        print(plans_text(shown, found, lang))
    return DONE if found.candidates else FAILED


def run_render(chosen: argparse.Namespace, lang: str) -> int:
    """Write the files that launch the job without Megaboard."""
    job, problems = read_job(chosen.file, home_path())
    print_problems(lang, problems)
    files = export(job, placeholders=True)
    try:
        for name, text in files.items():
            path = chosen.out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755 if name.endswith(".sh") else 0o644)
            print(path)
    except OSError as error:
        print(t(lang, "cli.error.cannot_write", path=chosen.out, reason=error.strerror), file=sys.stderr)
        return FAILED
    return DONE


def _estimate(read: Callable[[], tuple[Job, list[Problem]]]) -> tuple[Estimate | None, list[Problem]]:
    try:
        job, problems = read()
        problems = [*problems, *check(job)]
        refuse_errors(problems)
        figures = estimate(job)
        return figures, [*problems, *over_memory(figures), *over_host_memory(job, figures)]
    except ProblemsError as error:
        return None, list(error.problems)


def _plan(candidate: Candidate, lang: str) -> dict[str, Any]:
    figures = candidate.estimate
    problems = [*candidate.warnings, *over_memory(figures)]
    return {**_answer(figures, problems, lang, ""), "parallel": {axis: getattr(candidate, axis) for axis in AXES}}


def _answer(figures: Estimate | None, problems: list[Problem], lang: str, name: str) -> dict[str, Any]:
    return to_json(figures, (render_problem(lang, problem) for problem in problems), name=name)


def _answer_lines(lines: Iterable[str], lang: str) -> Iterator[dict[str, Any]]:
    """An answer for every line, in order, whatever the line holds."""
    home, folder = home_path(), Path.cwd()
    for number, line in enumerate(lines, 1):
        name = str(number)

        def read(line: str = line) -> tuple[Job, list[Problem]]:
            return job_of(_json_mapping(line), home, folder)

        figures, problems = _estimate(read)
        yield _answer(figures, problems, lang, name)


def _json_mapping(line: str) -> Mapping[str, Any]:
    try:
        mapping = json.loads(line)
    except (ValueError, RecursionError) as error:
        values = {"column": getattr(error, "colno", 1), "reason": getattr(error, "msg", type(error).__name__)}
        raise ProblemsError([Problem(code="bad_json_line", values=values)]) from error
    if not isinstance(mapping, dict):
        raise ProblemsError([Problem(code="not_a_mapping")])
    return mapping


def _lines(sources: Iterable[str]) -> Iterator[str]:
    """Lines as they come, so that a program at the other end of a pipe can ask and wait; blank ones are no question."""
    for source in sources:
        try:
            with sys.stdin if source == STDIN else open(source, encoding="utf-8") as file:
                yield from (line for line in file if line.strip())
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            problem = Problem(code="file_unreadable", values={"path": source, "reason": reason})
            raise ProblemsError([problem]) from error
