"""The nodes as people write them: one `user@host:port` a line, and what all of them share beside it.

In the draft `cluster.hosts` may be such a form (a mapping) in place of the job file's list, so that a line that
cannot be read yet stays as it was typed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from backend.job.cluster import Host, host_name
from backend.job.problems import Problem

FIELD = "cluster.hosts"
SHARED = ("user", "identity_file", "proxy_jump")
"""What the boxes beside the lines hold; a line may say otherwise."""
KEPT = ("environments", "gpu_memory_gib")
"""What a line does not show, kept for the node at its address."""
_OPTIONS = {"key": "identity_file", "fabric": "fabric_address", "jump": "proxy_jump", "user": "user"}
_NAMES = {name: option for option, name in _OPTIONS.items()}


def to_form(hosts: Any) -> dict[str, Any]:
    """The form of a job file's list of hosts; a form is returned as it is."""
    if isinstance(hosts, Mapping):
        return dict(hosts)
    listed = [host for host in hosts or () if isinstance(host, Mapping)] if isinstance(hosts, list | tuple) else []
    shared = {name: _common([host.get(name) for host in listed]) for name in SHARED}
    kept = {_place(host): more for host in listed if (more := {name: host[name] for name in KEPT if host.get(name)})}
    return {"lines": "\n".join(_line(host, shared) for host in listed), **shared, "kept": kept}


def from_form(form: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[Problem]]:
    """The job file's list of hosts, with what is wrong in the lines; a line that cannot be read is left out."""
    shared = {name: form[name] for name in SHARED if form.get(name)}
    kept = form["kept"] if isinstance(form.get("kept"), Mapping) else {}
    hosts: list[dict[str, Any]] = []
    problems: list[Problem] = []
    for number, line in enumerate(str(form.get("lines") or "").splitlines(), 1):
        words = line.split()
        if not words:
            continue
        try:
            host = {**shared, **_read_address(words[0]), **_read_options(words[1:])}
        except ValueError as error:
            values = {"line": number, "text": str(error)}
            problems.append(Problem(code="bad_host_line", field=FIELD, values=values))
            continue
        more = kept.get(_place(host))
        hosts.append({**host, **more} if isinstance(more, Mapping) else host)
    return hosts, problems


def node_name(host: Host) -> str:
    """What the page calls a node."""
    return host.name


def with_gpu_memory(form: Mapping[str, Any], read: Mapping[str, float | None]) -> dict[str, Any]:
    """The form with what was read of the GPUs of nodes, by name."""
    kept = {place: dict(more) for place, more in (form.get("kept") or {}).items()}
    for name, gib in read.items():
        more = kept.setdefault(name, {})
        more.pop("gpu_memory_gib", None)
        if gib is not None:
            more["gpu_memory_gib"] = gib
    return {**form, "kept": {place: more for place, more in kept.items() if more}}


def with_fabric(form: Mapping[str, Any], addresses: Mapping[str, str]) -> dict[str, Any]:
    """The form with `fabric=` at the lines of these nodes, by name."""
    lines = []
    for line in str(form.get("lines") or "").splitlines():
        words = line.split()
        try:
            name = _place(_read_address(words[0])) if words else ""
        except ValueError:
            name = ""
        lines.append(f"{line.rstrip()} fabric={addresses[name]}" if name in addresses else line)
    return {**form, "lines": "\n".join(lines)}


def _place(host: Mapping[str, Any]) -> str:
    """`Host.name` of a job file's host."""
    return host_name(str(host.get("address", "")), host.get("port", 22))


def _line(host: Mapping[str, Any], shared: Mapping[str, Any]) -> str:
    address, port = str(host.get("address", "")), host.get("port", 22)
    user = host.get("user")
    start = f"{user}@" if user and user != shared["user"] else ""
    names = ("fabric_address", "identity_file", "proxy_jump")
    options = [f"{_NAMES[name]}={host[name]}" for name in names if host.get(name) and host[name] != shared.get(name)]
    return " ".join([start + host_name(address, port), *options])


def _read_address(word: str) -> dict[str, Any]:
    user, at, rest = word.rpartition("@")
    address, port = rest, ""
    if rest.startswith("["):
        address, _, port = rest[1:].partition("]")
        port = port.removeprefix(":")
    elif rest.count(":") == 1:
        address, _, port = rest.partition(":")
        if not port:
            raise ValueError(word)
    if not address or (at and not user) or (port and not port.isdecimal()):
        raise ValueError(word)
    return {"address": address} | ({"user": user} if user else {}) | ({"port": int(port)} if port else {})


def _read_options(words: Sequence[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        # Twice on a line: two lines were pasted as one.
        if name not in _OPTIONS or not value or _OPTIONS[name] in options:
            raise ValueError(word)
        options[_OPTIONS[name]] = value
    return options


def _common(values: Sequence[Any]) -> Any:
    return values[0] if values and all(value == values[0] for value in values) else None
