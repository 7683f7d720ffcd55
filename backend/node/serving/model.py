"""A model that answers, and stops generating when asked."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from typing import Any, Callable, Iterator

from .chat_request import Ask

LOOK_S = 0.2
"""How often a generation that has no new text looks whether its reader has left."""


class Model:
    """One loaded model. Any number of threads may ask; it generates for one at a time, in the order of arrival.

    `chat` is a LlamaFactoryChat or a SwiftChat: `stream` yields an answer, and `stoppable` is the model of transformers
    whose `generate` must be stopped, None if the generation ends with its stream.
    """

    def __init__(self, chat: Any) -> None:
        self._chat = chat
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._turn = threading.Lock()
        self._generation = Generation()
        if chat.stoppable is not None:
            self._generation.attach(chat.stoppable)

    def answer(self, ask: Ask, has_left: Callable[[], bool]) -> Iterator[str]:
        """Yield the pieces of an answer. It ends early when `has_left`, or when the iterator is closed."""
        while not self._turn.acquire(timeout=LOOK_S):
            if has_left():
                return
        self._generation.begin()
        pieces = self._chat.stream(ask)
        try:
            while (piece := self._next(pieces, has_left)) is not None:
                yield piece
        except Exception as error:  # what failed in `generate` explains what failed in its reader
            raise self._generation.error or error from None
        else:
            if self._generation.error is not None:
                raise self._generation.error
        finally:
            self._generation.stop.set()
            asyncio.run_coroutine_threadsafe(pieces.aclose(), self._loop).result()
            self._generation.over.wait()
            self._turn.release()

    def _next(self, pieces: Any, has_left: Callable[[], bool]) -> str | None:
        """Return the next piece; None at the end, and when the reader has left."""
        future = asyncio.run_coroutine_threadsafe(pieces.__anext__(), self._loop)
        while True:
            if has_left():
                self._generation.stop.set()
            try:
                piece: str = future.result(LOOK_S)
            except concurrent.futures.TimeoutError:
                continue
            except StopAsyncIteration:
                return None
            return None if self._generation.stop.is_set() else piece


class Generation:
    """The generation that transformers runs now: whether it must stop, has ended, or failed.

    The engines start it in a thread of its own, whose exception nobody would see, and which nobody can stop.
    """

    def __init__(self) -> None:
        self.stop, self.over = threading.Event(), threading.Event()
        self.over.set()
        self.error = None  # type: Exception | None

    def begin(self) -> None:
        self.stop.clear()
        self.error = None

    def attach(self, model: Any) -> None:
        """Let every `generate` of the model obey this object."""
        import torch
        from transformers import StoppingCriteria, StoppingCriteriaList

        generate, stop = model.generate, self.stop

        class Stopped(StoppingCriteria):  # type: ignore[misc]
            def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
                return torch.full((input_ids.shape[0],), stop.is_set(), device=input_ids.device, dtype=torch.bool)

        @functools.wraps(generate)  # ms-swift reads the names of its arguments
        def generate_until_stopped(*args: Any, **kwargs: Any) -> Any:
            self.over.clear()
            criteria = StoppingCriteriaList([*(kwargs.pop("stopping_criteria", None) or ()), Stopped()])
            try:
                return generate(*args, stopping_criteria=criteria, **kwargs)
            except Exception as error:
                self.error = error
                kwargs["streamer"].end()
            finally:
                self.over.set()

        model.generate = generate_until_stopped
