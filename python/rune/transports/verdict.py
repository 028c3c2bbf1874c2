"""Whether the model saw the whole prompt: a pure judgement of one answered call, with the numbers it rests on.

Servers cut prompts in silence, so the judgement starts from what the count of prompt tokens rules out and only then looks
for a proof. In this order, the first that holds decides:

1. ``incomplete``: the reply had no end.
2. ``cut``: the count is what a cut leaves on servers that keep the front and half a window, and the estimate is above it
   (``suspected`` on versions that are not known to cut so).
3. ``suspected``: the count fills the window or is over it.
4. ``suspected``: the count is below the number of words.
5. ``shifted``: prompt and reply together are longer than the window.
6. ``suspected``: the count is below 0.6 of ``chars4`` where nothing proves the contrary.
7. ``whole``: the server can refuse, was asked to and did not; or the bytes of the prompt, which no byte-level tokenizer can
   exceed, fit the window.
8. ``unknown``: none of these.

``refused`` is no answer and therefore never comes from here: it is the ``PromptRefused`` of a transport.
"""

from __future__ import annotations

from dataclasses import dataclass

from rune.transports.base import Verdict

__all__ = ["LOW_COUNT", "ServerTraits", "halved_count", "judge"]

LOW_COUNT = 0.6
"""A count below this share of ``chars4`` is suspicious: prose reads 0.7 to 1.3, and denser texts read higher."""

DEFAULT_NUM_KEEP = 4


@dataclass(frozen=True, slots=True)
class ServerTraits:
    """How a server behaves, as far as its version tells.

    Attributes:
        can_refuse: it refuses a prompt longer than its window when asked to; None when unknown.
        counts_all: its prompt count covers the part that came from the prefix cache too.
        halves: a prompt that it cuts keeps about half a window; None when unknown.
        takes_full_window: a prompt of exactly the window is accepted (else one token less is the limit).
        reply_slack: tokens by which prompt + reply may exceed the window without a shift (the last one is never read back).
    """

    can_refuse: bool | None = None
    counts_all: bool = True
    halves: bool | None = None
    takes_full_window: bool = False
    reply_slack: int = 0


def judge(
    *,
    traits: ServerTraits,
    done: bool,
    asked_to_refuse: bool,
    prompt_tokens: int | None,
    output_tokens: int | None,
    window: int | None,
    estimate: int,
    num_keep: int | None = None,
    add_bos: bool | None = None,
    upper_bound: int | None = None,
    words: int = 0,
) -> Verdict:
    """The verdict of one answered call.

    Args:
        traits: what is known of the server.
        done: whether the reply had its end.
        asked_to_refuse: whether the request carried ``truncate: false`` (or the server never cuts).
        prompt_tokens, output_tokens: the server's counts; None or 0 where it gave none.
        window: the window that the server works with, as far as known (num_ctx sent, capped at the trained window).
        estimate: ``chars4`` of what was sent.
        num_keep: as sent; None is the server's default of 4.
        add_bos: whether the tokenizer puts a BOS token in front, which num_keep then does not count; None when unknown.
        upper_bound: most tokens that the prompt can have: its UTF-8 bytes and what the template may add.
        words: words in the messages, parted by whitespace; each is a token at least.
    """
    if not done:
        return Verdict("incomplete", "the reply ended without the server saying that it was done")
    asked = asked_to_refuse and traits.can_refuse is True
    bound = upper_bound if upper_bound is not None and window is not None and upper_bound <= window - 1 else None
    count = prompt_tokens if prompt_tokens and traits.counts_all else None
    if count is not None:
        found = _ruled_out(traits, asked, bound, count, output_tokens or 0, window, estimate, num_keep, add_bos, words)
        if found is not None:
            return found
    if asked:
        served = "" if count is None else f"; it counted {count} prompt tokens"
        return Verdict("whole", f"the server can refuse a prompt that is too long, was asked to, and did not{served}")
    if bound is not None:
        return Verdict("whole", f"at most {bound} tokens by its bytes, for a window of {window}")
    if count is None:
        reason = "the count covers only what was not cached" if prompt_tokens else "the server gave no count"
        return Verdict("unknown", f"{reason}, and nothing else tells")
    return Verdict("unknown", f"{count} tokens served for an estimate of {estimate}; nothing proves that this was all")


def _ruled_out(
    traits: ServerTraits,
    asked: bool,
    bound: int | None,
    count: int,
    output: int,
    window: int | None,
    estimate: int,
    num_keep: int | None,
    add_bos: bool | None,
    words: int,
) -> Verdict | None:
    """What a count rules out, or None."""
    if window is not None:
        if count in _halved(window, num_keep, add_bos) and count < estimate:
            leaves = (
                f"{count} prompt tokens is what a cut to a window of {window} leaves, and the estimate is {estimate}"
            )
            if traits.halves is not False:
                return Verdict("cut", leaves)
            if not asked:
                return Verdict("suspected", f"{leaves}; this version is not known to cut so")
        full = count == window and asked and traits.takes_full_window
        if count >= window and not full:
            return Verdict("suspected", f"{count} prompt tokens fill the window of {window}: cut, or exactly full")
    if count < words:
        return Verdict("suspected", f"{count} prompt tokens for {words} words: a part of the prompt was not there")
    if window is not None and count + output > window + traits.reply_slack:
        return Verdict(
            "shifted",
            f"{count} prompt and {output} reply tokens ran over the window of {window}: "
            "the reply's end did not see the prompt's beginning",
        )
    if not asked and bound is None and count < LOW_COUNT * estimate:
        return Verdict(
            "suspected",
            f"{count} prompt tokens for an estimate of {estimate}, below {LOW_COUNT} of it{_smaller_window(count, window)}",
        )
    return None


def halved_count(window: int, num_keep: int) -> int:
    """Tokens that remain of a prompt that llama-server based Ollama cuts to ``window``, keeping ``num_keep`` in front.

    Source: measured on Ollama 0.32.15 for windows of 512 to 2048 and num_keep of -1 to 400.
    """
    keep = window - 1 if num_keep < 0 else min(num_keep, window - 1)
    return window - max((window - keep) // 2, 1)


def _halved(window: int, num_keep: int | None, add_bos: bool | None) -> set[int]:
    keep = DEFAULT_NUM_KEEP if num_keep is None else num_keep
    keeps = {True: [keep + 1], False: [keep], None: [keep, keep + 1]}[add_bos] if keep >= 0 else [keep]
    return {halved_count(window, k) for k in keeps}


def _smaller_window(count: int, window: int | None) -> str:
    """Names the smaller window whose cut would leave exactly this count: the server may not run what it was sent."""
    size = 2048
    while window is not None and size < window:
        if count in (size, *_halved(size, None, None)):
            return f"; a cut to a window of {size} leaves exactly that"
        size *= 2
    return ""
