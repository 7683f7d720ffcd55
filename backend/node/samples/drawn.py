"""Rows drawn at random while a data set is counted."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from typing import Any

EACH = 64
"""Rows that are read together from a table."""
TABLES = 8


class Drawn:
    """So many rows of a stream, each as likely as any other (Li 1994, https://doi.org/10.1145/198429.198435, L).

    Tables know their number of rows without reading them: of some of these a few rows that stand together are read.
    """

    def __init__(self, most: int = 512) -> None:
        self.dice = random.Random(0)  # noqa: S311 - a draw, no secret
        self._most, self._seen = most, 0
        self._rows: list[Any] = []
        self._tables: list[tuple[int, Callable[[], list[Any]]]] = []
        self._weight = 1.0
        self._next = self._jump(most - 1)

    def offer_all(self, rows: Iterable[Any]) -> int:
        """Draw among these and all before; their number."""
        begin = self._seen
        for row in rows:
            if self._seen < self._most:
                self._rows.append(row)
            elif self._seen == self._next:
                self._rows[self.dice.randrange(self._most)] = row
                self._next = self._jump(self._next)
            self._seen += 1
        return self._seen - begin

    def offer_table(self, rows: int, some: Callable[[], list[Any]]) -> int:
        """Rows that `some` reads a few of; their number."""
        if rows:
            self._tables.append((rows, some))
        return rows

    def rows(self) -> list[Any]:
        """What was drawn."""
        found = list(self._rows)
        if self._tables:
            weights = [rows for rows, _ in self._tables]
            for _, some in self.dice.choices(self._tables, weights, k=TABLES):
                found += some()
        return found

    def _jump(self, place: int) -> int:
        self._weight *= math.exp(math.log(1 - self.dice.random()) / self._most)
        return place + int(math.log(1 - self.dice.random()) / math.log1p(-self._weight)) + 1
