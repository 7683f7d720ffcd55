"""`megaboard check`: the checks before a launch, what the nodes are made of, and lines for the job file."""

import argparse
import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import Any

from app.cli.common import add_source_option, find_source, launchable, opened_services, preflight
from app.cli.host_keys import add_host_key_option, print_host_keys
from app.cli.output import DONE, FAILED, plain, print_json, print_problems, printable, table
from app.services import Services
from app.text import render_problem, t
from app.text.detected import proposal_notes, proposed_lines
from app.text.detected import table as facts_table
from backend.cluster.ssh.host_keys import HostKey
from backend.job.job import Job
from backend.job.mapping import dump_mapping
from backend.job.problems import Problem, ProblemsError
from backend.runs.api import NodeMemory, PreflightReport


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Options of `check`."""
    parser.add_argument("file", metavar="FILE", help=t(lang, "cli.file.help"))
    add_host_key_option(parser, lang)
    add_source_option(parser, lang)
    parser.add_argument("--json", action="store_true", help=t(lang, "cli.json.help"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """Preflight: a line a check; 1 when something stands against a launch."""
    checked = launchable(args.file, lang)
    with opened_services() as services:
        source = find_source(services, args.source)
        report = preflight(services, checked, args.accept_host_key, lang)
        if source is not None and not report.problems:
            report = _with_source(services, report, checked.job, source)
    if args.json:
        no_figures = [one for one in checked.remarks if one.code == "model_not_estimated"]
        print_json(report_json(report, checked.job, lang, no_figures))
    else:
        print_report(report, checked.job, lang)
    return FAILED if report.problems else DONE


def _with_source(
    services: Services, report: PreflightReport, job: Job, source: tuple[str, int | None]
) -> PreflightReport:
    """The report, with why the job cannot begin with the checkpoint."""
    try:
        services.controller.find_source(*source, job)
    except ProblemsError as error:
        return dataclasses.replace(report, problems=error.problems)
    return report


def print_report(report: PreflightReport, job: Job, lang: str) -> None:
    """Tables on standard output, what is wrong and what is proposed with its words."""
    found = nodes_of(report)
    if report.checks:
        head = [t(lang, f"cli.check.{column}") for column in ("check", "result")]
        print(table(head, _check_rows(report, lang), left=True))
    if found:
        head = [t(lang, key) for key in ("cli.check.fact", "wizard.found.node", "cli.check.found")]
        print("", table(head, _fact_rows(job, found, lang), left=True), sep="\n", end="\n\n")
    print_problems(lang, [*report.problems, *_warnings(report), *proposal_notes(job, found)])
    if lines := proposed_lines(job, found):
        print(t(lang, "cli.check.proposed"), printable(dump_mapping(lines)), sep="\n")
    if report.unknown_host_keys:
        print_host_keys(report.unknown_host_keys, lang)
    if not report.problems and report.warnings:
        print(t(lang, "cli.check.warned", count=len(report.warnings)))
    elif not report.problems:
        print(t(lang, "cli.check.green"))


def report_json(report: PreflightReport, job: Job, lang: str, no_figures: Iterable[Problem] = ()) -> dict[str, Any]:
    """The same as data: `nodes` as they were read, `proposed` as a part of the job file. `no_figures`: why."""
    checks = [
        {"check": one.name, "node": one.node, "rank": one.rank, "status": one.status, "found": dict(one.values)}
        for one in report.checks
    ]
    found = nodes_of(report)
    hosts = job.cluster.hosts
    return {
        "ready": not report.problems,
        "checks": checks,
        "nodes": [{"node": hosts[rank].name, "rank": rank, **plain(one)} for rank, one in found.items()],
        "proposed": proposed_lines(job, found),
        "problems": [render_problem(lang, one) for one in (*report.problems, *_warnings(report), *no_figures)],
        "unknown_host_keys": [_key(one) for one in report.unknown_host_keys],
    }


def nodes_of(report: PreflightReport) -> dict[int, NodeMemory]:
    """What the nodes are made of, by rank, as the Hardware step reads it."""
    return {rank: NodeMemory(survey=one, facts=report.facts.get(rank)) for rank, one in report.surveys.items()}


def _check_rows(report: PreflightReport, lang: str) -> list[list[str]]:
    """A row a check with how many nodes passed; the problems below name those that did not."""
    statuses: dict[str, Counter[str]] = {}
    for one in report.checks:
        statuses.setdefault(one.name, Counter())[t(lang, f"check.status.{one.status}")] += 1
    return [
        [t(lang, f"check.{name}"), ", ".join(f"{count} {status}" for status, count in counts.items())]
        for name, counts in statuses.items()
    ]


def _fact_rows(job: Job, found: dict[int, NodeMemory], lang: str) -> list[list[str]]:
    """A row a fact for all nodes of which it is true, so that an odd one stands out."""
    shown = facts_table(job, found, lang)
    rows = []
    for column, title in enumerate(shown["head"][1:], 1):
        nodes: dict[str, list[str]] = {}
        for row in shown["rows"]:
            nodes.setdefault(row[column], []).append(row[0])
        for value, names in nodes.items():
            is_all = len(names) == len(found) > 1
            rows.append([title, t(lang, "cli.check.all") if is_all else ", ".join(names), value])
            title = ""
    return rows


def _warnings(report: PreflightReport) -> list[Problem]:
    return [one.problem for one in report.checks if one.problem and one.problem not in report.problems]


def _key(key: HostKey) -> dict[str, Any]:
    return {"host": key.host, "port": key.port, "key_type": key.key_type, "fingerprint": key.fingerprint}
