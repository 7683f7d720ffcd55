"""Answers of the short programs on a node (node_programs.py) as typed records (typed_json.py).

Records that a node writes for a run are in runs/collect/node_records.py.
"""

from typing import Annotated, Any, Literal, NotRequired, Required, TypedDict

from backend.cluster.typed_json import Between, Count, Epoch, Like, Longest, Strict

Word = Annotated[str, Longest(255)]
Line = Annotated[str, Longest(1000)]
ToolOutput = Annotated[str, Longest(1 << 19)]
"""Output of a tool."""
Names = Annotated[list[str], Longest(1 << 18)]
Version = Annotated[str, Like(r"(\d{1,4}(\.\d{1,4}){0,3})?")]
"""`12.8`, or empty."""
Digits = Annotated[str, Like(r"\d{1,6}")]
Folder = Annotated[str, Like(r"/.*")]
Bytes = Annotated[int, Between(0, 1 << 62)]
Limit = Annotated[int, Between(-1, 1 << 64)]
"""Limit of a process. -1 and impossible values mean no limit."""


class OriginAnswer(TypedDict, total=False):
    """Source of a package. Empty for a package that is not installed."""

    version: Word
    url: Line
    commit: Word
    subdirectory: Line
    folder: str


class Facts(TypedDict):
    """software.py facts"""

    home: Folder
    hostname: Word
    python: Word
    modules: dict[str, Word | None]
    origins: dict[str, OriginAnswer]
    cuda: NotRequired[Version]
    nccl: NotRequired[Word]
    interface: NotRequired[Word]
    machine: Word
    time: Epoch


class Datasets(TypedDict):
    """Data sets in their folder."""

    info: bool
    unknown: list[str]
    missing: list[str]
    columns: dict[str, list[Line]]
    ranking: NotRequired[list[str]]
    judged: NotRequired[list[str]]


class Parts(TypedDict):
    """Extensions of DeepSpeed."""

    unbuilt: list[Word]
    locks: list[str]
    compiler: bool


class Paths(TypedDict):
    """software.py paths"""

    model: bool
    lacking: NotRequired[list[Line]]
    unmatched: NotRequired[list[Line]]
    """LoRA targets that no module of the model has as its name."""
    wandb: NotRequired[bool]
    """Whether wandb finds a log-in on the node."""
    dataset: Datasets
    not_writable: dict[str, Line]
    parts: Parts


class Prints(TypedDict, total=False):
    """fingerprints.py prints"""

    model: Annotated[dict[str, Word], Longest(1 << 14)]
    data: Annotated[dict[str, Word], Longest(1 << 14)]


class Written(TypedDict):
    """fingerprints.py write"""

    written: bool


class Seen(TypedDict):
    """fingerprints.py read"""

    seen: bool


class Nothing(TypedDict):
    """An answer that only confirms that the work is done."""


class HolderOfLock(TypedDict):
    """Run that holds a node."""

    run: Word


class Lock(TypedDict, total=False):
    """supervisor.py holder"""

    holder: HolderOfLock


class Image(TypedDict, total=False):
    """container.py container-facts"""

    image: Word
    refusal: Annotated[int, Between(0, 255)]
    detail: Line


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


class Surveyed(TypedDict):
    """hardware.py survey"""

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


class SavedFiles(TypedDict):
    """A checkpoint."""

    files: Names
    damaged: Names


class Checkpoints(TypedDict, total=False):
    """checkpoint_files.py look"""

    error: Line
    folder: str
    checkpoints: Annotated[dict[Annotated[str, Like(r"\d{1,15}")], SavedFiles], Longest(1 << 16)]


class SetAside(TypedDict, total=False):
    """checkpoint_files.py set_aside"""

    error: Line
    moved: Annotated[list[Count], Longest(1 << 16)]


class WhyNot(TypedDict, total=False):
    """Why a program failed."""

    path: str
    paths: str
    name: Word
    names: Word
    kinds: Line
    reason: Line
    module: Word


class Counted(TypedDict, total=False):
    """samples/main.py count"""

    code: Literal[
        "dataset_info_missing",
        "dataset_unknown",
        "dataset_not_local",
        "dataset_file_missing",
        "dataset_kind",
        "dataset_unreadable",
        "dataset_needs_module",
    ]
    values: WhyNot
    samples: Count
    rows: dict[str, Count]
    tokens: Count
    unmeasured: Line


class DataFault(TypedDict):
    """Rows of a data set with the same fault."""

    code: Literal[
        "column_missing",
        "message_key_missing",
        "media_missing",
        "media_unreadable",
        "row_refused",
        "row_dropped",
        "row_too_long",
        "row_left_out",
        "nothing_trained",
    ]
    detail: Line
    count: Count
    rows: Annotated[list[tuple[Count | None, Line]], Longest(20)]
    """Number of the row, and what this row has: a path, for example."""


class DataSetRead(TypedDict):
    """What was found in one data set."""

    name: Word
    rows: Count
    read: Count
    is_cut: bool
    """Not all rows were read, because reading took too long."""
    encoded: Count
    """Rows that the engine's code was tried on."""
    columns: Annotated[list[Word], Longest(200)]
    faults: Annotated[list[DataFault], Longest(20)]
    duplicates: Count
    duplicate_rows: Annotated[list[tuple[Count, Count]], Longest(20)]


