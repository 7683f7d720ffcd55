"""Copying the model and the data that nodes lack, told on a terminal."""

import sys

from app.cli_output import print_problems
from app.copy_words import copy_words
from app.i18n import t
from app.services import Services
from backend.job.job import Job
from backend.jobs.checkup import PreflightReport
from backend.jobs.copying import find_missing

MIB = 1 << 20


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
