"""Replaces addresses, names of hosts and users, and home folders in the texts of a failure report."""

import ipaddress
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from backend.job.mapping import parameters
from backend.runs.redact import redact
from backend.runs.states import EventKind, RunState

_HOME = re.compile(r"/(?:home|Users)/[^/\s\"']+")
_ADDRESS = re.compile(r"\b(?!127\.0\.0\.1\b)(?:\d{1,3}\.){3}\d{1,3}\b(?!\.\d)")
_IPV6 = re.compile(
    r"(?:(?<![\w:.])|(?<=\w:))(?=[\da-fA-F]{0,4}:)[\da-fA-F:]{2,60}(?:\.\d{1,3}){0,3}(?![\w:])",
)
"""What may be an IPv6 address, also one behind `name:`."""
_DOMAIN = r"(?:\.[A-Za-z][\w-]*){2,}"
_HOST_KEYS = frozenset(
    {"address", "fabric_address", "host", "hostname", "node", "nodes", "peer", "spare", "user", "login", "proxy_jump"}
)
"""Keys whose value names a host or a user."""
_AT_HOST = rf"@|//|\b(?:{'|'.join(sorted(_HOST_KEYS))})[\"']?[ \t]{{0,12}}[:=][ \t]{{0,4}}[\"']?"
_COMMON_WORDS = (
    "data default epoch error eval false grad info iteration learning loss main memory model none norm null python rate"
    " root server step test time token tokens torch true user warning"
)
_NUMBERED = re.compile(r"(?:node|rank)\d+")
_MOST_NODES = 4096


@dataclass(frozen=True, slots=True)
class Names:
    """Names of hosts, users and keys -> what replaces each of them."""

    replacements: Mapping[str, str]
    everywhere: re.Pattern[str]
    """Names that mean nothing else."""
    at_hosts: re.Pattern[str]
    """Names that are ordinary words of a report, such as `loss`, where a host or a user stands."""

    @classmethod
    def of(cls, replacements: Mapping[str, str]) -> "Names":
        """Return the names of these replacements."""
        longest_first = sorted(replacements, key=len, reverse=True)
        words = [re.escape(name) for name in longest_first if _is_word(name)]
        others = [re.escape(name) for name in longest_first if not _is_word(name)]
        everywhere = rf"(?<![\w.-])({'|'.join(others)})(?:{_DOMAIN})?(?![\w-])" if others else r"(?!)()"
        word = rf"({'|'.join(words)})"
        at_hosts = (
            rf"({_AT_HOST}){word}(?:{_DOMAIN})?(?![\w-])|(?<![\w.-])(){word}(?:{_DOMAIN}(?![\w-])|(?=@))"
            if words
            else r"(?!)()()()()"
        )
        return cls(replacements, re.compile(everywhere), re.compile(at_hosts))

    def replaced(self, text: str) -> str:
        """Return the text without the names."""
        text = self.everywhere.sub(lambda match: self.replacements[match[1]], text)
        return self.at_hosts.sub(self._at_host, text)

    def _at_host(self, match: re.Match[str]) -> str:
        return f"{match[1] or ''}{self.replacements[match[2] or match[4]]}"


@cache
def _ordinary_words() -> frozenset[str]:
    """Return the words that reports and logs consist of: a name that is one of them tells nothing."""
    sources = (_COMMON_WORDS, *(kind.value for kind in EventKind), *(state.value for state in RunState))
    return frozenset(re.findall("[a-z]+", " ".join((*sources, *parameters())).lower()))


def _is_word(name: str) -> bool:
    return name.lower() in _ordinary_words() or _NUMBERED.fullmatch(name) is not None


def anonymous_text(text: str, names: Names) -> str:
    """Return the text without secrets, names, addresses and home folders."""
    text = names.replaced(redact(text))
    text = _IPV6.sub(_without_address, _HOME.sub("/home/user", text))
    return _ADDRESS.sub("<address>", text)


def anonymous_value(value: object, names: Names, key: str = "") -> object:
    """Return data of a JSON type with every text replaced. `key` is that of the value.

    A key is replaced only where it names a machine beyond doubt.
    """
    if isinstance(value, str):
        host = re.sub(r":\d+$", "", value)
        return names.replacements.get(host if key in _HOST_KEYS else "") or anonymous_text(value, names)
    if isinstance(value, dict):
        return {anonymous_text(str(k), names): anonymous_value(item, names, str(k)) for k, item in value.items()}
    return [anonymous_value(item, names, key) for item in value] if isinstance(value, list) else value


def names_in_list(nodes: str) -> list[str]:
    """Return the names in Slurm's list of nodes, such as `gpu-a[01-03,7],login` (man page of scontrol, `hostlist`)."""
    items = re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", nodes)
    return list(itertools.islice((name for item in items for name in _expanded(item)), _MOST_NODES))


def _expanded(item: str) -> Iterator[str]:
    """Yield the names of one item, whose brackets hold numbers and ranges."""
    before, bracket, rest = item.partition("[")
    if not bracket:
        yield item
        return
    numbers, _, after = rest.partition("]")
    for part in numbers.split(","):
        first, _, last = part.partition("-")
        last = last or first
        if first.isdigit() and last.isdigit():
            for number in range(int(first), min(int(last), int(first) + _MOST_NODES) + 1):
                yield from _expanded(f"{before}{number:0{len(first)}d}{after}")


def _without_address(match: re.Match[str]) -> str:
    """Return the text with its IPv6 address replaced, if it is that of a machine.

    A name and a colon may stand before it, and a colon or a port behind it.
    """
    whole = match[0]
    without_name = whole.partition(":")[2]
    for text in (whole, whole.rpartition(":")[0], without_name, without_name.rpartition(":")[0]):
        try:
            address = ipaddress.IPv6Address(text)
        except ValueError:
            continue
        if address.is_loopback or address.is_unspecified:
            break
        start = whole.index(text)
        return f"{whole[:start]}<address>{whole[start + len(text) :]}"
    return whole
