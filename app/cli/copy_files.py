"""`megaboard copy`: copy missing models and data from node 0 to the other nodes."""

import argparse
import sys

from app.cli.common import open_services, preflight, read_launchable_job
from app.cli.host_keys import add_host_key_option
from app.cli.output import DONE, FAILED, print_problems
from app.services import Services
from app.text import t
from app.text.copies import copy_words
from backend.job.job import Job
from backend.runs.api import PreflightReport, find_missing

MIB = 1 << 20


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `copy`."""
    parser.add_argument("file", metavar="FILE", help=t(lang, "cli.file.help"))
    add_host_key_option(parser, lang)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """Copy missing files, then check again. Returns 1 if the job still cannot be launched."""
    checked = read_launchable_job(args.file, lang)
    with open_services() as services:
        report = preflight(services, checked, args.accept_host_key, lang)
        if find_missing(report.checks) is None:
            print(t(lang, "cli.copy.nothing"))
        else:
            copy_missing(services, checked.job, report, lang)
            report = services.controller.preflight(checked)
    print_problems(lang, report.problems)
    return FAILED if report.problems else DONE


def copy_missing(services: Services, job: Job, report: PreflightReport, lang: str) -> None:
    """Copy the files that the preflight found missing, if any, and print the progress. Raises ProblemsError."""
    missing = find_missing(report.checks)
    if missing is None:
        return
    print(copy_words(job, missing, lang), flush=True)
    shown = -1

    def show_progress(done: int, total: int) -> None:
        nonlocal shown
        percent = 100 * done // total if total else 0
        if percent != shown:
            shown = percent
            line = t(lang, "cli.copy.progress", done=done // MIB, total=total // MIB, percent=percent)
            print(line, file=sys.stderr, flush=True)

    print_problems(lang, services.controller.tasks.copy_missing(job, report, show_progress))
    print(t(lang, "cli.copy.done"), flush=True)
