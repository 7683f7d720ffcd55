"""The numbers of a run as CSV: a row for each step of each attempt, a column for each name."""

import csv
import io
from collections.abc import Iterator, Sequence

from backend.runs.database import Database

ROWS_AT_ONCE = 500


def csv_lines(database: Database, run: str, names: Sequence[str] = ()) -> Iterator[str]:
    """Return the CSV in parts. `names`: the metrics to write; none: all.

    Raises ProblemsError(unknown_run) at the first part.

    The first columns are attempt, step and time (epoch seconds). A name begins with a letter, a digit or `_`
    (node_records.MetricName), so no spreadsheet takes it for a formula.
    """
    with database.read() as reader:
        columns = reader.metric_columns(run)
        if names:
            columns = [*columns[:3], *(name for name in columns[3:] if name in names)]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        for number, row in enumerate(reader.metric_rows(run, columns), 1):
            if names and all(value is None for value in row[3:]):
                continue
            writer.writerow(row)
            if number % ROWS_AT_ONCE == 0:
                yield text.getvalue()
                text.seek(0)
                text.truncate()
        yield text.getvalue()
