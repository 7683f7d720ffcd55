"""`megaboard watch HOST:OUTPUT_DIR`: monitor a training that the user's own script started."""

import argparse
import re
import sys
import time

from app.cli.common import open_services
from app.cli.host_keys import add_host_key_option, ask_with_keys, print_host_keys
from app.cli.notify import add_notify_option, addresses_to_notify, notifying
from app.cli.output import DONE, FAILED, number, print_problems
from app.services import Services
from app.text import t
from backend.job.problems import Problem, ProblemsError
from backend.runs.api import watched_job

POLL_EVERY_S = 2.0
_TARGET = re.compile(r"(?:(?P<user>[^@]+)@)?(?P<address>\[[^\]]+\]|[^:@]+):(?P<folder>.+)")


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `watch`."""
    option = parser.add_argument
    option("target", metavar="[USER@]HOST:OUTPUT_DIR", help=t(lang, "cli.watch.target.help"))
    option("--log", metavar="FILE", help=t(lang, "cli.watch.log.help"))
    option("--node", action="append", default=[], metavar="[USER@]HOST", help=t(lang, "cli.watch.node.help"))
    option("--port", type=int, default=22, help=t(lang, "cli.watch.port.help"))
    option("--key", metavar="FILE", help=t(lang, "cli.watch.key.help"))
    option("--jump", metavar="HOST", help=t(lang, "cli.watch.jump.help"))
    option("--detach", action="store_true", help=t(lang, "cli.watch.detach.help"))
    add_notify_option(parser, lang)
    add_host_key_option(parser, lang)
    parser.set_defaults(run=run_watch)


def run_watch(args: argparse.Namespace, lang: str) -> int:
    """Attach to the training and print its steps until Ctrl-C. With --detach, only the server reads it."""
    hosts, folder = read_target(args)
    job = watched_job(hosts, folder)
    addresses = addresses_to_notify(args, stays=not args.detach)
    with open_services() as services, notifying(services, addresses, lang):
        answer = ask_with_keys(services, services.controller.reach, job, args.accept_host_key, lang)
        if answer.unknown_host_keys:
            print_problems(lang, answer.problems)
            print_host_keys(answer.unknown_host_keys, lang)
            return FAILED
        run = services.controller.watch(job, args.log)
        print(t(lang, "cli.watched", run=run), flush=True)
        return DONE if args.detach else print_steps(services, run, lang)


def read_target(args: argparse.Namespace) -> tuple[list[dict[str, object]], str]:
    """Return the hosts, beginning with the one that has the folder, and the folder.

    Raises ProblemsError(bad_watch_target).
    """
    target = _TARGET.fullmatch(args.target)
    if target is None:
        raise ProblemsError([Problem(code="bad_watch_target", values={"target": args.target})])
    shared = {"port": args.port, "identity_file": args.key, "proxy_jump": args.jump}
    first = {"address": target["address"].strip("[]"), "user": target["user"]}
    others = [node.rpartition("@") for node in args.node]
    hosts = [first, *({"address": address, "user": user or target["user"]} for user, _, address in others)]
    return [{**host, **shared} for host in hosts], target["folder"]


def print_steps(services: Services, run: str, lang: str) -> int:
    """Print new steps until Ctrl-C or until the watching is stopped. The training continues."""
    printed = 0
    try:
        while not services.controller.wait(run, POLL_EVERY_S).is_final:
            for point in services.controller.points(run, after=printed):
                printed = point.seq
                values = {"step": point.step, "total": point.total_steps or "-", "loss": number(point.loss)}
                at = time.strftime("%H:%M:%S", time.localtime(point.time))
                print(t(lang, "cli.watch.step", time=at, step_s=number(point.step_s), **values), flush=True)
    except KeyboardInterrupt:
        print(t(lang, "cli.watch.left", run=run), file=sys.stderr)
    return DONE
