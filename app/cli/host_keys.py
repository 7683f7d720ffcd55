"""Host keys at the command line: those of new hosts are printed, and accepted by their fingerprint."""

import argparse
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from app.cli.secret_input import unlocked
from app.services import A, Services, ask_nodes
from app.text import t
from backend.cluster.ssh.host_keys import HostKey

J = TypeVar("J")


def add_host_key_option(parser: argparse.ArgumentParser, lang: str) -> None:
    """`--accept-host-key`, once for each."""
    words = t(lang, "cli.accept.help")
    parser.add_argument("--accept-host-key", action="append", default=[], metavar="FINGERPRINT", help=words)


def accepted(services: Services, ask: Callable[[J], A], job: J, fingerprints: Collection[str], lang: str) -> A:
    """The answer, with passphrases typed where they lack, and those host keys remembered whose fingerprint is given."""
    return ask_nodes(services.controller, lambda: unlocked(lang, services.audit, lambda: ask(job)), fingerprints)


def print_host_keys(keys: Iterable[HostKey], lang: str) -> None:
    """The options that accept these keys."""
    options = " ".join(f"--accept-host-key {key.fingerprint}" for key in keys)
    print(t(lang, "cli.accept", options=options))
