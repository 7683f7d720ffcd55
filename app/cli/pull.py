"""`megaboard pull`: pull or load the container image of a job on all nodes."""

import argparse
import sys

from app.cli.common import open_services, preflight, read_launchable_job
from app.cli.host_keys import add_host_key_option
from app.cli.output import DONE, FAILED, print_problems
from app.text import t


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `pull`."""
    parser.add_argument("file", metavar="FILE", help=t(lang, "cli.file.help"))
    parser.add_argument("--archive", metavar="PATH", help=t(lang, "cli.pull.archive.help"))
    add_host_key_option(parser, lang)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """Pull the image on every node, then check the nodes. Returns 1 if the job still cannot be launched."""
    checked = read_launchable_job(args.file, lang)
    with open_services() as services:
        shown = (0, 0)

        def show_progress(done: int, total: int) -> None:
            nonlocal shown
            if total and (done, total) != shown:
                shown = done, total
                print(t(lang, "cli.pull.progress", done=done, total=total), file=sys.stderr, flush=True)

        print_problems(lang, services.controller.tasks.pull_image(checked.job, show_progress, args.archive))
        print(t(lang, "cli.pull.done"), flush=True)
        report = preflight(services, checked, args.accept_host_key, lang)
    print_problems(lang, report.problems)
    return FAILED if report.problems else DONE
