"""A reward function for GRPO that ms-swift loads by its file: the share of digits in a completion."""

from typing import Any

from swift.rewards import ORM, orms


class Digits(ORM):  # type: ignore[misc]
    def __call__(self, completions: list[str], **kwargs: Any) -> list[float]:
        return [sum(map(str.isdecimal, text)) / max(1, len(text)) for text in completions]


orms["digits"] = Digits
