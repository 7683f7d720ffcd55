"""`megaboard copy`: the model and the data that nodes lack, from node 0 to them."""

import argparse
import sys

from app.cli.common import launchable, opened_services, preflight
from app.cli.host_keys import add_host_key_option
from app.cli.output import DONE, FAILED, print_problems
from app.services import Services
from app.text import t
from app.text.copies import copy_words
from backend.job.job import Job
from backend.runs.api import PreflightReport, find_missing

MIB = 1 << 20


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Options of `copy`."""
    parser.add_argument("file", metavar="FILE", help=t(lang, "cli.file.help"))
    add_host_key_option(parser, lang)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """Copy what nodes lack; 1 when something stands against a launch afterwards."""
    checked = launchable(args.file, lang)
    with opened_services() as services:
        report = preflight(services, checked, args.accept_host_key, lang)
        if find_missing(report.checks) is None:
            print(t(lang, "cli.copy.nothing"))
        else:
            copy_missing(services, checked.job, report, lang)
            report = services.controller.preflight(checked)
    print_problems(lang, report.problems)
    return FAILED if report.problems else DONE


def copy_missing(services: Services, job: Job, report: PreflightReport, lang: str) -> None:
    """Copy what a preflight found missing, if anything, with a line of progress. Raises ProblemsError."""
    missing = find_missing(report.checks)
    if missing is None:
        return
    print(copy_words(job, missing, lang), flush=True)
    before = -1

    def tell(done: int, total: int) -> None:
        nonlocal before
        percent = 100 * done // total if total else 0
        if percent != before:
            before = percent
            words = t(lang, "cli.copy.progress", done=done // MIB, total=total // MIB, percent=percent)
            print(words, file=sys.stderr, flush=True)

    print_problems(lang, services.controller.copy_missing(job, report, tell))
    print(t(lang, "cli.copy.done"), flush=True)
