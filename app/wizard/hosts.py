"""The form of the hosts: one `user@host:port` per line, and the values that all hosts share.

In the draft `cluster.hosts` may be this form (a mapping), so that an unreadable line stays as the user typed it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from backend.job.cluster import Host, host_name
from backend.job.problems import Problem

FIELD = "cluster.hosts"
SPARES = "cluster.spares"
SHARED = ("user", "identity_file", "proxy_jump")
"""Values that all hosts share. A line may set its own value."""
HIDDEN = ("environments", "gpu_memory_gib")
"""Values that a line does not show. The form keeps them by the host's name."""
_OPTIONS = {"key": "identity_file", "fabric": "fabric_address", "jump": "proxy_jump", "user": "user"}
_NAMES = {name: option for option, name in _OPTIONS.items()}


def to_form(hosts: Any) -> dict[str, Any]:
    """Return the form of a job file's list of hosts. A form is returned unchanged."""
    if isinstance(hosts, Mapping):
        return dict(hosts)
    listed = [host for host in hosts or () if isinstance(host, Mapping)] if isinstance(hosts, list | tuple) else []
    shared = {name: _common([host.get(name) for host in listed]) for name in SHARED}
    values = [(_host_name(host), {name: host[name] for name in HIDDEN if host.get(name)}) for host in listed]
    hidden = {name: more for name, more in values if more}
    return {"lines": "\n".join(_line(host, shared) for host in listed), **shared, "kept": hidden}


def from_form(form: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[Problem]]:
    """Return the job file's list of hosts and the problems of the lines. A line that cannot be read is left out."""
    shared = {name: form[name] for name in SHARED if form.get(name)}
    hidden = form["kept"] if isinstance(form.get("kept"), Mapping) else {}
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
        more = hidden.get(_host_name(host))
        hosts.append({**host, **more} if isinstance(more, Mapping) else host)
    return hosts, problems


def spares_text(spares: Any, hosts: Any) -> str:
    """Return the lines of the spares, without the values that all hosts share. A text is returned unchanged."""
    if isinstance(spares, str):
        return spares
    listed = [spare for spare in spares or () if isinstance(spare, Mapping)] if isinstance(spares, list | tuple) else []
    form = to_form(hosts)
    return "\n".join(_line(spare, {name: form.get(name) for name in SHARED}) for spare in listed)


def read_spares(text: str, hosts: Any) -> tuple[list[dict[str, Any]], list[Problem]]:
    """Return the spares of a text, with the values that all hosts share, and the problems of the lines."""
    form = to_form(hosts)
    spares, problems = from_form({"lines": text, **{name: form.get(name) for name in SHARED}})
    return spares, [replace(problem, field=SPARES) for problem in problems]


def node_name(host: Host) -> str:
    """Return the node's name on the page."""
    return host.name


def with_gpu_memory(form: Mapping[str, Any], gpu_memory: Mapping[str, float | None]) -> dict[str, Any]:
    """Return the form with the GPU memory of nodes, by name."""
    hidden = {name: dict(more) for name, more in (form.get("kept") or {}).items()}
    for name, gib in gpu_memory.items():
        more = hidden.setdefault(name, {})
        more.pop("gpu_memory_gib", None)
        if gib is not None:
            more["gpu_memory_gib"] = gib
    return {**form, "kept": {name: more for name, more in hidden.items() if more}}


def with_fabric(form: Mapping[str, Any], addresses: Mapping[str, str]) -> dict[str, Any]:
    """Return the form with `fabric=` at the lines of these nodes, by name."""
    lines = []
    for line in str(form.get("lines") or "").splitlines():
        words = line.split()
        try:
            name = _host_name(_read_address(words[0])) if words else ""
        except ValueError:
            name = ""
        lines.append(f"{line.rstrip()} fabric={addresses[name]}" if name in addresses else line)
    return {**form, "lines": "\n".join(lines)}


def _host_name(host: Mapping[str, Any]) -> str:
    """Return the `Host.name` of a job file's host."""
    return host_name(str(host.get("address", "")), host.get("port", 22))


def _line(host: Mapping[str, Any], shared: Mapping[str, Any]) -> str:
    address, port = str(host.get("address", "")), host.get("port", 22)
    user = host.get("user")
    start = f"{user}@" if user and user != shared["user"] else ""
    names = ("fabric_address", "identity_file", "proxy_jump")
    options = [f"{_NAMES[name]}={host[name]}" for name in names if host.get(name) and host[name] != shared.get(name)]
    return " ".join([start + host_name(address, port), *options])


def _read_address(word: str) -> dict[str, Any]:
    user, at, location = word.rpartition("@")
    address, port = location, ""
    if location.startswith("["):
        address, _, port = location[1:].partition("]")
        port = port.removeprefix(":")
    elif location.count(":") == 1:
        address, _, port = location.partition(":")
        if not port:
            raise ValueError(word)
    if not address or (at and not user) or (port and not port.isdecimal()):
        raise ValueError(word)
    return {"address": address} | ({"user": user} if user else {}) | ({"port": int(port)} if port else {})


def _read_options(words: Sequence[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        # An option that occurs twice means that two lines were pasted as one.
        if name not in _OPTIONS or not value or _OPTIONS[name] in options:
            raise ValueError(word)
        options[_OPTIONS[name]] = value
    return options


def _common(values: Sequence[Any]) -> Any:
    return values[0] if values and all(value == values[0] for value in values) else None
