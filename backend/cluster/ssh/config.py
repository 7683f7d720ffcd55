"""Connection target of a host: its settings from the job file, then from ~/.ssh/config, then the defaults.

Nothing in the file runs a program (config_file.py). A host is refused if it needs a ProxyCommand, or if its
settings depend on a `Match` that we cannot evaluate. If the operator allows programs (MEGABOARD_SSH_PROGRAMS=1),
OpenSSH itself reads the file, including `Match exec`.
"""

import getpass
import os
import re
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from backend.cluster.deadlines import Deadline
from backend.cluster.node import NodeError
from backend.cluster.ssh.config_file import ConfigError, Undecided, Value, read_settings
from backend.cluster.ssh.connect_errors import is_local_resource
from backend.cluster.ssh.resolver import resolves
from backend.job.cluster import Host

ALLOWED = "MEGABOARD_SSH_PROGRAMS"
_USUAL_KEYS = frozenset(
    f"~/.ssh/id_{kind}" for kind in ("rsa", "ecdsa", "ecdsa_sk", "ed25519", "ed25519_sk", "xmss", "dsa")
)
"""Key files that OpenSSH uses by default."""
ASK_S = 20.0
"""Time for OpenSSH's answer, with the programs of `Match exec`."""
_TOKENS = re.compile(r"%(.?)|\$\{([^}]*)\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Connection settings of one host, with those of ~/.ssh/config."""

    node: str
    address: str
    port: int
    user: str
    identity_files: tuple[Path, ...]
    """Key files that the job or the SSH configuration names. If empty, the agent's keys and the default files count."""
    default_keys: bool = True
    """False where `IdentityFile none` excludes the default files."""
    jump: str | None
    command: str | None = None
    """A shell command whose input and output are the connection."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _FileSettings:
    """The settings of a host from ~/.ssh/config. We read the file, or OpenSSH does."""

    values: Mapping[str, str] = field(default_factory=dict)
    identity_files: tuple[str, ...] = ()
    """Names as the file has them."""


def find_target(host: Host, ssh_folder: Path, deadline: Deadline | None = None) -> Target:
    """Return the connection target of `host`. `deadline` limits the look-ups that CanonicalizeHostname needs."""
    allowed = os.environ.get(ALLOWED) == "1"
    path = ssh_folder / "config"
    settings = _ask_openssh(path, host) if allowed else _read_config(path, host, deadline or Deadline(ASK_S))
    command = None if host.proxy_jump else _value(settings, "proxycommand")
    if command and not allowed:
        raise NodeError("proxy_command_refused", host.name, variable=ALLOWED)
    address = settings.values.get("hostname", host.address)
    port = host.port if host.port != 22 else int(settings.values.get("port", 22))
    user = host.user or settings.values.get("user") or getpass.getuser()
    tokens = {"%": "%", "h": address, "n": host.address, "p": str(port), "r": user}
    if host.identity_file:
        files: tuple[Path, ...] = (_in_home(host.identity_file, host),)
    else:
        names = [name for name in settings.identity_files if name.lower() != "none"]
        files = tuple(_in_home(_expanded(name, host, path, tokens), host) for name in names)
    jump = host.proxy_jump or _value(settings, "proxyjump")
    return Target(
        node=host.name,
        address=address,
        port=port,
        user=user,
        identity_files=files,
        default_keys=bool(host.identity_file) or not settings.identity_files,
        jump=jump if host.proxy_jump else _with_tokens(jump, tokens),
        command=_with_tokens(command, tokens),
    )


def _expanded(name: str, host: Host, path: Path, tokens: Mapping[str, str]) -> str:
    """Return a key file's name with the values of its tokens and environment variables, as OpenSSH does."""
    machine = socket.gethostname()
    known = {
        **tokens, "d": str(Path.home()), "i": str(os.getuid()), "u": getpass.getuser(), "l": machine,
        "L": machine.partition(".")[0],
    }  # fmt: skip

    def value(token: re.Match[str]) -> str:
        source, key = (known, token[1]) if token[2] is None else (os.environ, token[2])
        if key not in source:
            detail = f"IdentityFile {name}: {token[0]} has no value here"
            raise NodeError("bad_ssh_config", host.name, path=str(path), detail=detail)
        return source[key]

    return _TOKENS.sub(value, name)


def _in_home(name: str, host: Host) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError as error:  # `~name` of a user that this machine does not have
        raise NodeError(
            "bad_identity_file", host.name, key="identity_file", identity_file=name, detail=str(error)
        ) from error


def _with_tokens(value: str | None, tokens: Mapping[str, str]) -> str | None:
    return None if value is None else re.sub(r"%(.)", lambda token: tokens.get(token[1], token[0]), value)


def _value(settings: _FileSettings, key: str) -> str | None:
    value = settings.values.get(key, "none")
    return None if value.lower() == "none" else value


def _ask_openssh(path: Path, host: Host) -> _FileSettings:
    """Return the settings that `ssh -G` prints. It runs the programs that the file names."""
    login = ["-l", host.user] if host.user else []
    port = ["-p", str(host.port)] if host.port != 22 else []
    file = path if path.exists() else os.devnull
    try:
        answer = subprocess.run(
            ["ssh", "-G", "-F", file, *login, *port, "--", host.address],  # noqa: S607 - the user's own OpenSSH
            capture_output=True, text=True, errors="surrogateescape", timeout=ASK_S, stdin=subprocess.DEVNULL,
            check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        if is_local_resource(error):
            raise NodeError("local_resources", host.name, detail=str(error)) from error
        detail = getattr(error, "stderr", None) or str(error)
        raise NodeError("bad_ssh_config", host.name, path=str(path), detail=detail.strip()) from error
    lines = [line.partition(" ") for line in answer.stdout.splitlines()]
    files = [value for key, _, value in lines if key == "identityfile" and value not in _USUAL_KEYS]
    return _FileSettings(values={key: value for key, _, value in lines}, identity_files=tuple(files))


def _read_config(path: Path, host: Host, deadline: Deadline) -> _FileSettings:
    wanted = _taken_from_file(host)
    try:
        settings = read_settings(
            path, host.address, user=host.user, wanted=wanted, resolves=lambda name: resolves(name, deadline)
        )
    except FileNotFoundError:
        return _FileSettings()
    except (socket.gaierror, TimeoutError) as error:  # the name service does not answer
        raise NodeError("address_unknown", host.name, address=host.address) from error
    except ConfigError as error:
        raise NodeError("bad_ssh_config", host.name, path=str(error.path), detail=error.detail) from error
    except (OSError, ValueError) as error:
        if is_local_resource(error):
            raise NodeError("local_resources", host.name, detail=str(error)) from error
        raise NodeError("bad_ssh_config", host.name, path=str(path), detail=str(error)) from error
    values = {key: _decided(value, host) for key, value in settings.values.items() if key in wanted}
    files = tuple(_decided(name, host) for name in settings.identity_files)
    return _FileSettings(values=values, identity_files=files)


def _decided(value: Value, host: Host) -> str:
    if not isinstance(value, Undecided):
        return value
    if value.error:
        detail = f"line {value.line}: {value.error}"
        raise NodeError("bad_ssh_config", host.name, path=str(value.path), detail=detail)
    code = "match_exec_refused" if value.is_program else "match_undecided"
    values = {"path": str(value.path), "line": str(value.line), "setting": value.setting}
    raise NodeError(code, host.name, variable=ALLOWED, **values)


def _taken_from_file(host: Host) -> frozenset[str]:
    """Return the settings that the job file leaves to ~/.ssh/config."""
    from_job = {
        "user": host.user,
        "port": host.port != 22,
        "identityfile": host.identity_file,
        "proxyjump": host.proxy_jump,
        "proxycommand": host.proxy_jump,
    }
    return frozenset({"hostname", *(key for key, value in from_job.items() if not value)})
