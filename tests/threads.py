"""A process that really cannot start a thread, as at the limit of its processes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

LARGER_THAN_ANY_MEMORY = 1 << 47


@contextmanager
def without_threads() -> Iterator[None]:
    """The system refuses every new thread of this process; those that run go on."""
    before = threading.stack_size(LARGER_THAN_ANY_MEMORY)
    try:
        yield
    finally:
        threading.stack_size(before)
