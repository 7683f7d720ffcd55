"""Answers about the hardware of a node: hardware.py and benchmark.py."""

from typing import Annotated, Literal, NotRequired, TypedDict

from backend.cluster.program_answers.values import Bytes, Digits, Limit, ToolOutput, Word
from backend.cluster.typed_json import Between, Count, Longest, Strict


class Tool(TypedDict):
    """Result of a tool."""

    code: NotRequired[Annotated[int, Between(-255, 255)]]
    """Missing where the tool did not answer."""
    out: ToolOutput
    err: ToolOutput


class Smi(TypedDict):
    """Output of nvidia-smi for each question."""

    query: Tool
    more: Tool
    errors: Tool
    power: Tool
    rows: Tool
    apps: Tool
    list: Tool
    topo: Tool
    table: Tool


class RdmaAnswer(TypedDict):
    """A port of an RDMA device."""

    device: Word
    port: Digits
    gids: Annotated[dict[Digits, tuple[Word, Word]], Longest(1024)]
    state: Word
    rate: Word
    link_layer: Word
    interfaces: list[Word]


class InterfaceAnswer(TypedDict):
    """A network interface."""

    name: Word
    state: Word
    speed: Word
    tunnel: bool
    bonded: bool
    networks: list[Word]


class DiskAnswer(TypedDict):
    """A file system."""

    free: Bytes
    total: Bytes
    source: str
    kind: Word


class HardwareAnswer(TypedDict):
    """hardware.py hardware"""

    smi: NotRequired[Smi]
    owners: Annotated[dict[str, Word], Longest(1 << 16)]
    rdma: Annotated[list[RdmaAnswer], Longest(1024)]
    interfaces: list[InterfaceAnswer]
    default_routes: list[Word]
    shm: NotRequired[DiskAnswer]
    memlock: Limit
    nofile: Limit
    disks: dict[str, DiskAnswer]
    quota: ToolOutput
    cpus: Annotated[int, Between(1, 1 << 20)]
    memory_mib: Annotated[int, Between(0, 1 << 40)]
    ends_at_logout: bool


Speed = Annotated[float, Between(0.0, 1e9)]
SpeedBySize = Annotated[dict[Digits, Speed], Longest(64), Strict]


class Measured(TypedDict):
    """measured.rank<k>.json of benchmark.py"""

    rank: Count
    node: Count
    local_rank: Count
    device: Word
    precision: Literal["bf16", "fp16", "fp32"]
    matmul_tflops: Speed
    intra: SpeedBySize
    inter: SpeedBySize
    pairs: SpeedBySize
