"""`megaboard install`: make the Python environment of the job's engine on all nodes."""

import argparse
import copy
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.cli.common import open_services, preflight
from app.cli.host_keys import add_host_key_option, ask_with_keys
from app.cli.output import DONE, FAILED, print_problems, printable
from app.home import home_path
from app.jobfile import read_job, read_mapping, refuse_errors
from app.text import t
from backend.engines import CheckedJob, check_all
from backend.job.mapping import dump_mapping
from backend.job.problems import errors
from backend.runs.api import Installed, check_installation, with_python


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `install`."""
    parser.add_argument("file", metavar="FILE", help=t(lang, "cli.file.help"))
    parser.add_argument("--write", action="store_true", help=t(lang, "cli.install.write.help"))
    add_host_key_option(parser, lang)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """Install, print the interpreter, and check the nodes if the job is complete. Returns 1 if the check fails."""
    job, problems = read_job(args.file, home_path())
    refuse_errors([*problems, *check_installation(job)])
    with open_services() as services:
        shown: dict[str, str] = {}

        def show_progress(done: int, total: int, lines: Mapping[str, str]) -> None:
            for node, line in lines.items():
                if shown.get(node) != line:
                    shown[node] = line
                    words = t(lang, "cli.install.progress", node=node, done=done, total=total, line=printable(line))
                    print(words, file=sys.stderr, flush=True)

        # The host keys are accepted with the first question to the nodes.
        ask_with_keys(services, services.controller.reach, job, args.accept_host_key, lang)
        installed = services.controller.tasks.install(job, show_progress)
        print_problems(lang, installed.problems)
        print(t(lang, "cli.install.done", name=installed.name, python=installed.python), flush=True)
        ready = with_python(job, installed)
        if args.write:
            written = write_python(Path(args.file), installed)
            print(t(lang, "cli.install.written" if written else "cli.install.not_written", file=args.file))
        else:
            print(t(lang, "cli.install.edit"))
            for path, value in installed.edit.items():
                print(f"  {path}: {value}")
        if errors(check_all(ready)):
            return DONE
        report = preflight(services, CheckedJob(ready), args.accept_host_key, lang)
    print_problems(lang, report.problems)
    return FAILED if report.problems else DONE


def write_python(file: Path, installed: Installed) -> bool:
    """Write the interpreter into a job file. False, and no change, if the cluster or a host is not in that file."""
    mapping: Any = copy.deepcopy(dict(read_mapping(str(file))))
    for path, value in installed.edit.items():
        *owners, name = re.findall(r"[^.\[\]]+", path)
        parent = mapping
        for owner in owners:
            if isinstance(parent, list):
                parent = parent[int(owner)] if int(owner) < len(parent) else None
            elif isinstance(parent, dict):
                parent = parent.setdefault(owner, {})
        if not isinstance(parent, dict):
            return False
        parent[name] = value
    part = file.with_name(f"{file.name}.part")
    part.write_text(dump_mapping(mapping), encoding="utf-8")
    part.replace(file)
    return True
