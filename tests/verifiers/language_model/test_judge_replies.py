"""Replies of judges in words: one verdict, or none."""

from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.verifiers.language_model.judge_replies import READERS, verdict

READ = [
    ("yes_no", "yes", "yes"),
    ("yes_no", " Yes.", "yes"),
    ("yes_no", "NO!", "no"),
    ("yes_no", "**No**, the sum is off.", "no"),
    ("yes_no", "The steps are correct.", "yes"),
    ("yes_no", "The steps are not quite right.", "no"),
    ("yes_no", "That is wrong.", "no"),
    ("yes_no", "It isn't wrong.", "yes"),
    ("yes_no", "At first I thought no, but then: yes.\nVerdict: yes", "yes"),
    ("yes_no", "**Verdict**: **No**", "no"),
    ("yes_no", "Verdict: yes\nVerdict: no", "no"),
    ("yes_no", "The answer is correct", "yes"),
    ("yes_no", "There is no error.", None),
    ("yes_no", "Yes and no.", None),
    ("yes_no", "yes, no, maybe", None),
    ("yes_no", "I know nothing about noses.", None),
    ("yes_no", "", None),
    ("rating", "7", "7"),
    ("rating", "I give it 7/10, as step 3 is right.", "7"),
    ("rating", "10 out of 10", "10"),
    ("rating", "Rating: 4\nBecause of step 2.", "4"),
    ("rating", "Step 2 is worth 8.", None),
    ("rating", "7.5", None),
    ("rating", "11", None),
    ("rating", "0", None),
    ("rating", "85%", None),
    ("rating", "-3", None),
    ("pairs", "2", "2"),
    ("pairs", "Candidate 1 is better.", "1"),
    ("pairs", "It is a tie.", "tie"),
    ("pairs", "1 beats 2.\nVerdict: 1", "1"),
    ("pairs", "1 or 2", None),
    ("pairs", "12", None),
]


def test_a_verdict_is_read_by_rule():
    for scale, reply, read in READ:
        assert verdict(reply, READERS[scale]) == read, reply


@given(st.text(), st.sampled_from(sorted(READERS)))
def test_no_reply_is_an_error(reply, scale):
    assert verdict(reply, READERS[scale]) in {None, "yes", "no", "tie", *map(str, range(1, 11))}


def test_a_long_reply_is_read_at_its_end():
    for scale, last in {"yes_no": "no", "rating": "3", "pairs": "2"}.items():
        assert verdict("Verdict: yes 9 1 " * 100_000 + f"\nVerdict: {last}", READERS[scale]) == last
