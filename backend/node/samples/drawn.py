"""Random sample of the rows of a data set, drawn while they are counted."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from typing import Any

EACH = 64
"""Number of neighbouring rows that are read from a table."""
TABLES = 8
"""Number of tables that are drawn."""


class Drawn:
    """Random sample of at most `most` rows of a stream (Li 1994, https://doi.org/10.1145/198429.198435, algorithm L).

    Each row is equally likely. A table has its number of rows without reading them, so only a few neighbouring rows of
    some tables are read.
    """

    def __init__(self, most: int = 512, seed: int = 0) -> None:
        self.dice = random.Random(seed)  # noqa: S311 - a draw, no secret
        self._most, self._seen = most, 0
        self._rows: list[Any] = []
        self._tables: list[tuple[int, Callable[[], list[Any]]]] = []
        self._weight = 1.0
        self._next = self._jump(most - 1)

    def offer_all(self, rows: Iterable[Any]) -> int:
        """Draw among these rows and all rows before. Return the number of these rows."""
        begin = self._seen
        for row in rows:
            if self._seen < self._most:
                self._rows.append(row)
            elif self._seen == self._next:
                self._rows[self.dice.randrange(self._most)] = row
                self._next = self._jump(self._next)
            self._seen += 1
        return self._seen - begin

    def offer_table(self, rows: int, read_some: Callable[[], list[Any]]) -> int:
        """Add a table of which `read_some` reads a few rows. Return its number of rows."""
        if rows:
            self._tables.append((rows, read_some))
        return rows

    def rows(self) -> list[Any]:
        """Return the drawn rows."""
        drawn = list(self._rows)
        if self._tables:
            weights = [rows for rows, _ in self._tables]
            for _, read_some in self.dice.choices(self._tables, weights, k=TABLES):
                drawn += read_some()
        return drawn

    def _jump(self, index: int) -> int:
        """Return the index of the next row that is drawn."""
        self._weight *= math.exp(math.log(1 - self.dice.random()) / self._most)
        return index + int(math.log(1 - self.dice.random()) / math.log1p(-self._weight)) + 1
