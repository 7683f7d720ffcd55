"""Host keys at the command line: print those of unknown hosts, and accept keys by their fingerprints."""

import argparse
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from app.cli.secret_input import with_passphrases
from app.services import A, Services, ask_nodes
from app.text import t
from backend.cluster.ssh.host_keys import HostKey

J = TypeVar("J")


def add_host_key_option(parser: argparse.ArgumentParser, lang: str) -> None:
    """Add `--accept-host-key`, which may be repeated."""
    text = t(lang, "cli.accept.help")
    parser.add_argument("--accept-host-key", action="append", default=[], metavar="FINGERPRINT", help=text)


def ask_with_keys(services: Services, ask: Callable[[J], A], job: J, fingerprints: Collection[str], lang: str) -> A:
    """Return the answer of the nodes to `ask(job)`. Read missing passphrases, and accept keys by their fingerprints."""
    return ask_nodes(
        services.controller, lambda: with_passphrases(lang, services.audit, lambda: ask(job)), fingerprints
    )


def print_host_keys(keys: Iterable[HostKey], lang: str) -> None:
    """Print the options that accept these keys."""
    options = " ".join(f"--accept-host-key {key.fingerprint}" for key in keys)
    print(t(lang, "cli.accept", options=options))
