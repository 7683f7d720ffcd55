"""Answers about data sets: samples, data_preview, dataset_info and prepare_data.py."""

from typing import Annotated, Any, Literal, Required, TypedDict

from backend.cluster.program_answers.values import Line, Word
from backend.cluster.typed_json import Count, Like, Longest


class Failure(TypedDict, total=False):
    """Why a program failed."""

    path: str
    paths: str
    name: Word
    names: Word
    kinds: Line
    reason: Line
    module: Word


WhyNoData = Literal[
    "dataset_info_missing",
    "dataset_unknown",
    "dataset_not_local",
    "dataset_file_missing",
    "dataset_kind",
    "dataset_unreadable",
    "dataset_needs_module",
]


class Counted(TypedDict, total=False):
    """samples/main.py count"""

    code: WhyNoData
    values: Failure
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

    code: WhyNoData
    values: Failure
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
    values: Failure


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


class Digest(TypedDict):
    """prepare_data.py look"""

    digest: Annotated[str, Like("[0-9a-z]{1,64}")]
