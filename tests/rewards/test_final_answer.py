"""Where an answer stands in what models, trainers and data sets write, and what takes it back."""

import time

import pytest
from scripts import load

from bandpo.rewards import grade
from bandpo.rewards.final_answer import final_answer, without_thinking


def stated(text, thinking=None):
    found = final_answer(text, thinking)
    return list(found.answers) if found else None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 42", "42"),
        ("Answer: 41\nAnswer:\n\n  42 \nmore", "42"),
        ("The **final answer**: 42. It is even.", "42"),
        ("Answer: 42. Then I stop.", "42"),
        ("### Final Answer\n\n42", "42"),
        ("**Final Answer**\n\n$42$\n\nI checked it.", "$42$"),
        ("## Answer\n---\n42 apples\n", "42 apples"),
        ('{"reasoning": "6 times 7", "answer": "42"}', "42"),
        ("\u7b54\u6848\uff1a42", "42"),
        ("the answer is 42", "42"),
        ("The answer to the question is 42.", "42."),
        ("6 * 7 = 42\n#### 42", "42"),
        ("It is done. #### 42", "42"),
        ("#### Step 2: add\nso \\boxed{42}", "42"),
        ("<answer>\n42\n</answer>", "42"),
        ("<answer>Six times seven:\n42 apples</answer>", "42 apples"),
        ("\\boxed{42}", "42"), ("\\fbox{42}", "42"), ("we get $\\boxed 7$.", "7"), ("\\boxed\\pi is it", "\\pi"),
        ("\\boxed{\\boxed{42}}", "42"), ("\\boxed{1} then \\boxed{\\{2\\}}", "\\{2\\}"),
        ("We multiply.\n\n**42**", "42**"), ("We multiply.\nResult: $42$", "$42$"), ("my answers were 42", None),
        ("The sum is 42", None), ("I don't know: 42", None), ("", None),
    ],
)  # fmt: skip
def test_the_forms_of_a_statement(text, answer):
    assert stated(text) == (None if answer is None else [answer])


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 42\n\\boxed{43}", "43"),
        ("\\boxed{43}\nAnswer: 42", "42"),
        ("\\boxed{41}\nAnswer: 42\n\n**Answer:**\n", "42"),
        ("\\boxed{41}. Wait, no.\n#### 42", "42"),
        ("<answer>41</answer> I mean: the answer is 42", "42"),
        ("Answer: 42\n" + "y" * 5000 + "\nAnswer:", "42"),
        ("x" * 5000 + "\nAnswer: 42\n" + "y" * 5000, "42"),
        ("\\boxed{42}. I checked that the answer is correct.", "42"),
        ("\\boxed{42}\nConfidence: 95", "42"),
        ("\\boxed{42}\n\nCheck: $6 \\cdot 7 = 42$", "42"),
        ("\\boxed{41}\nFinal: 42", "42"),
        ("Answer: the answer is 42", "the answer is 42"),
        ("$\\boxed{42}$. We may check our answer: $6 + 36 = 42$, so it is right.", "42"),
    ],
)
def test_the_last_statement_counts_whatever_its_kind(text, answer):
    assert stated(text) == [answer]


@pytest.mark.parametrize(
    "end",
    [
        "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "</s>", "<eos>", "<end_of_turn>", "<|return|>", "<eoa>", "<pad>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    ],
)  # fmt: skip
def test_tokens_that_end_a_text_are_no_part_of_the_answer(end):
    assert stated(f"Answer: 42{end}") == ["42"]
    assert stated(f"It is \\boxed{{42}}.{end}\n{end}") == ["42"]


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("<think>Answer: 12</think>It is \\boxed{70}", "It is \\boxed{70}"),
        ("no opening tag: Answer: 12</think>70", "70"),
        ("<think>one</think> <think>two</think>70", "70"),
        ("[THINK]12[/THINK]70", "70"),
        ("<reasoning>12</reasoning><answer>70</answer>", "<answer>70</answer>"),
        ("<|channel|>analysis<|message|>12<|end|><|start|>assistant<|channel|>final<|message|>70", "70"),
        ("analysisWe add. Answer: 12assistantfinal70", "70"),
        ("<|begin_of_thought|>12<|end_of_thought|>70", "70"),
        ("<think>Answer: 12", ""),
        ("<|channel|>analysis<|message|>Answer: 12", ""),
        ("70 <think>Answer: 12", "70 "),
        ("Answer: 70", "Answer: 70"),
    ],
)
def test_thinking_is_not_the_answer(text, rest):
    assert without_thinking(text) == rest


