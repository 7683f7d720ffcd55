"""Patterns of texts in a gang's logs: known causes, mere consequences, and the last relevant lines."""

import re
from collections.abc import Mapping

LINES_SHOWN = 25
"""Greatest number of last lines that are shown."""

CAUSES = {
    "gpu_out_of_memory": r"(?:OutOfMemoryError|CUDA out of memory)(?:.*?Tried to allocate (?P<wanted>[\d.]+ \w+))?",
    "unknown_engine_keys": r"Some keys are not used by the HfArgumentParser: (?P<keys>\[.*?\])",
    "master_port_taken": r"EADDRINUSE|[Aa]ddress already in use|errno: 98\b",
    "wrong_interface": r"gloo/transport/tcp/device.*Unable to find address for: (?P<interface>\S+)",
    "module_missing": r"(?:ModuleNotFoundError|ImportError): (?P<detail>.+)",
    "file_missing": r"(?:FileNotFoundError: |(?=/\S+: No such file))(?P<detail>.+)",
    "disk_full": r"No space left on device|Disk quota exceeded",
    "file_system_read_only": r"Read-only file system",
    # torch.save drops the message of the operating system: https://github.com/pytorch/pytorch/issues/156955
    "save_failed": r"inline_container\.cc.*unexpected pos|PytorchStreamWriter failed writing",
    "data_not_prepared": r"megaboard: the data could not be prepared",
    "loss_not_finite": r"(?:loss|grad(?:ient)?[_ ]norm) is (?:nan|inf|NaN|Inf)",
}
"""Patterns by problem code, in the order of the search. Named groups become values of the problem."""

CONSEQUENCES = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|ChildFailedError|Watchdog caught collective"
    r"|SignalException|DistBackendError|Socket Timeout|recvBytes|RendezvousConnectionError"
)
"""Reports of the other ranks when one rank is gone. They are not a cause."""

CANNOT_CONNECT = re.compile(r"gloo/transport/tcp/\S+.*connect: |Gloo connectFullMesh failed")
"""Errors of gloo on nodes that got a wrong address from another node. They do not name that node."""


def cause(text: str) -> tuple[str, Mapping[str, str]] | None:
    """Return the code and the values of the first known cause in a log."""
    relevant = _from_first_traceback(text)
    for code, pattern in CAUSES.items():
        match = re.search(pattern, relevant)
        if match is not None:
            return code, {key: value for key, value in match.groupdict().items() if value}
    return None


def last_lines(logs: Mapping[str, str]) -> tuple[str, str]:
    """Return (file, text): the last traceback of the first log that has one, else the end of the first log."""
    for file, text in logs.items():
        start = text.rfind("Traceback (most recent call last)")
        if start >= 0:
            return file, _end_of(text[start:])
    for file, text in logs.items():
        if text.strip():
            return file, _end_of(text)
    return "", ""


def is_consequence(logs: Mapping[str, str]) -> bool:
    """Return whether the last lines say that another rank was gone. Then they name no cause."""
    return bool(CONSEQUENCES.search(last_lines(logs)[1]))


def _from_first_traceback(text: str) -> str:
    """Return the part in which to search a cause. Warnings of a healthy start also name missing files and modules."""
    start = text.find("Traceback (most recent call last)")
    return text[start:] if start >= 0 else _end_of(text)


def _end_of(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-LINES_SHOWN:])
