"""`megaboard wheels`: download the packages of the job's engine into a folder, for nodes without internet."""

import argparse
import sys
from pathlib import Path

from app.cli.output import DONE, printable
from app.home import home_path
from app.jobfile import read_job, refuse_errors
from app.text import t
from backend.runs.api import download_wheels


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `wheels`."""
    parser.add_argument("file", metavar="FILE", help=t(lang, "cli.file.help"))
    parser.add_argument("--out", metavar="FOLDER", required=True, type=Path, help=t(lang, "cli.wheels.out.help"))
    parser.add_argument("--python", metavar="VERSION", help=t(lang, "cli.wheels.python.help"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """Download, and say what to do with the folder."""
    job, problems = read_job(args.file, home_path())
    refuse_errors(problems)

    def report(line: str) -> None:
        print(printable(line), file=sys.stderr, flush=True)

    made = download_wheels(job, args.out, report, args.python)
    values = {"name": made.name, "python": made.python, "files": made.files, "size": f"{made.size / 2**30:.1f}"}
    print(t(lang, "cli.wheels.done", folder=args.out, **values))
    return DONE
