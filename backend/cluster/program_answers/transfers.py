"""Answers of copies and downloads: the copier and download.py."""

from typing import Annotated, Literal, Required, TypedDict

from backend.cluster.program_answers.values import Line, Word
from backend.cluster.typed_json import Between, Count


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
            "download_not_writable",
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
