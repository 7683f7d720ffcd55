"""Reader of the settings of one host from ~/.ssh/config, as in OpenSSH (ssh_config(5), readconf.c). It runs no program.

The first value of a setting counts. If the condition of a block cannot be evaluated, its settings are undecided. This
affects only a host that depends on such a setting.
"""

import getpass
import glob
import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from backend.cluster.ssh.config_tokens import SPACE, argument, host_matches, in_list, is_address, keyword, words

DEEPEST_INCLUDE = 16
"""OpenSSH's own limit."""
_ONE_WORD = frozenset({"hostname", "user", "port", "identityfile", "tag", "canonicalizehostname",
                       "canonicalizemaxdots", "canonicalizefallbacklocal"})  # fmt: skip
_WORDS = frozenset({"canonicaldomains", "canonicalizepermittedcnames"})
_REST_OF_LINE = frozenset({"proxyjump", "proxycommand"})


class ConfigError(Exception):
    """A line for the host is invalid, or a file cannot be read."""

    def __init__(self, path: Path, line: int | None, detail: str) -> None:
        self.path = path
        self.detail = detail if line is None else f"line {line}: {detail}"
        super().__init__(f"{path}: {self.detail}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Undecided:
    """The condition that leaves it open whether a block applies to the host."""

    path: Path
    line: int
    setting: str
    """The condition, such as `Match localnetwork`."""
    is_program: bool = False
    """Whether only a program can decide it."""
    error: str = ""
    """Why its line is invalid."""


State = bool | Undecided
Value = str | Undecided


@dataclass(kw_only=True, slots=True)
class Settings:
    """The settings that the file has for the host."""

    values: dict[str, Value] = field(default_factory=dict)
    """By setting. Of ProxyJump and ProxyCommand only the first one counts."""
    identity_files: list[Value] = field(default_factory=list)
    """Names as the file has them, also `none`."""
    sources: dict[str, tuple[Path, int]] = field(default_factory=dict)
    """File and line of each setting."""

    @property
    def version(self) -> int:
        """Return a number that grows with each setting."""
        return len(self.values) + len(self.identity_files)


def read_settings(
    path: Path, name: str, *, user: str | None, wanted: frozenset[str], resolves: Callable[[str], bool]
) -> Settings:
    """Return the settings of the host that a user calls `name`.

    `user` is the log-in user, unless the file decides it. `wanted` has the settings to read from the file besides
    `hostname`. `resolves` returns whether the name service knows a name, and its errors are raised here. Raises
    ConfigError, and OSError if the file itself cannot be read.
    """
    reading = _Reading(path.parent, name, user, wanted)
    reading.read(path, True, 0)
    hostname = reading.hostname()
    if isinstance(hostname, Undecided):
        return reading.settings
    if not is_address(hostname):
        hostname = hostname.lower()
    reading.settings.values["hostname"] = hostname
    canonical = _canonical(reading.settings, hostname, "proxyjump" not in wanted, resolves)
    is_open = isinstance(reading.hostname(), Undecided)
    if not is_open and (canonical is not None or reading.wants_final):
        reading.begin_final(canonical or hostname)
        reading.read(path, True, 0)
    return reading.settings


class _Reading:
    """Read the files for one host."""

    def __init__(self, folder: Path, name: str, user: str | None, wanted: frozenset[str]) -> None:
        self.settings = Settings()
        self.wants_final = False
        self._folder = folder
        self._name = name
        self._user = user
        self._wanted = wanted | _WORDS | _ONE_WORD - {"user", "port", "identityfile"}
        self._host = name
        self._is_final = False
        self._read: dict[tuple[Path, State], int] = {}
        self._open: list[Path] = []

    def hostname(self) -> Value:
        """Return the host to connect to, from the lines that were read so far."""
        value = self.settings.values.get("hostname", self._name)
        if self._is_final or isinstance(value, Undecided):
            return value
        return re.sub("%(.)", lambda token: {"h": self._name, "%": "%"}.get(token[1], token[0]), value)

    def begin_final(self, hostname: str) -> None:
        """Begin the second pass, which is for `Match final` and has the canonical name."""
        self._is_final = True
        self._host = self.settings.values["hostname"] = hostname
        self._read.clear()

    def read(self, path: Path, state: State, depth: int) -> None:
        """Read a file inside a block. `state` is whether the block applies to the host.

        A file is read again only if something was set since the last time, and never inside itself. So files that
        include one another cause no endless loop.
        """
        if path in self._open or self._read.get((path, state)) == self.settings.version:
            return
        self._open.append(path)
        self._read_lines(path, state, depth)
        self._open.pop()
        self._read[path, state] = self.settings.version

    def _read_lines(self, path: Path, state: State, depth: int) -> None:
        outer = state
        # Names that are not UTF-8 stay as they are.
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="surrogateescape").split("\n"), 1):
            try:
                key, rest = keyword(line.rstrip(SPACE + "\f"))
                if key == "include":
                    self._include(rest, state, depth)
                elif key in ("host", "match"):
                    state = self._block(key, rest, outer, path, number)
                elif state is not False and key in self._wanted:
                    self._set(key, rest, state, path, number)
            except ValueError as error:
                if state is not False:
                    raise ConfigError(path, number, str(error)) from error

    def _block(self, key: str, rest: str, outer: State, path: Path, number: int) -> State:
        try:
            state = self._match(rest, path, number) if key == "match" else host_matches(self._host, rest)
        except ValueError as error:
            state = Undecided(path=path, line=number, setting=key.capitalize(), error=str(error))
        if outer is True or state is False:
            return state
        return outer

    def _set(self, key: str, rest: str, state: State, path: Path, number: int) -> None:
        values = self.settings.values
        value: Value = state if isinstance(state, Undecided) else _value(key, rest)
        if key == "identityfile":
            if value not in self.settings.identity_files:
                self.settings.identity_files.append(value)
        elif key not in values and not (key in _REST_OF_LINE and values.keys() & _REST_OF_LINE):
            values[key] = value
            self.settings.sources[key] = (path, number)

    def _include(self, rest: str, state: State, depth: int) -> None:
        """Read the files that the patterns of a line match. Patterns without a leading slash are relative to ~/.ssh."""
        for pattern in words(rest):
            for name in sorted(glob.glob(os.path.join(self._folder, os.path.expanduser(pattern)))):
                if not os.path.isfile(name):
                    continue
                if depth == DEEPEST_INCLUDE:
                    raise ValueError(f"files include one another more than {DEEPEST_INCLUDE} deep")
                try:
                    self.read(Path(name), state, depth + 1)
                except OSError as error:
                    if state is not False:
                        raise ConfigError(Path(name), None, str(error)) from error

    def _match(self, rest: str, path: Path, number: int) -> State:
        """Return whether all criteria hold. One criterion that does not hold decides, even if others are unknown."""
        result: State = True
        left = iter(words(rest))
        for count, word in enumerate(left):
            is_wanted = not word.startswith("!")
            name, _, value = word.lstrip("!").partition("=")
            name = name.lower()
            if name == "all":
                if count > 1 or next(left, None) is not None:
                    raise ValueError("'all' cannot be combined with other Match attributes")
                return result if is_wanted else False
            self.wants_final |= name == "final"
            holds: bool | None = self._is_final if name in ("final", "canonical") else None
            if holds is None:
                value = value or argument(left)
                holds = self._holds(name, value)
            if holds is None:
                if not value and name != "tagged":
                    raise ValueError(f"Match {name} lacks what it is to match")
                undecided = Undecided(path=path, line=number, setting=f"Match {name}", is_program=name == "exec")
                result = undecided if result is True else result
            elif holds is not is_wanted:
                result = False
        return result

    def _holds(self, name: str, patterns: str) -> bool | None:
        """Return whether one criterion holds. None: it cannot be evaluated here."""
        user = self._user or self.settings.values.get("user") or getpass.getuser()
        tag = self.settings.values.get("tag", "")
        known: dict[str, Value] = {
            "host": self.hostname(), "originalhost": self._name, "user": user, "localuser": getpass.getuser(),
            "tagged": tag,
        }  # fmt: skip
        value = known.get(name)
        if value is None or isinstance(value, Undecided) or not patterns:
            return None
        if name in ("host", "originalhost"):
            return in_list(value.lower(), patterns.lower())
        return in_list(value, patterns)


