"""Where a host of the job file leads: what the job says first, then ~/.ssh/config, then the defaults.

paramiko reads the file here, and nothing in it runs a program: ProxyCommand is refused, and a file with `Match exec` is
not used. Where the operator allows programs (MEGABOARD_SSH_PROGRAMS=1), OpenSSH itself is asked what it makes of the
file, `Match exec` and Include with it.
"""

import getpass
import logging
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko

from backend.cluster.node import NodeError
from backend.job.cluster import Host

_log = logging.getLogger(__name__)

ALLOWED = "MEGABOARD_SSH_PROGRAMS"
_USUAL_KEYS = frozenset(
    f"~/.ssh/id_{kind}" for kind in ("rsa", "ecdsa", "ecdsa_sk", "ed25519", "ed25519_sk", "xmss", "dsa")
)
"""What OpenSSH names where nothing is named."""
ASK_S = 20.0
"""For OpenSSH's answer, the programs of `Match exec` included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One host to connect to, after ~/.ssh/config."""

    node: str
    address: str
    port: int
    user: str
    identity_files: tuple[Path, ...]
    """Keys that were named; empty takes the agent's and the usual ones."""
    jump: str | None
    command: str | None = None
    """A shell command whose input and output are the connection."""


def display_name(host: Host) -> str:
    """What users know a node by."""
    return host.address if host.port == 22 else f"{host.address}:{host.port}"


def find_target(host: Host, ssh_folder: Path) -> Target:
    """Where `host` leads: what the job file says first, then ~/.ssh/config, then the defaults."""
    allowed = os.environ.get(ALLOWED) == "1"
    config = (_ask_openssh if allowed else _read_config)(ssh_folder / "config", host)
    command = None if host.proxy_jump else _given(config, "proxycommand")
    if command and not allowed:
        raise NodeError("proxy_command_refused", display_name(host), variable=ALLOWED)
    named = [host.identity_file] if host.identity_file else config.get("identityfile", [])
    return Target(
        node=display_name(host),
        address=config.get("hostname", host.address),
        port=host.port if host.port != 22 else int(config.get("port", 22)),
        user=host.user or config.get("user") or getpass.getuser(),
        identity_files=tuple(_expanded(name, host) for name in named),
        jump=host.proxy_jump or _given(config, "proxyjump"),
        command=command,
    )


def _expanded(name: str, host: Host) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError as error:  # `~name` of a user that this machine does not have
        node = display_name(host)
        raise NodeError(
            "bad_identity_file", node, key="identity_file", identity_file=name, detail=str(error)
        ) from error


def _given(config: Mapping[str, Any], key: str) -> str | None:
    value = config.get(key)
    return None if value in (None, "none") else str(value)


def _ask_openssh(path: Path, host: Host) -> Mapping[str, Any]:
    """What `ssh` makes of the file, with the programs that it runs for that."""
    login = ["-l", host.user] if host.user else []
    port = ["-p", str(host.port)] if host.port != 22 else []
    file = path if path.exists() else os.devnull
    try:
        answer = subprocess.run(
            ["ssh", "-G", "-F", file, *login, *port, "--", host.address],  # noqa: S607 - the user's own OpenSSH
            capture_output=True, text=True, timeout=ASK_S, stdin=subprocess.DEVNULL, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None) or str(error)
        raise NodeError("bad_ssh_config", display_name(host), path=str(path), detail=detail.strip()) from error
    config: dict[str, Any] = {"identityfile": []}
    for line in answer.stdout.splitlines():
        key, _, value = line.partition(" ")
        if key != "identityfile":
            config[key] = value
        elif value not in _USUAL_KEYS:
            config[key].append(value)
    if "proxycommand" in config:
        known = {"%": "%", "h": config["hostname"], "p": config["port"], "r": config["user"], "n": host.address}
        config["proxycommand"] = re.sub(r"%(.)", lambda at: known.get(at[1], at[0]), config["proxycommand"])
    return config


def _read_config(path: Path, host: Host) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    if re.search(r"^\s*match\b.*\bexec\b", text, re.IGNORECASE | re.MULTILINE):
        _log.warning("%s is not used: it has a `Match exec`, which would run a program", path)
        return {}
    try:
        found: Mapping[str, Any] = paramiko.SSHConfig.from_text(text).lookup(host.address)
        return found
    except paramiko.SSHException as error:
        raise NodeError("bad_ssh_config", display_name(host), path=str(path), detail=str(error)) from error
