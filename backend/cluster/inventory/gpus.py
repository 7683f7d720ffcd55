"""A node's GPUs from what nvidia-smi says, whatever its driver puts where a figure should be."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from backend.cluster.program_answers import Smi
from backend.node.nvidia_smi import read_count, read_rows

BUSY_MIB = 1024
"""A GPU that others use holds more; a desktop or a monitoring tool less."""
LINKS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""How `nvidia-smi topo -m` calls ways between two GPUs without NVLink, the shortest first."""
_FAULTS = ("unknown error", "gpu is lost", "gpu requires reset")
_YES = ("Yes", "1")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU. None: nvidia-smi does not tell, as of one that shares the host's memory."""

    index: int
    uuid: str
    name: str
    memory_mib: int | None
    memory_used_mib: int | None
    driver: str
    fault: str = ""
    """What nvidia-smi says in place of its figures: it is lost, or has to be reset."""
    is_divided: bool = False
    """Whether MIG is on: its parts count as devices then."""
    pcie: str = ""
    """`4.0 x16`, and `x8 of x16` where it has fewer lanes than it could; empty where nvidia-smi does not tell."""
    ecc_errors: int | None = None
    """Errors of its memory that ECC could not correct, since the driver was loaded or the GPU was reset; None without
    ECC."""
    rows_pending: bool = False
    """Whether a damaged row of its memory is replaced at the next reset."""
    rows_failed: bool = False
    """Whether one could not be replaced."""
    power_w: int | None = None
    """What it may draw."""
    default_power_w: int | None = None
    """What it may draw where nobody set a limit."""

    @property
    def is_held(self) -> bool:
        """Whether somebody set a lower power limit than its own."""
        return self.power_w is not None and self.default_power_w is not None and self.power_w < self.default_power_w


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuProcess:
    """A process that computes on a GPU."""

    gpu: int
    pid: int
    name: str
    user: str
    """Empty where the process cannot be seen, as in another container."""
    memory_mib: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpus:
    """All of a node."""

    is_nvidia: bool
    """Whether there is an nvidia-smi."""
    gpus: tuple[Gpu, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    trouble: str = ""
    """What nvidia-smi said that was no GPU: a lost one, a driver that does not answer."""
    links: tuple[str, ...] = ()
    """The kinds of links between pairs, the fastest first: NV18, NV2, PIX, SYS."""
    cuda: str = ""
    """The newest CUDA that the driver takes."""

    @property
    def usable(self) -> tuple[Gpu, ...]:
        """Those without a fault."""
        return tuple(gpu for gpu in self.gpus if not gpu.fault)


def read_gpus(smi: Smi | None, owners: Mapping[str, str]) -> Gpus:
    """From hardware.py's answers of nvidia-smi (None: there is none) and the users of processes by their id."""
    if smi is None:
        return Gpus(is_nvidia=False)
    more, errors = _more(smi["more"]["out"]), _table(smi["errors"]["out"], 2)
    rows, power = _table(smi["rows"]["out"], 3), _table(smi["power"]["out"], 3)
    gpus, trouble = [], []
    for line in smi["query"]["out"].splitlines():
        row = [value.strip() for value in line.split(",")]
        if len(row) == 6 and read_count(row[0]) is not None:
            remapped = rows.get(row[1], ["", ""])
            gpu = _gpu(row, more.get(row[0], {}), errors.get(row[0], [""])[0], *remapped)
            limit, default = (read_count(watts.partition(".")[0]) for watts in power.get(row[0], ["", ""]))
            gpus.append(replace(gpu, power_w=limit, default_power_w=default))
        elif line.strip():
            trouble.append(line.strip())
    if not gpus or smi["query"].get("code") != 0:
        trouble.append(smi["query"]["err"].strip())
    indices = {gpu.uuid: gpu.index for gpu in gpus}
    return Gpus(
        is_nvidia=True,
        gpus=tuple(gpus),
        processes=tuple(_processes(smi["apps"]["out"], indices | _parts(smi["list"]["out"]), owners)),
        trouble=" ".join(" ".join(trouble).split()),
        links=_links(smi["topo"]["out"]),
        cuda=next(iter(re.findall(r"CUDA (?:UMD )?Version:\s*(\d{1,4}(?:\.\d{1,4})*)", smi["table"]["out"])), ""),
    )


def _gpu(row: list[str], more: Mapping[str, str], ecc_errors: str, pending: str, failed: str) -> Gpu:
    index, uuid, name, memory, used, driver = row
    said = [value for value in row if any(fault in value.lower() for fault in _FAULTS)]
    width, of = more.get("width", ""), more.get("of", "")
    lanes = f"x{width}" if width == of else f"x{width} of x{of}"
    return Gpu(
        index=int(index),
        uuid=uuid,
        name=name,
        memory_mib=read_count(memory),
        memory_used_mib=read_count(used),
        driver=driver,
        fault=said[0].strip("[]") if said else "",
        is_divided=more.get("mig") == "Enabled",
        pcie=f"{more['gen']}.0 {lanes}" if all(map(str.isdecimal, (more.get("gen", ""), width, of))) else "",
        ecc_errors=read_count(ecc_errors),
        rows_pending=pending in _YES,
        rows_failed=failed in _YES,
    )


def _more(text: str) -> dict[str, dict[str, str]]:
    """By index; nothing from a driver too old to know these questions."""
    rows = _table(text, 5)
    return {index: dict(zip(("mig", "gen", "width", "of"), row, strict=True)) for index, row in rows.items()}


def _table(text: str, columns: int) -> dict[str, list[str]]:
    """The lines of so many columns, by their first."""
    return {row[0]: row[1:] for row in read_rows(text, columns)}


def _processes(text: str, indices: Mapping[str, int], owners: Mapping[str, str]) -> list[GpuProcess]:
    """A name may hold commas, and be [Not Found] where the process is in another container."""
    found = []
    for line in text.splitlines():
        row = [value.strip() for value in line.split(",")]
        if len(row) >= 4 and row[0] in indices and read_count(row[1]) is not None:
            name = ",".join(row[2:-1])
            found.append(
                GpuProcess(
                    gpu=indices[row[0]],
                    pid=int(row[1]),
                    name="" if name.startswith("[") else name,
                    user=owners.get(row[1], ""),
                    memory_mib=read_count(row[-1]),
                )
            )
    return found


def _parts(text: str) -> dict[str, int]:
    """The MIG devices of `nvidia-smi -L` by their id -> index of the GPU that they are parts of."""
    found, index = {}, -1
    for line in text.splitlines():
        if gpu := re.match(r"GPU (\d{1,4}):", line):
            index = int(gpu[1])
        elif part := re.search(r"UUID: (MIG-[^)]+)\)", line):
            found[part[1]] = index
    return found


def _links(text: str) -> tuple[str, ...]:
    """The kinds that stand between two different GPUs; the columns of GPUs come before those of NICs and CPUs."""
    lines = [line.split() for line in _ANSI.sub("", text).splitlines()]
    count = next((sum(bool(re.fullmatch(r"GPU\d+", word)) for word in words) for words in lines if words), 0)
    rows = [words[1 : count + 1] for words in lines if words and re.fullmatch(r"GPU\d+", words[0])]
    kinds = {word for words in rows[-count:] for word in words if re.fullmatch(r"NV\d{1,4}", word) or word in LINKS}
    return tuple(sorted(kinds, key=lambda kind: (-int(kind[2:]),) if kind.startswith("NV") else (LINKS.index(kind),)))


def link_words(links: tuple[str, ...]) -> str:
    """`NV18`; `NV4, SYS` where some pairs have no NVLink; empty for one GPU."""
    return ", ".join(links)
