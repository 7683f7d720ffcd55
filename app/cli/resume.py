"""`megaboard resume`: the next attempt of a run that was stopped, failed or was lost."""

import argparse

from app.cli.common import accepted_warnings, add_warnings_option, find_run, opened_services, wait_for_end
from app.cli.notify import add_notify_option, addresses_to_tell, telling
from app.cli.output import DONE, number, table
from app.cli.secret_input import add_secret_option, refuse_in_queue, take_secrets, unlocked
from app.services import Services
from app.text import t


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Options of `resume`."""
    option = parser.add_argument
    option("run_id", metavar="RUN", help=t(lang, "cli.run.help"))
    option("--checkpoint", type=int, metavar="STEP", help=t(lang, "cli.resume.checkpoint.help"))
    option("--list", action="store_true", help=t(lang, "cli.resume.list.help"))
    option("--queue", action="store_true", help=t(lang, "cli.queue_option.help"))
    option("--wait", action="store_true", help=t(lang, "cli.launch.wait.help"))
    add_notify_option(parser, lang)
    add_warnings_option(parser, lang)
    add_secret_option(parser, lang)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """Resume; returns when every node has reported that it started, or with --wait when the run has ended."""
    refuse_in_queue(args)
    places = addresses_to_tell(args, stays=args.wait)
    with opened_services() as services, telling(services, places, lang):
        run = find_run(services, args.run_id)
        take_secrets(args, lang, services.audit, run=run)
        if args.list:
            _print_checkpoints(services, run, lang)
            return DONE
        resume = services.controller.resume
        how = {"checkpoint": args.checkpoint, "queue": args.queue, "accepted_warnings": accepted_warnings(args)}
        unlocked(lang, services.audit, lambda: resume(run, **how))
        print(_what_was_done(services, run, lang, queue=args.queue), flush=True)
        return wait_for_end(services, run, lang) if args.wait else DONE


def _what_was_done(services: Services, run: str, lang: str, *, queue: bool) -> str:
    if queue:
        return t(lang, "cli.queued", run=run)
    attempt = services.controller.snapshot(run)
    words = {"run": run, "attempt": attempt.attempt, "step": attempt.checkpoint_step}
    return t(lang, "cli.resumed" if attempt.checkpoint_step else "cli.resumed.start", **words)


def _print_checkpoints(services: Services, run: str, lang: str) -> None:
    found = unlocked(lang, services.audit, lambda: services.controller.checkpoints(run))
    if not found.steps:
        print(t(lang, "cli.resume.none", folder=found.folder))
        return
    rows = []
    for step in reversed(found.steps):
        flaw = found.flaws.get(step)
        kind = "complete" if flaw is None else "damaged" if flaw.damaged else "incomplete"
        detail = "" if flaw is None else t(lang, "cli.resume.flaw", rank=flaw.rank, file=flaw.file)
        rows.append([number(step), t(lang, f"cli.resume.{kind}"), detail])
    head = [t(lang, f"cli.resume.{column}") for column in ("step", "state", "lacks")]
    print(table(head, rows, words={1, 2}))
