"""Answers of the programs in backend/node/checks, of the supervisor about its lock, and of container.py."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from backend.cluster.program_answers.values import Folder, Line, Names, Version, Word
from backend.cluster.typed_json import Between, Count, Epoch, Like, Longest


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
    has_pip: NotRequired[bool]
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
    unanswered: NotRequired[dict[str, Count]]
    """Path -> the first row that lacks what the rewards of GRPO compare with."""


class Parts(TypedDict):
    """Extensions of DeepSpeed."""

    unbuilt: list[Word]
    locks: list[str]
    compiler: bool


class ConfigFault(TypedDict):
    """Why a config.json is none (backend/node/config_text.py)."""

    fault: Literal[
        "config_empty",
        "config_truncated",
        "config_not_json",
        "config_nested",
        "config_not_object",
        "config_not_text",
        "config_unreadable",
    ]
    line: Count
    column: Count


class Paths(TypedDict):
    """software.py paths"""

    model: bool
    config: NotRequired[ConfigFault]
    lacking: NotRequired[list[Line]]
    unmatched: NotRequired[list[Line]]
    """LoRA targets that no module of the model has as its name."""
    undivided: NotRequired[Line]
    """The model's own class whose loss transformers' Trainer does not divide."""
    wandb: NotRequired[bool]
    """Whether wandb finds a log-in on the node."""
    dataset: Datasets
    not_writable: dict[str, Line]
    foreign: NotRequired[dict[str, Line]]
    """Folder -> the other user who owns it."""
    parts: Parts


class Prints(TypedDict, total=False):
    """fingerprints.py prints"""

    model: Annotated[dict[str, Word], Longest(1 << 14)]
    data: Annotated[dict[str, Word], Longest(1 << 14)]


class Written(TypedDict):
    """fingerprints.py write"""

    written: bool


class MarkSeen(TypedDict):
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
    architecture: Line
    """The version of transformers and the model_type that it does not know, where the engine's parser accepts it."""


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
