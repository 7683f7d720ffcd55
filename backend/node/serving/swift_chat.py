"""A model of ms-swift that answers a chat.

ms-swift 4.6.0: swift/pipelines/utils.py (prepare_model_template), swift/infer_engine/transformers_engine.py.
`swift deploy` serves the same engine. It is not used: it needs fastapi and uvicorn, it goes on generating when a reader
has left, and a request that cannot be encoded ends the thread that answers all others.
"""

from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator

from .chat_request import Ask

MOST_TOKENS = 1024
"""Tokens of an answer without a limit of its own, as with LLaMA-Factory. ms-swift would fill the model's context."""


class SwiftChat:
    """A model that ms-swift's own code has loaded, with transformers."""

    def __init__(self, args: dict[str, Any]) -> None:
        from swift.arguments import BaseArguments
        from swift.infer_engine import TransformersEngine
        from swift.pipelines.utils import prepare_model_template

        model, template = prepare_model_template(BaseArguments(**args))
        self._engine = TransformersEngine(model, template=template)
        self.stoppable = self._engine.model

    async def stream(self, ask: Ask) -> AsyncIterator[str]:
        """Yield the pieces of an answer."""
        loop = asyncio.get_running_loop()
        responses = await loop.run_in_executor(None, self._begin, ask)
        while (batch := await loop.run_in_executor(None, next, responses, None)) is not None:
            for response in batch:
                if response is not None and response.choices[0].delta.content:
                    yield response.choices[0].delta.content

    def _begin(self, ask: Ask) -> Any:
        """Encode a request, and return the generator of its answer."""
        from swift.infer_engine import InferRequest, RequestConfig

        system = [{"role": "system", "content": ask.system}] if ask.system is not None else []
        options = dict(ask.options)
        limit = options.pop("max_new_tokens", MOST_TOKENS)
        request = InferRequest(messages=[*system, *ask.messages], images=ask.images or [])
        return self._engine._infer([request], RequestConfig(stream=True, max_tokens=limit, **options))
