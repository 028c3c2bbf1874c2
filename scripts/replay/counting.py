"""How many tokens a prompt really has: a chat template as servers print it, counted by a real tokenizer.

The template is chatml with tools as Qwen's models take them. Its marks (``<|im_start|>``, ``<|im_end|>``) are one token each and
no token spans them, so a prompt's count is the sum over its messages, and a message is counted once however often it is sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

__all__ = ["TEMPLATE", "VOCABULARY", "PromptCounter"]

VOCABULARY = {"qwen3": 151_669, "llama3": 128_256, "deepseek": 128_815, "smollm2": 49_152, "mistral-v1": 32_000}
"""Entries of each vocabulary, as ``/api/show`` gives them."""

_TOOLS_HEAD = (
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_TOOLS_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)
TEMPLATE = (
    "{{- if or .System .Tools }}<|im_start|>system\n{{ .System }}{{- if .Tools }}"
    + _TOOLS_HEAD
    + "{{- range .Tools }}\n"
    '{"type": "function", "function": {{ .Function }}}{{- end }}' + _TOOLS_TAIL + "{{- end }}<|im_end|>\n{{ end }}"
    "{{- range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}{{- range .ToolCalls }}\n<tool_call>\n"
    '{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}\n</tool_call>{{- end }}'
    "<tool_response>\n</tool_response><|im_end|>\n{{ end }}<|im_start|>assistant\n"
)
"""What ``/api/show`` says the template is; ``PromptCounter`` prints messages by the same rules."""

_MARKS = 2


class PromptCounter:
    """Counts prompts and replies with one tokenizer: a function from texts to their tokens."""

    def __init__(self, tokenizer: Callable[[list[str]], list[int]]) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, int] = {}

    def text(self, text: str) -> int:
        """Tokens of a text by itself."""
        if text not in self._known:
            self._known[text] = self._tokenizer([text])[0] if text else 0
        return self._known[text]

    def learn(self, texts: Iterable[str]) -> None:
        """Counts many texts at once, which some tokenizers do faster."""
        new = [text for text in dict.fromkeys(texts) if text and text not in self._known]
        self._known.update(zip(new, self._tokenizer(new), strict=True))

    def message(self, message: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] = ()) -> int:
        """Tokens of one message as the template prints it."""
        return _MARKS + self.text(printed(message, tools)) + self.text("\n")

    def prompt(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> int:
        """Tokens of the whole prompt, up to where the model begins to write."""
        has_system = any(message["role"] == "system" for message in messages)
        total = 0 if has_system or not tools else self.message({"role": "system", "content": ""}, tools)
        for message in messages:
            total += self.message(message, tools if message["role"] == "system" else ())
        return total + 1 + self.text("assistant\n")


def printed(message: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] = ()) -> str:
    """A message between the template's marks: its role and its content, calls and results in their tags."""
    role, content = message["role"], message.get("content") or ""
    if role == "tool":
        return f"user\n<tool_response>\n{content}\n</tool_response>"
    if tools:
        listed = "".join(f'\n{{"type": "function", "function": {_json(tool["function"])}}}' for tool in tools)
        content += _TOOLS_HEAD + listed + _TOOLS_TAIL
    for call in message.get("tool_calls") or ():
        function = {"name": call["function"]["name"], "arguments": call["function"].get("arguments") or {}}
        content += f"\n<tool_call>\n{_json(function)}\n</tool_call>"
    return f"{role}\n{content}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
