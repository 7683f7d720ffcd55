"""Start of threads. A lack of threads raises OSError, as a lack of descriptors or memory does."""

import errno
import threading
from collections.abc import Callable


def start_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """Return a started daemon thread. Raises OSError(EAGAIN) where no thread can be started."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from error
    return thread
