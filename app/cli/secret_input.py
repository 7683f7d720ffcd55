"""Read secrets and passphrases from the environment or a hidden prompt, never from arguments.

Every user of the machine can read the arguments of a process.
"""

import argparse
import getpass
import os
import sys
from collections.abc import Callable
from typing import TypeVar

from app.text import t
from app.web.audit import Audit
from backend.cluster.ssh import passphrases
from backend.cluster.ssh.passphrases import PASSPHRASES
from backend.job.problems import Problem, ProblemsError
from backend.runs.rank_secrets import FIELD, SECRETS, refuse

A = TypeVar("A")

TRIES = 3
"""Number of prompts for a passphrase."""


def add_secret_option(parser: argparse.ArgumentParser, lang: str) -> None:
    """Add `--secret NAME`, which may be repeated."""
    parser.add_argument("--secret", action="append", default=[], metavar="NAME", help=t(lang, "cli.secret.help"))


def take_secrets(args: argparse.Namespace, lang: str, audit: Audit, **about: str) -> None:
    """Keep the secrets that --secret names in memory. The audit log gets each name and `about`, the job or the run.

    Raises ProblemsError: secret_in_argument, secret_not_given, audit_failed, and those of Secrets.put.
    """
    for name in args.secret:
        if "=" in name:
            raise ProblemsError([Problem(code="secret_in_argument", field=FIELD, values={"name": name.split("=")[0]})])
        value = os.environ.get(name)
        if value is None and sys.stdin.isatty():
            value = getpass.getpass(t(lang, "cli.secret.ask", name=name))
        if value is None:
            raise ProblemsError([Problem(code="secret_not_given", field=FIELD, values={"name": name})])
        refuse(name, value.strip())
        audit.record("put_secret", name=name, **about)
        SECRETS.put(name, value.strip())


def refuse_in_queue(args: argparse.Namespace) -> None:
    """Raise ProblemsError(secret_in_queue) for secrets of a run that another process may start later."""
    if args.queue and args.secret and not args.wait:
        raise ProblemsError([Problem(code="secret_in_queue", field=FIELD, values={"name": args.secret[0]})])


def with_passphrases(lang: str, audit: Audit, call: Callable[[], A], action: str = "unlock_key") -> A:
    """Return the result of `call`. At a terminal, read the passphrases that it lacks and call it again.

    `action` is the name of each unlocking in the audit log.
    """
    for _ in range(TRIES):
        try:
            answer = call()
            locked = _locked(getattr(answer, "problems", ()))
        except ProblemsError as error:
            locked = _locked(error.problems)
            if not locked or not sys.stdin.isatty():
                raise
        else:
            if not locked or not sys.stdin.isatty():
                return answer
        for path in locked:
            audit.record(action, identity_file=path)
            PASSPHRASES.put(path, getpass.getpass(t(lang, "cli.passphrase.ask", path=path)))
    return call()


def _locked(problems: tuple[Problem, ...]) -> list[str]:
    return sorted({str(problem.values["identity_file"]) for problem in problems if problem.code in passphrases.CODES})