def test_a_block_that_the_prompt_opened_must_be_closed():
    assert stated("so Answer: 70", "opened") is None
    assert stated("so Answer: 12</think>Answer: 70", "opened") == ["70"]
    assert [g.score for g in grade(["Answer: 70"] * 2, ["70"] * 2, thinking="opened")] == [0, 0]


def test_a_json_field_that_is_nested_too_deeply_is_no_answer():
    assert [g.score for g in grade(['"answer": ' + "[" * 2000, '{"answer": ' + '{"a":' * 2000], ["42"] * 2)] == [0, 0]


def test_boxes_that_stand_together():
    texts = [
        "$x=\\boxed{1}$ or $x=\\boxed{2}$",
        "\\boxed{1} and \\boxed{2}",
        "\\boxed{1} and \\boxed{2}",
        "$\\boxed{x+1}$ or $\\boxed{1+x}$",
    ]
    assert [g.score for g in grade(texts, ["1,2", "\\{2,1\\}", "2", "x+1"])] == [1, 1, 1, 1]
    assert [g.score for g in grade(texts[:2], ["1", "1"])] == [0, 0]
    assert [g.score for g in grade([texts[0], "\\boxed{1}, \\boxed{2}"], ["2", "2"])] == [0, 0]


def test_the_unit_beside_a_box_is_the_answer_s():
    texts = ["\\boxed{42} cents", "$\\boxed{25}\\%$", "\\$\\boxed{42}", "$\\boxed{42}$ dollars"]
    assert [g.score for g in grade(texts, ["\\$42", "0.25", "\\$42", "\\$42"])] == [0, 1, 1, 1]


def test_where_the_answers_of_tricky_texts_stand():
    """All that are whole texts; test_grading.py has the others."""
    scorers = load("research/measurements/scorers.py")
    cases = [case for case in scorers.tricky("answer") if case.whole]
    assert len(cases) > 300
    assert scorers.misjudged(cases) == []


@pytest.mark.parametrize(
    "text",
    [
        "<" * 10**6,
        " " * 10**6 + "x",
        "\\boxed{" * 10**5,
        "answer" * 10**5,
        "a\n" * 10**5 + "####" * 100,
        "So the answer is " * 10**4,
        "#### " * 10**4,
        "\\boxed{1}\n" * 10**4 + "the answer is\n" * 10**4,
        "<answer></answer>\n" * 10**4,
        *(
            f"$\\boxed{{7}}{again * 200}x$"
            for again in ("^\\circ ", "\\right)", "\\pmod{5}", " m}", " m^{2}", "~~m", "/ m", "\\left(")
        ),
        *(f"${again * 200}2\\boxed{{7}}$" for again in ("\\left(", "\\displaystyle{", "\\textstyle{")),
        "\\boxed{6}" + "\\text{  }" * 200 + "x\\boxed{7}",
    ],
)
def test_looking_for_an_answer_takes_time_in_proportion_to_the_length(text):
    for _ in range(3):  # on a machine that is busy
        half, whole = (seconds(text[:length]) for length in (len(text) // 2, len(text)))
        if whole < 3 * half + 0.5:  # twice; the square would be four times
            return
    pytest.fail(f"half of the text takes {half:.2f} s, the whole {whole:.2f} s")


def seconds(text):
    began = time.process_time()
    final_answer(text)
    return time.process_time() - began
