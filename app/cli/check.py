"""`megaboard check`: run the preflight, show the hardware of the nodes, and propose lines for the job file."""

import argparse
import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import Any

from app.cli.common import add_source_option, find_source, open_services, preflight, read_launchable_job
from app.cli.host_keys import add_host_key_option, print_host_keys
from app.cli.output import DONE, FAILED, print_json, print_problems, printable, table, to_json_data
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
    """Add the options of `check`."""
    parser.add_argument("file", metavar="FILE", help=t(lang, "cli.file.help"))
    add_host_key_option(parser, lang)
    add_source_option(parser, lang)
    parser.add_argument("--json", action="store_true", help=t(lang, "cli.json.help"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """Run the preflight and print its report. Returns 1 if the job cannot be launched."""
    checked = read_launchable_job(args.file, lang)
    with open_services() as services:
        source = find_source(services, args.source)
        report = preflight(services, checked, args.accept_host_key, lang)
        if source is not None and not report.problems:
            report = _with_source(services, report, checked.job, source)
    if args.json:
        no_figures = [remark for remark in checked.remarks if remark.code == "model_not_estimated"]
        print_json(report_json(report, checked.job, lang, no_figures))
    else:
        print_report(report, checked.job, lang)
    return FAILED if report.problems else DONE


def _with_source(
    services: Services, report: PreflightReport, job: Job, source: tuple[str, int | None]
) -> PreflightReport:
    """Return the report, with the problems if the job cannot start from the checkpoint."""
    try:
        services.controller.find_source(*source, job)
    except ProblemsError as error:
        return dataclasses.replace(report, problems=error.problems)
    return report


def print_report(report: PreflightReport, job: Job, lang: str) -> None:
    """Print tables of checks and hardware, the proposed lines, and the problems on standard error."""
    hardware = hardware_by_rank(report)
    if report.checks:
        head = [t(lang, f"cli.check.{column}") for column in ("check", "result")]
        print(table(head, _check_rows(report, lang), all_left=True))
    if hardware:
        head = [t(lang, key) for key in ("cli.check.fact", "wizard.found.node", "cli.check.found")]
        print("", table(head, _fact_rows(job, hardware, lang), all_left=True), sep="\n", end="\n\n")
    print_problems(lang, [*report.problems, *_warnings(report), *proposal_notes(job, hardware)])
    if lines := proposed_lines(job, hardware):
        print(t(lang, "cli.check.proposed"), printable(dump_mapping(lines)), sep="\n")
    if report.unknown_host_keys:
        print_host_keys(report.unknown_host_keys, lang)
    if not report.problems and report.warnings:
        print(t(lang, "cli.check.warned", count=len(report.warnings)))
    elif not report.problems:
        print(t(lang, "cli.check.green"))


def report_json(report: PreflightReport, job: Job, lang: str, no_figures: Iterable[Problem] = ()) -> dict[str, Any]:
    """Return the report as JSON data. `no_figures`: why there is no estimate."""
    checks = [
        {"check": row.name, "node": row.node, "rank": row.rank, "status": row.status, "found": dict(row.values)}
        for row in report.checks
    ]
    hardware = hardware_by_rank(report)
    hosts = job.cluster.connected_hosts
    return {
        "ready": not report.problems,
        "checks": checks,
        "nodes": [{"node": hosts[rank].name, "rank": rank, **_node_json(node)} for rank, node in hardware.items()],
        "proposed": proposed_lines(job, hardware),
        "problems": [render_problem(lang, problem) for problem in (*report.problems, *_warnings(report), *no_figures)],
        "unknown_host_keys": [_key(key) for key in report.unknown_host_keys],
    }


def hardware_by_rank(report: PreflightReport) -> dict[int, NodeMemory]:
    """Return the hardware and facts of the nodes by rank, in the form that the Hardware step uses."""
    return {
        rank: NodeMemory(hardware=machine, facts=report.facts.get(rank)) for rank, machine in report.hardware.items()
    }


def _node_json(node: NodeMemory) -> dict[str, Any]:
    return {"survey": to_json_data(node.hardware), "facts": to_json_data(node.facts)}


def _check_rows(report: PreflightReport, lang: str) -> list[list[str]]:
    """Return one row per check, with the number of nodes for each status."""
    statuses: dict[str, Counter[str]] = {}
    for check in report.checks:
        statuses.setdefault(check.name, Counter())[t(lang, f"check.status.{check.status}")] += 1
    return [
        [t(lang, f"check.{name}"), ", ".join(f"{count} {status}" for status, count in counts.items())]
        for name, counts in statuses.items()
    ]


def _fact_rows(job: Job, hardware: dict[int, NodeMemory], lang: str) -> list[list[str]]:
    """Return one row per fact and value, with the nodes that have it, so that a node that differs is easy to see."""
    facts = facts_table(job, hardware, lang)
    rows = []
    for column, title in enumerate(facts["head"][1:], 1):
        nodes: dict[str, list[str]] = {}
        for row in facts["rows"]:
            nodes.setdefault(row[column], []).append(row[0])
        for value, names in nodes.items():
            is_all = len(names) == len(hardware) > 1
            rows.append([title, t(lang, "cli.check.all") if is_all else ", ".join(names), value])
            title = ""
    return rows


def _warnings(report: PreflightReport) -> list[Problem]:
    return [check.problem for check in report.checks if check.problem and check.problem not in report.problems]


def _key(key: HostKey) -> dict[str, Any]:
    return {"host": key.host, "port": key.port, "key_type": key.key_type, "fingerprint": key.fingerprint}