Stretch = tuple[Annotated[str, Longest(1 << 17)], Count, bool]
"""Text, number of tokens, and whether they are trained."""


class ShownSequence(TypedDict):
    """One sequence as the model sees it."""

    part: Literal["", "chosen", "rejected"]
    tokens: Count
    uncut_tokens: Count
    trained_tokens: Count
    stretches: list[Stretch]
    uncut: list[Stretch]
    """Before it was cut; empty if nothing was cut."""


class DataExample(TypedDict, total=False):
    """A row as the model sees it."""

    dataset: Required[Word]
    row: Count
    kind: Required[Literal["first", "random"]]
    sequences: Annotated[list[ShownSequence], Longest(2)]
    thumbnails: Annotated[list[Annotated[str, Longest(1 << 16), Like("[A-Za-z0-9+/=]*")]], Longest(4)]
    """JPEG in base64; empty for an image that cannot be read."""
    images: Count


class DataPreview(TypedDict, total=False):
    """data_preview/main.py preview"""

    code: Literal[
        "dataset_info_missing",
        "dataset_unknown",
        "dataset_not_local",
        "dataset_file_missing",
        "dataset_kind",
        "dataset_unreadable",
        "dataset_needs_module",
    ]
    values: WhyNot
    datasets: Annotated[list[DataSetRead], Longest(64)]
    examples: Annotated[list[DataExample], Longest(512)]
    lengths: Annotated[list[Count], Longest(1 << 17)]
    """Tokens of each sequence of the sample before it is cut."""
    trained: Annotated[list[Count], Longest(1 << 17)]
    """Trained tokens of each of them."""
    packs: Count
    """Sequences of the cut-off length into which the engine packs the sample."""
    cutoff: Count


class DatasetInfoAnswer(TypedDict, total=False):
    """dataset_info/main.py: what every action answers."""

    code: Literal[
        "dataset_folder_missing",
        "dataset_info_broken",
        "dataset_entry_refused",
        "dataset_entry_changed",
        "dataset_info_not_written",
        "dataset_not_local",
        "dataset_file_missing",
        "dataset_kind",
        "dataset_unreadable",
        "dataset_needs_module",
        "dataset_unknown",
    ]
    values: WhyNot


class DatasetInfoRead(DatasetInfoAnswer, total=False):
    """dataset_info/main.py read"""

    folder: str
    is_there: bool
    entries: Annotated[list[tuple[Line, Any]], Longest(2000)]
    """Name and entry, in the order of the file."""
    files: Annotated[list[Word], Longest(200)]


class DatasetProposal(DatasetInfoAnswer, total=False):
    """dataset_info/main.py propose"""

    entry: dict[str, Any]
    columns: Annotated[list[Word], Longest(200)]


class DatasetChecked(DatasetInfoAnswer, total=False):
    """dataset_info/main.py check"""

    rows: Count
    read: Count
    converted: Count
    """Rows that the engine's converter was tried on."""
    columns: Annotated[list[Word], Longest(200)]
    faults: Annotated[list[DataFault], Longest(20)]


class DatasetWritten(DatasetInfoAnswer, total=False):
    """dataset_info/main.py write"""

    is_changed: bool


class KeyAnswer(TypedDict):
    """A key of an engine's configuration."""

    type: Word
    default: NotRequired[Any]
    choices: NotRequired[list[Any]]


class Program(TypedDict):
    """The keys of one program of an engine."""

    version: Word
    keys: dict[str, KeyAnswer]


class Parsed(TypedDict, total=False):
    """engine_args.py parse"""

    error: Line
    message: str
    programs: dict[str, Program]
    packages: dict[str, Line]
    gpu: Line
    generation: str
    """Why the model's generation_config.json cannot be written with a checkpoint."""


class FreePort(TypedDict, total=False):
    """dial.py free_port"""

    port: Annotated[int, Between(0, 65_535)]


class Dialled(TypedDict):
    """dial.py dial"""

    reached: bool
    detail: NotRequired[Line]
    is_named: NotRequired[bool]


class Listened(TypedDict):
    """dial.py listen"""

    bound: bool
    detail: NotRequired[Line]
    dialled: NotRequired[Dialled]


class Digest(TypedDict):
    """prepare_data.py look"""

    digest: Annotated[str, Like("[0-9a-z]{1,64}")]


class Progress(TypedDict):
    """progress.json of the copier"""

    done: Count
    total: Count


class Downloaded(TypedDict, total=False):
    """result.json of download.py: the reason of a failure"""

    code: Required[
        Literal[
            "download_target_taken",
            "download_gated",
            "download_not_found",
            "download_no_modelscope",
            "download_failed",
            "download_no_space",
            "download_wrong_hash",
        ]
    ]
    path: str
    id: Word
    url: Line
    file: Line
    detail: Line
    needed: Word
    free: Word


class Copied(TypedDict, total=False):
    """result.json of the copier: the reason of a failure"""

    code: Required[Literal["copy_refused", "copy_no_room", "copy_differs", "copy_corrupt"]]
    path: str
    paths: list[str]
    count: Count
    status: int | str
    needed_gib: Annotated[float, Between(0.0, 1e9)]
    free_gib: Annotated[float, Between(0.0, 1e9)]


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
