"""A node's GPUs from nvidia-smi's output. Some drivers print text in place of figures."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from backend.cluster.program_answers.hardware import Smi
from backend.node.nvidia_smi import read_count, read_rows

BUSY_MIB = 1024
"""A GPU with more memory in use is busy. A desktop or a monitoring tool uses less."""
LINKS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Names in `nvidia-smi topo -m` of connections without NVLink, the shortest first."""
_FAULTS = ("unknown error", "gpu is lost", "gpu requires reset")
_YES = ("Yes", "1")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuOfNode:
    """One GPU. None: nvidia-smi does not report it, as for a GPU that shares the host's memory."""

    index: int
    uuid: str
    name: str
    memory_mib: int | None
    memory_used_mib: int | None
    driver: str
    fault: str = ""
    """nvidia-smi's text in place of figures: the GPU is lost, or needs a reset."""
    is_divided: bool = False
    """Whether MIG is on. Then its MIG devices count as devices."""
    pcie: str = ""
    """`4.0 x16`, or `4.0 x8 of x16` with fewer lanes than possible. Empty where nvidia-smi does not report it."""
    ecc_errors: int | None = None
    """Uncorrected ECC errors since the driver was loaded or the GPU was reset. None without ECC."""
    rows_pending: bool = False
    """Whether the next reset replaces a damaged memory row."""
    rows_failed: bool = False
    """Whether a damaged memory row could not be replaced."""
    power_w: int | None = None
    """Power limit."""
    default_power_w: int | None = None
    """Default power limit."""

    @property
    def is_held(self) -> bool:
        """Return whether the power limit is below the default."""
        return self.power_w is not None and self.default_power_w is not None and self.power_w < self.default_power_w


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuProcess:
    """A process that computes on a GPU."""

    gpu: int
    pid: int
    name: str
    user: str
    """Empty where the process is not visible, as in another container."""
    memory_mib: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpus:
    """All GPUs of a node."""

    is_nvidia: bool
    """Whether the node has nvidia-smi."""
    gpus: tuple[GpuOfNode, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    trouble: str = ""
    """nvidia-smi's messages: a lost GPU, a driver that does not answer."""
    links: tuple[str, ...] = ()
    """Kinds of connections between pairs, the fastest first: NV18, NV2, PIX, SYS."""
    cuda: str = ""
    """Newest CUDA that the driver supports."""

    @property
    def usable(self) -> tuple[GpuOfNode, ...]:
        """Return the GPUs without a fault."""
        return tuple(gpu for gpu in self.gpus if not gpu.fault)


def read_gpus(smi: Smi | None, owners: Mapping[str, str]) -> Gpus:
    """Parse nvidia-smi's output (None: no nvidia-smi). `owners` has the users of processes by process id."""
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


def _gpu(row: list[str], more: Mapping[str, str], ecc_errors: str, pending: str, failed: str) -> GpuOfNode:
    index, uuid, name, memory, used, driver = row
    faults = [value for value in row if any(fault in value.lower() for fault in _FAULTS)]
    width, full_width = more.get("width", ""), more.get("full_width", "")
    lanes = f"x{width}" if width == full_width else f"x{width} of x{full_width}"
    return GpuOfNode(
        index=int(index),
        uuid=uuid,
        name=name,
        memory_mib=read_count(memory),
        memory_used_mib=read_count(used),
        driver=driver,
        fault=faults[0].strip("[]") if faults else "",
        is_divided=more.get("mig") == "Enabled",
        pcie=f"{more['gen']}.0 {lanes}" if all(map(str.isdecimal, (more.get("gen", ""), width, full_width))) else "",
        ecc_errors=read_count(ecc_errors),
        rows_pending=pending in _YES,
        rows_failed=failed in _YES,
    )


def _more(text: str) -> dict[str, dict[str, str]]:
    """Return MIG and PCIe figures by GPU index. Old drivers report none."""
    rows = _table(text, 5)
    return {index: dict(zip(("mig", "gen", "width", "full_width"), row, strict=True)) for index, row in rows.items()}


def _table(text: str, columns: int) -> dict[str, list[str]]:
    """Return the rows that have this number of columns, by their first value."""
    return {row[0]: row[1:] for row in read_rows(text, columns)}


def _processes(text: str, indices: Mapping[str, int], owners: Mapping[str, str]) -> list[GpuProcess]:
    """Parse processes. A name may contain commas, and is [Not Found] for a process in another container."""
    processes = []
    for line in text.splitlines():
        row = [value.strip() for value in line.split(",")]
        if len(row) >= 4 and row[0] in indices and read_count(row[1]) is not None:
            name = ",".join(row[2:-1])
            processes.append(
                GpuProcess(
                    gpu=indices[row[0]],
                    pid=int(row[1]),
                    name="" if name.startswith("[") else name,
                    user=owners.get(row[1], ""),
                    memory_mib=read_count(row[-1]),
                )
            )
    return processes


def _parts(text: str) -> dict[str, int]:
    """Parse `nvidia-smi -L`: id of each MIG device -> index of its GPU."""
    devices, index = {}, -1
    for line in text.splitlines():
        if gpu := re.match(r"GPU (\d{1,4}):", line):
            index = int(gpu[1])
        elif part := re.search(r"UUID: (MIG-[^)]+)\)", line):
            devices[part[1]] = index
    return devices


def _links(text: str) -> tuple[str, ...]:
    """Return the kinds of connections between GPUs. Columns of GPUs come before those of NICs and CPUs."""
    lines = [line.split() for line in _ANSI.sub("", text).splitlines()]
    count = next((sum(bool(re.fullmatch(r"GPU\d+", word)) for word in words) for words in lines if words), 0)
    rows = [words[1 : count + 1] for words in lines if words and re.fullmatch(r"GPU\d+", words[0])]
    kinds = {word for words in rows[-count:] for word in words if re.fullmatch(r"NV\d{1,4}", word) or word in LINKS}
    return tuple(sorted(kinds, key=lambda kind: (-int(kind[2:]),) if kind.startswith("NV") else (LINKS.index(kind),)))


def link_words(links: tuple[str, ...]) -> str:
    """Return `NV18`, or `NV4, SYS` where some pairs have no NVLink. Empty for one GPU."""
    return ", ".join(links)
