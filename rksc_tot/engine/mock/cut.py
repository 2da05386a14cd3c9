"""Where a text of the mock engine ends: at a stop string, at a token limit, or where the account's tokens or KV are used up."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from rksc_tot.engine.base import Account, Finish, GenerateRequest
from rksc_tot.engine.tokenization.find_stops import find_end, leading_stops


class Texts(NamedTuple):
    """A text that ``kept`` puts on the path: ``text``, after ``lead``, which was skipped, and before the ``ending``."""

    text: str = ""
    kept: str = ""
    lead: str = ""
    ending: str = ""


NOTHING = Texts()


def cut(
    raw: str, context: str, request: GenerateRequest, account: Account, needed: Collection[str], room: float
) -> tuple[str, Texts, Finish]:
    """Cut what the writer wrote at the end of the thought, or at a limit. ``room``: characters that the context has room for.

    Returns
    -------
    tuple
        The sampled text, the texts of the completion, and the reason of the end.
    """
    longest = int(min(len(raw) + 1, request.max_tokens, room))
    end = find_end(raw, 0, request.stop, request.skip_blank, request.rule)
    text, stop = (raw, "") if end is None else (raw[: end[0]], raw[end[0] : end[1]])
    begin = leading_stops(text, request.stop) if request.skip_blank else 0
    wanted = len(raw) + 1 if end is None else _decided(raw, end[1], request)  # the end-of-sequence token is drawn, too
    late, most = account.late, min(wanted, longest)
    if request.suffix is None:
        fed = context + raw[: most - 1]
        if (missing := len(fed) - request.handle.kept.fitting(fed, account, needed)) > 0:
            account.kv_short = True
            most -= missing
    granted = 0 if late else account.take(most)
    if granted == wanted:
        close = request.ending if end is None else stop  # a stop string closes a thought that ended its text
        ending = close if request.keep_stop else ""
        texts = Texts(text[begin:], text + ending, text[:begin], ending)
        return raw[:wanted], texts, "eos" if end is None else "stop"
    part = raw[:granted]
    return part, Texts(part[begin:], part, part[:begin]), "length" if granted == longest and not late else "budget"


def _decided(raw: str, end: int, request: GenerateRequest) -> int:
    """The number of characters after which the end of a thought is known. A rule may have to read on after the ``end``."""
    ends = range(end, len(raw))
    found = (n for n in ends if find_end(raw[:n], 0, request.stop, request.skip_blank, request.rule) is not None)
    return next(found, len(raw))
