"""`megaboard download`: download a job's model or a data set from its hub, and copy it to all nodes."""

import argparse
import sys

from app.cli.common import open_services, preflight, read_launchable_job
from app.cli.copy_files import copy_missing
from app.cli.host_keys import add_host_key_option
from app.cli.output import DONE, FAILED, print_problems
from app.cli.secret_input import add_secret_option, take_secrets
from app.text import t

MB = 1e6


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `download`."""
    parser.add_argument("file", metavar="FILE", help=t(lang, "cli.file.help"))
    parser.add_argument("--dataset", metavar="OWNER/NAME", help=t(lang, "cli.download.dataset.help"))
    add_secret_option(parser, lang)
    add_host_key_option(parser, lang)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """Download to node 0, copy what the other nodes lack, and check. Returns 1 if the job still cannot be launched."""
    checked = read_launchable_job(args.file, lang)
    with open_services() as services:
        take_secrets(args, lang, services.audit, job=checked.job.name)
        shown = -1

        def show_progress(done: int, total: int) -> None:
            nonlocal shown
            percent = int(100 * done / total) if total else 0
            if percent != shown:
                shown = percent
                line = t(lang, "cli.download.progress", done=round(done / MB), total=round(total / MB), percent=percent)
                print(line, file=sys.stderr, flush=True)

        print_problems(lang, services.controller.tasks.download(checked.job, show_progress, args.dataset))
        print(t(lang, "cli.download.done"), flush=True)
        report = preflight(services, checked, args.accept_host_key, lang)
        copy_missing(services, checked.job, report, lang)
        report = services.controller.preflight(checked)
    print_problems(lang, report.problems)
    return FAILED if report.problems else DONE
