"""A process that cannot start a thread, as at its limit of processes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

LARGER_THAN_ANY_MEMORY = 1 << 47


@contextmanager
def without_threads() -> Iterator[None]:
    """Make the system refuse every new thread of this process. Running threads continue."""
    before = threading.stack_size(LARGER_THAN_ANY_MEMORY)
    try:
        yield
    finally:
        threading.stack_size(before)
