"""Values that many answers have, with their limits."""

from typing import Annotated

from backend.cluster.typed_json import Between, Like, Longest

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
