"""A model of LLaMA-Factory that answers a chat."""

from __future__ import annotations

from typing import Any, AsyncIterator

from .chat_request import Ask


class LlamaFactoryChat:
    """A model that LLaMA-Factory's own ChatModel has loaded."""

    def __init__(self, args: dict[str, Any]) -> None:
        from llamafactory.chat import ChatModel

        self._chat = ChatModel(args)
        encode_as_trained(self._chat.engine.template, args)
        # vLLM and SGLang abort a generation whose generator is closed.
        self.stoppable = self._chat.engine.model if args["infer_backend"] == "huggingface" else None

    def stream(self, ask: Ask) -> AsyncIterator[str]:
        """Return the pieces of an answer."""
        pieces: AsyncIterator[str] = self._chat.astream_chat(
            ask.messages, ask.system, None, ask.images, None, None, **ask.options
        )
        return pieces


def encode_as_trained(template: Any, args: dict[str, Any]) -> None:
    """Let a template encode the prompts of a chat as it encoded the conversations of the training.

    LLaMA-Factory encodes a chat with encode_oneturn. For a reasoning template, that has other thoughts in the history
    than encode_multiturn, with which it encodes the training data (0.9.5 src/llamafactory/data/template.py and
    processor/supervised.py).
    """
    discards_thoughts = bool(args.get("mask_history")) and not args.get("preserve_thinking")

    def encode(tokenizer: Any, messages: Any, system: Any = None, tools: Any = None) -> tuple[list[int], list[int]]:
        pairs = template.encode_multiturn(tokenizer, messages, system, tools, discards_thoughts)
        *earlier, (question, answer) = pairs
        return [token for pair in earlier for part in pair for token in part] + question, answer

    template.encode_oneturn = encode