def _canonical(settings: Settings, hostname: str, is_proxied: bool, resolves: Callable[[str], bool]) -> str | None:
    """Return the name after CanonicalizeHostname, which may be the same name. None: CanonicalizeHostname is off."""
    known: dict[str, str] = {}
    for key, value in settings.values.items():
        if isinstance(value, str):
            known[key] = value
        elif key.startswith("canonical"):
            settings.values["hostname"] = value
            return None
    mode = known.get("canonicalizehostname", "no").lower()
    if mode not in ("yes", "always"):
        return None
    is_proxied |= any(known.get(key, "none").lower() != "none" for key in _REST_OF_LINE)
    is_short = hostname.count(".") <= int(known.get("canonicalizemaxdots", "1"))
    if is_address(hostname) or not is_short or (is_proxied and mode == "yes"):
        return hostname
    domains = [domain for domain in known.get("canonicaldomains", "none").split() if domain.lower() != "none"]
    name = next((f"{hostname}.{domain}" for domain in domains if resolves(f"{hostname}.{domain}.")), None)
    if name is None:
        if known.get("canonicalizefallbacklocal", "yes").lower() == "no":
            raise ValueError(f"{hostname} is known in none of CanonicalDomains, and CanonicalizeFallbackLocal is no")
        return hostname
    if known.get("canonicalizepermittedcnames", "none").lower() != "none":
        path, line = settings.sources["canonicalizepermittedcnames"]
        settings.values["hostname"] = Undecided(path=path, line=line, setting="CanonicalizePermittedCNAMEs")
        return None
    return name


def _value(key: str, rest: str) -> str:
    """Return the value that a line sets. Raises ValueError if it is invalid."""
    if key in _REST_OF_LINE:
        value = rest.lstrip(SPACE + "=")
        if key == "proxyjump":
            value = value.partition("#")[0].strip()
        if not value:
            raise ValueError(f"{key} has no value")
        return value
    values = words(rest)
    if not values or not values[0]:
        raise ValueError(f"{key} has no value")
    if key in _WORDS:
        return " ".join(values)
    if len(values) > 1:
        raise ValueError(f"{key} has more than one value: {' '.join(values)}")
    return _port(values[0]) if key == "port" else values[0]


def _port(text: str) -> str:
    try:
        number = int(text) if re.fullmatch(r"\d{1,5}", text) else socket.getservbyname(text, "tcp")
    except OSError:
        number = 0
    if not 0 < number < 65_536:
        raise ValueError(f"{text!r} is no port")
    return str(number)
