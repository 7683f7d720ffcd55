"""`megaboard estimate` and `megaboard plan`: the cost of a job, and its legal plans."""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from app.cli.output import DONE, FAILED, WRONG_INPUT, print_json, print_object, print_problems
from app.cli.tables import estimate_text, plans_text, strategies_text
from app.home import home_path
from app.jobfile import base_folder, load_json, open_text, read_job, read_mapping, refuse_errors, resolve_job
from app.text import render_problem, t
from app.text.plans import all_plans, reason_words, why_not_words
from backend.estimate import (
    Estimate,
    estimate,
    much_padding,
    near_the_limit,
    over_host_memory,
    over_memory,
    to_json,
    waits_for_host,
)
from backend.job.batch import planned_batch
from backend.job.job import Job
from backend.job.mapping import MAXIMUM_TEXT
from backend.job.problems import Problem, ProblemsError, errors
from backend.job.rules import check
from backend.planning import (
    Candidate,
    Plans,
    Strategy,
    parse_sizes,
    recommended,
    smallest_nodes,
    strategies,
    tokens_per_s,
    unequal_stages,
    why_not,
)
from backend.planning.space import SIZES
from backend.planning.why_not import SHORT

DEFAULT_TOP = 20
"""Plans in the table without --top."""


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `estimate` or `plan`."""
    if name == "estimate":
        parser.add_argument("files", nargs="+", metavar="FILE", help=t(lang, "cli.file.help"))
        form = parser.add_mutually_exclusive_group()
        form.add_argument("--json", action="store_true", help=t(lang, "cli.estimate.json.help"))
        form.add_argument("--jsonl", action="store_true", help=t(lang, "cli.estimate.jsonl.help"))
        parser.set_defaults(run=run_estimate)
        return
    parser.add_argument("file", metavar="FILE", help=t(lang, "cli.file.help"))
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--top", type=int, metavar="N", help=t(lang, "cli.plan.top.help"))
    form.add_argument("--why-not", metavar="SIZES", help=t(lang, "cli.plan.why_not.help"))
    form.add_argument("--strategies", action="store_true", help=t(lang, "cli.plan.strategies.help"))
    parser.add_argument("--json", action="store_true", help=t(lang, "cli.json.help"))
    parser.set_defaults(run=run_plan)


def run_estimate(args: argparse.Namespace, lang: str) -> int:
    """Print the estimate of every file, as tables or JSON. Returns 2 when a job is wrong, 1 when one has no figures."""
    if args.jsonl:
        for number, line in enumerate(_lines(args.files), 1):
            print_json(_to_json(_estimate(partial(_parse_line, line), Path.cwd(), str(number)), lang), compact=True)
        return DONE
    answers, status = [], DONE
    for source in args.files:
        result = _estimate(partial(read_mapping, source), base_folder(source), source)
        status = max(status, WRONG_INPUT if errors(result.problems) else DONE if result.figures else FAILED)
        if args.json:
            answers.append(_to_json(result, lang))
            continue
        print_problems(lang, result.problems)
        if result.job and result.figures:
            print(estimate_text(result.job, result.figures, lang))
    if args.json:
        print_json(answers if len(answers) > 1 else answers[0])
    return status


def run_plan(args: argparse.Namespace, lang: str) -> int:
    """Print the legal plans, best first. Returns 1 when there is none, 2 when every plan has an error."""
    job, problems = read_job(args.file, home_path())
    try:
        plans = all_plans(job)
    except ProblemsError as error:
        raise ProblemsError(_with_remarks(error.problems, [*problems, *check(job)])) from error
    problems += _problems_of_every_plan(job, plans)
    print_problems(lang, problems)
    status = _print_answer(job, plans, problems, args, lang)
    return WRONG_INPUT if errors(problems) else status


def _problems_of_every_plan(job: Job, plans: Plans) -> list[Problem]:
    """Return the job's problems that no other plan solves: errors of the best plan, and those of the learning rate.

    All plans have the same global batch, so a problem of the learning rate holds for all of them.
    """
    best = {(problem.code, problem.field) for problem in plans[0].warnings} if len(plans) else set()
    return [
        problem
        for problem in check(job)
        if problem.field == "training.learning_rate"
        or (problem.severity == "error" and (problem.code, problem.field) in best)
    ]


def _print_answer(job: Job, plans: Plans, problems: list[Problem], args: argparse.Namespace, lang: str) -> int:
    rendered = {"problems": [render_problem(lang, problem) for problem in problems]}
    if args.strategies:
        return _print_strategies(job, rendered if args.json else None, lang)
    if args.why_not is not None:
        return _print_why_not(job, plans, args.why_not, lang, as_json=args.json)
    if args.top is not None and args.top < 0:
        raise ProblemsError([Problem(code="too_small", field="--top", values={"value": args.top, "limit": 0})])
    top = args.top if args.top is not None else len(plans) if args.json else DEFAULT_TOP
    ranks = range(min(len(plans), top))
    if args.json:
        # One by one: there may be hundreds of thousands.
        counts = {"count": len(plans), "recommended": recommended(plans), "rejected": dict(plans.rejected)}
        first = {**counts, **rendered, **_smallest_json(job, plans)}
        print_object(first, "plans", (_plan_json(plans[rank], lang) for rank in ranks))
    else:
        print(plans_text([plans[rank] for rank in ranks], plans, lang))
    return DONE if len(plans) else FAILED


def _smallest_json(job: Job, plans: Plans) -> dict[str, Any]:
    """Return the nodes with the least GPU memory, and the best plan without them. Empty when all nodes are alike."""
    smallest = smallest_nodes(job, plans)
    if smallest is None:
        return {}
    without = smallest.without and {
        "nodes": smallest.others,
        "edits": dict(smallest.without.edits),
        "tokens_per_s": tokens_per_s(smallest.without),
    }
    values = {"nodes": list(smallest.nodes), "gpu_memory_gib": smallest.least_gib, "others_gib": smallest.others_gib}
    return {"smallest": {**values, "helps": smallest.helps, "without": without}}


def _print_why_not(job: Job, plans: Plans, sizes: str, lang: str, *, as_json: bool) -> int:
    answer = why_not(job, parse_sizes(sizes), plans)
    if not as_json:
        print(why_not_words(answer, plans, lang))
        return DONE
    cost = answer.cost and {
        "over_gib": answer.cost.over_gib,
        "over_host_gib": answer.cost.over_host_gib,
        "slower": answer.cost.slower,
        "part": answer.cost.part,
    }
    print_json({
        "problems": [render_problem(lang, problem) for problem in answer.problems],
        "rank": None if answer.rank is None else answer.rank + 1,
        "cost": cost,
        "plan": _plan_json(answer.best, lang) if answer.best else None,
        "legal": {SHORT[path]: list(legal) for path, legal in answer.legal.items()},
        "nearest": _plan_json(answer.nearest, lang) if answer.nearest else None,
    })  # fmt: skip
    return DONE


def _print_strategies(job: Job, first: Mapping[str, Any] | None, lang: str) -> int:
    """Print the best plan of each strategy: as JSON that begins with `first`, or as a table where that is None."""
    rows = strategies(job)
    if first is not None:
        batches = {"global_batch_size": rows[0].global_batch, "job_global_batch_size": planned_batch(job)}
        print_json({**first, **batches, "strategies": [_strategy_json(row, lang) for row in rows]})
    else:
        print(strategies_text(job, rows, lang))
    return DONE if any(row.best for row in rows) else FAILED


def _strategy_json(row: Strategy, lang: str) -> dict[str, Any]:
    return {
        "strategy": row.key,
        "engine": row.engine,
        "method": row.method,
        "fits": row.fits,
        "recommended": row.recommended,
        "memory_gib": row.memory_gib,
        "tokens_per_s_per_gpu": row.tokens_per_s_per_gpu,
        "hours": row.hours,
        "reason": {"code": row.reason, "message": reason_words(row, lang)},
        "plan": _plan_json(row.best, lang) if row.best else None,
    }


@dataclass(kw_only=True, slots=True)
class _Result:
    """One job, its estimate and its problems."""

    name: str
    """The job's own name, else its file or the number of its line."""
    job: Job | None = None
    figures: Estimate | None = None
    problems: list[Problem] = field(default_factory=list)


