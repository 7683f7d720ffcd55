"""Threads of the SSH side: a machine that has none left says so as it does of descriptors and memory."""

import errno
import threading
from collections.abc import Callable


def start_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """A started daemon thread. Raises OSError with EAGAIN where no thread can be started."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from error
    return thread
