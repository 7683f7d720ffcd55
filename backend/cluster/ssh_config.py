"""Where a host of the job file leads: what the job says first, then ~/.ssh/config, then the defaults.

paramiko reads the file here, and nothing in it runs a program: a host that a ProxyCommand reaches is refused, and one
whose settings hang on a `Match exec`. Where the operator allows programs (MEGABOARD_SSH_PROGRAMS=1), OpenSSH itself is
asked what it makes of the file, `Match exec` with it.
"""

import getpass
import glob
import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko

from backend.cluster.node import NodeError
from backend.job.cluster import Host

ALLOWED = "MEGABOARD_SSH_PROGRAMS"
_USUAL_KEYS = frozenset(
    f"~/.ssh/id_{kind}" for kind in ("rsa", "ecdsa", "ecdsa_sk", "ed25519", "ed25519_sk", "xmss", "dsa")
)
"""What OpenSSH names where nothing is named."""
ASK_S = 20.0
"""For OpenSSH's answer, the programs of `Match exec` included."""
_BY_EXEC = "megaboard-match-exec:"
"""Stands in place of what a `Match exec` sets, before the line of that."""
_EVERYBODY = "Host *"
"""What stands before the first Host holds for all."""
DEEPEST_INCLUDE = 16
"""OpenSSH's own limit."""
_WITHOUT_VALUE = frozenset({"all", "canonical", "final"})
"""Criteria of Match."""


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


def find_target(host: Host, ssh_folder: Path) -> Target:
    """Where `host` leads: what the job file says first, then ~/.ssh/config, then the defaults."""
    allowed = os.environ.get(ALLOWED) == "1"
    config = (_ask_openssh if allowed else _read_config)(ssh_folder / "config", host)
    command = None if host.proxy_jump else _given(config, "proxycommand")
    if command and not allowed:
        raise NodeError("proxy_command_refused", host.name, variable=ALLOWED)
    named = [host.identity_file] if host.identity_file else config.get("identityfile", [])
    return Target(
        node=host.name,
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
        raise NodeError(
            "bad_identity_file", host.name, key="identity_file", identity_file=name, detail=str(error)
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
        raise NodeError("bad_ssh_config", host.name, path=str(path), detail=detail.strip()) from error
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
        lines = _lines((path,), path.parent, _taken_from_file(host), {(path, _EVERYBODY, "")})
        found: Mapping[str, Any] = paramiko.SSHConfig.from_text("\n".join(lines)).lookup(host.address)
        values = [one for key in found for one in (found[key] if isinstance(found[key], list) else [found[key]])]
        by_exec = next((one.removeprefix(_BY_EXEC) for one in values if one and one.startswith(_BY_EXEC)), None)
        int(0 if by_exec else found.get("port", 22))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, paramiko.SSHException) as error:
        raise NodeError("bad_ssh_config", host.name, path=str(path), detail=str(error)) from error
    if by_exec:
        file, _, line = by_exec.rpartition(":")
        raise NodeError("match_exec_refused", host.name, path=file, line=line, variable=ALLOWED)
    return found


def _taken_from_file(host: Host) -> frozenset[str]:
    """The settings that the job file leaves to ~/.ssh/config."""
    said = {
        "user": host.user,
        "port": host.port != 22,
        "identityfile": host.identity_file,
        "proxyjump": host.proxy_jump,
        "proxycommand": host.proxy_jump,
    }
    return frozenset({"hostname", *(key for key, value in said.items() if not value)})


def _lines(
    files: tuple[Path, ...],
    folder: Path,
    keys: frozenset[str],
    seen: set[tuple[Path, str, str]],
    within: str = _EVERYBODY,
    by_exec: str = "",
) -> list[str]:
    """A file with those that it includes, as if every `exec` of a Match held: what it sets of `keys` names its line.

    `files`: it, behind those that include it. `within`: the block that includes it. paramiko knows no Include. Inside a
    Host or Match one gives only what stands before its own first Host or Match: for the rest both would have to hold,
    which no one block can say. `seen`: what was included, and where; the first setting counts, so that the same again
    says nothing, and files that include one another are read once for each block, not in every order.
    """
    lines: list[str] = []
    block = within
    for number, line in enumerate(files[-1].read_text(encoding="utf-8").splitlines(), 1):
        key, _, rest = re.sub(r"[\s=]+", " ", line.strip(), count=1).partition(" ")
        key = key.lower()
        if key == "include" and len(files) <= DEEPEST_INCLUDE:
            for one in _included(rest, folder):
                if (one, block, by_exec) in seen:
                    continue
                seen.add((one, block, by_exec))
                more = _lines((*files, one), folder, keys, seen, block, by_exec)
                lines += more if all(map(_is_no_block, more)) else [*more, block]
            continue
        if key in ("host", "match"):
            if within != _EVERYBODY:
                break
            criteria = _criteria(rest) if key == "match" else []
            kept = [shlex.join(one) for one in criteria if one[0].lower().lstrip("!") != "exec"]
            by_exec = f"{files[-1]}:{number}" if len(kept) < len(criteria) else ""
            line = block = f"Match {' '.join(kept) or 'all'}" if by_exec else line.strip()
        lines.append(f"{key} {_BY_EXEC}{by_exec}" if by_exec and key in keys else line)
    return lines


def _included(rest: str, folder: Path) -> list[Path]:
    """The files that an Include names: patterns, those without a leading slash in ~/.ssh."""
    places = [os.path.join(folder, os.path.expanduser(pattern)) for pattern in shlex.split(rest)]
    return [Path(found) for place in places for found in sorted(glob.glob(place)) if os.path.isfile(found)]


def _is_no_block(line: str) -> bool:
    return re.match(r"\s*(?:host|match)[\s=]", line, re.IGNORECASE) is None


def _criteria(rest: str) -> list[list[str]]:
    """Each criterion of a Match with its value, as paramiko takes them apart."""
    words = iter(shlex.split(rest))
    return [[word] if word.lstrip("!") in _WITHOUT_VALUE else [word, next(words, "")] for word in words]
