"""The answer of model_profile.py on a node as a typed record (typed_json.py)."""

from typing import NotRequired, Required, TypedDict

from backend.cluster.program_answers.values import Line, Word
from backend.cluster.typed_json import Count


class ProfilePolynomial(TypedDict, total=False):
    """A figure of a layer as a function of batch and sequence; only what grows with the tokens."""

    token: float


class ProfileSaved(TypedDict, total=False):
    """Measured figures of a layer."""

    saved_bytes: ProfilePolynomial


class ProfileFigures(TypedDict, total=False):
    """Measured figures by attention implementation. A layer without attention has those of sdpa only."""

    flash_attention_2: ProfileSaved
    sdpa: ProfileSaved


ProfileKind = TypedDict(
    "ProfileKind",
    {
        "class": Required[Word],
        "group": Required[Word],
        "hidden": Required[Count | None],
        "in_execution_order": Required[bool],
        "figures": Required[ProfileFigures | None],
        "operators": Required[list[dict[str, str | bool | float]]],
    },
)
"""One kind of layer. backend/job/model/model_profile.py checks the operators."""


class ProfileTower(TypedDict):
    """A list of layers: the kind and the length of each run of equal layers."""

    name: Word
    order: list[list[Count]]


class ProfileModule(TypedDict):
    """A module with parameters that is in no tower."""

    role: Word
    group: Word
    parameters: Count


class ProfileMatrix(TypedDict):
    """An embedding or an output head."""

    rows: Count
    width: Count


class ProfileTotal(TypedDict):
    """All parameters of the model."""

    total: Count


class ProfileProblem(TypedDict):
    """Why there is no profile."""

    code: Required[Word]
    reason: NotRequired[Line]
    model_type: NotRequired[Word]
    version: NotRequired[Word]


class ModelProfile(TypedDict, total=False):
    """model_profile.py, without its measurements."""

    problem: ProfileProblem
    profile: Count
    digest: Word
    versions: dict[str, Word]
    model_type: Word
    architecture: Word
    kinds: list[ProfileKind]
    towers: list[ProfileTower]
    outside: list[ProfileModule]
    embedding: ProfileMatrix | None
    output: ProfileMatrix | None
    tied: bool
    parameters: ProfileTotal
