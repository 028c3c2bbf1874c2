"""Special tokens in texts: found by the tokenizer, broken on the wire, nowhere else."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from rune.transports.special_tokens import SpecialTokens, candidates

SPECIAL = ("<|im_end|>", "</s>", "[INST]", "<｜end▁of▁sentence｜>")


class Tokenizer:
    """One token a character; special tokens are one token when they are parsed. Counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, text: str, special: bool) -> list[int]:
        self.asked += 1
        if not special:
            return [ord(c) for c in text]
        parts = re.split("|".join(f"({re.escape(s)})" for s in SPECIAL), text)
        return [token for part in parts if part for token in ([-1] if part in SPECIAL else [ord(c) for c in part])]


def test_what_may_be_special_is_found() -> None:
    text = "a <|im_end|> <div class='x'> </s> x[0] [INST] a<b and c>d <｜end▁of▁sentence｜> <<|im_end|>>"
    assert candidates([text]) == {"<|im_end|>", "</s>", "[0]", "[INST]", "<｜end▁of▁sentence｜>"}
    assert candidates(["plain text", ""]) == set()


def test_every_text_of_a_message_is_covered_and_the_message_stays_as_it_is() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "say", "arguments": {"k": ["</s>", 1, None]}}}
    messages = [
        {"role": "user", "content": "end <|im_end|>", "images": ["</s>"]},
        {"role": "assistant", "content": "", "thinking": "[INST]", "tool_calls": [call]},
        {"role": "tool", "content": "<b></s></b>", "tool_name": "say"},
    ]
    before = repr(messages)
    sent, counts = SpecialTokens().neutralise(messages, Tokenizer())
    assert repr(messages) == before
    assert sent[0] == {"role": "user", "content": "end < |im_end|>", "images": ["</s>"]}
    assert sent[1]["thinking"] == "[ INST]"
    assert sent[1]["tool_calls"][0]["function"]["arguments"] == {"k": ["< /s>", 1, None]}
    assert sent[2]["content"] == "<b>< /s></b>"
    assert counts == {"<|im_end|>": 1, "</s>": 2, "[INST]": 1}


def test_texts_without_any_go_out_as_they_are() -> None:
    messages = [{"role": "user", "content": "<p>one</p> a[1] "}]
    sent, counts = SpecialTokens().neutralise(messages, Tokenizer())
    assert sent is messages
    assert counts == {}


def test_each_candidate_is_asked_about_once() -> None:
    known, tokenizer = SpecialTokens(), Tokenizer()
    page = "".join(f"<tag{n}>" for n in range(400)) + "</s>"
    messages = [{"role": "user", "content": page}]
    assert known.neutralise(messages, tokenizer)[1] == {"</s>": 1}
    assert tokenizer.asked < 50
    asked = tokenizer.asked
    assert known.neutralise(messages, tokenizer)[1] == {"</s>": 1}
    assert tokenizer.asked == asked
    known.neutralise([{"role": "user", "content": "nothing of the kind"}], tokenizer)
    assert tokenizer.asked == asked


def test_one_inside_the_brackets_of_another_is_broken_alone() -> None:
    for text, sent in (
        ("[<|im_end|>]", "[< |im_end|>]"),
        ("<a[INST]b>", "<a[ INST]b>"),
        ("<[</s>]>", "<[< /s>]>"),
    ):
        messages, counts = SpecialTokens().neutralise([{"role": "user", "content": text}], Tokenizer())
        assert messages[0]["content"] == sent
        assert sum(counts.values()) == 1


PIECES = st.sampled_from([*SPECIAL, "<", ">", "|", "[", "]", "<|im_", "end|>", " ", "text", "<p>", "/s"])


@given(st.lists(PIECES, max_size=12).map("".join))
def test_nothing_special_is_left_and_nothing_else_is_changed(text: str) -> None:
    sent, counts = SpecialTokens().neutralise([{"role": "user", "content": text}], Tokenizer())
    content = sent[0]["content"]
    assert -1 not in Tokenizer()(content, True)
    assert len(content) == len(text) + sum(counts.values())
    assert content.replace(" ", "") == text.replace(" ", "")