def _estimate(read: Callable[[], Mapping[str, Any]], folder: Path, fallback_name: str) -> _Result:
    result = _Result(name=fallback_name)
    try:
        mapping = read()
        if isinstance(name := mapping.get("name"), str):
            result.name = name
        job, result.problems = resolve_job(mapping, home_path(), folder)
        result.job = job
        result.problems += check(job)
        refuse_errors(result.problems)
        result.figures = figures = estimate(job)
        for warnings in (over_memory, near_the_limit, over_host_memory, much_padding, unequal_stages, waits_for_host):
            result.problems += warnings(job, figures)
    except ProblemsError as error:
        result.problems = _with_remarks(error.problems, result.problems)
    return result


def _with_remarks(refusal: Iterable[Problem], remarks: list[Problem]) -> list[Problem]:
    """Return why there are no figures. Where that is no error, the other remarks about the job come first."""
    refusal = list(refusal)
    return refusal if errors(refusal) else [*remarks, *(problem for problem in refusal if problem not in remarks)]


def _plan_json(candidate: Candidate, lang: str) -> dict[str, Any]:
    figures, parallel = candidate.estimate, candidate.job.parallel
    problems = [*candidate.warnings, *over_memory(candidate.job, figures), *over_host_memory(candidate.job, figures)]
    return {
        **to_json(figures, (render_problem(lang, problem) for problem in problems)),
        "parallel": {name: getattr(parallel, name) if candidate.job.traits.is_megatron else 1 for name in SIZES},
        "engine": candidate.job.engine,
        "micro_batch_size": candidate.job.training.micro_batch_size,
        "recompute": candidate.job.recompute,
        "is_pareto": candidate.is_pareto,
        "edits": dict(candidate.edits),
    }


def _to_json(result: _Result, lang: str) -> dict[str, Any]:
    return to_json(result.figures, (render_problem(lang, problem) for problem in result.problems), name=result.name)


def _parse_line(line: str) -> Mapping[str, Any]:
    if len(line) > MAXIMUM_TEXT:
        raise ProblemsError([Problem(code="file_too_large", values={"limit": MAXIMUM_TEXT})])
    try:
        mapping = load_json(line)
    except json.JSONDecodeError as error:
        values = {"column": error.colno, "reason": error.msg}
        raise ProblemsError([Problem(code="bad_json_line", values=values)]) from error
    if not isinstance(mapping, dict):
        raise ProblemsError([Problem(code="not_a_mapping")])
    return mapping


def _lines(sources: Iterable[str]) -> Iterator[str]:
    """Yield each line that is not blank as soon as it arrives: the writer of a pipe may wait for an answer.

    A line longer than MAXIMUM_TEXT is cut to one character more, so that the parser refuses it.
    """
    for source in sources:
        with open_text(source) as file:
            while chunk := file.readline(MAXIMUM_TEXT + 1):
                line = chunk
                while chunk and not chunk.endswith("\n"):  # skip the rest of a line that is too long
                    chunk = file.readline(MAXIMUM_TEXT + 1)
                if line.strip():
                    yield line
