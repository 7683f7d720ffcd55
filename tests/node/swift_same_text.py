"""swift_same_text.py FOLDER PRESERVE TEMPLATE...: what ms-swift trains and serves of one conversation, per template.

A Python that has ms-swift runs it. Training is its template in the mode `train`; serving is the mode that its
TransformersEngine sets (4.6.0 swift/infer_engine/transformers_engine.py). PRESERVE: `preserve_thinking` of a chat.
"""

import json
import sys
from typing import Any

from swift.infer_engine import InferRequest
from swift.model import get_model_processor
from swift.template import get_template

SYSTEM = "Answer in one word."
TURNS = ("What is 3 plus 4?", "Seven.", "And in Chinese? 三加四", "七。")
LONGEST = 8192


def texts(processor: Any, name: str, preserves: bool) -> dict[str, Any]:
    """Return the text that was trained before the last answer, and the prompt that a chat serves."""
    trained = get_template(processor, template_type=name, max_length=LONGEST)
    served = get_template(processor, template_type=name, max_length=LONGEST, preserve_thinking=preserves)
    trained.set_mode("train")
    served.set_mode("transformers")
    # The page gives the model its earlier answer back with the empty thought that it had written before it.
    thought = served.template_meta.non_thinking_prefix or ""
    labels = trained.encode({"messages": messages(TURNS)})
    prompt = served.encode(InferRequest(messages=messages((TURNS[0], thought + TURNS[1], TURNS[2]))))["input_ids"]
    decode = trained.tokenizer.decode
    return {
        "trained": decode(labels["input_ids"][: len(prompt)]),
        "served": decode(prompt),
        "answer": decode(labels["input_ids"][len(prompt) :]),
        "is_answer_trained": labels["labels"][len(prompt) + 1] != -100,
    }


def messages(turns: tuple[str, ...]) -> list[dict[str, str]]:
    roles = ("user", "assistant") * len(turns)
    talk = [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)]
    return [{"role": "system", "content": SYSTEM}, *talk]


def main() -> None:
    folder, preserves, *names = sys.argv[1:]
    _, processor = get_model_processor(folder, model_type="qwen3", load_model=False)
    print("\n" + json.dumps({name: texts(processor, name, preserves == "True") for name in names}))


if __name__ == "__main__":
    main()
