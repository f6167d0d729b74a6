"""What each scorer makes of samples."""

import torch

from bandpo_runs import toy
from bandpo_runs.data.questions import Question
from bandpo_runs.evals import grades
from bandpo_runs.evals.samples import Sample


def graded_by(scorer, texts, answers, finish="stop"):
    samples = [Sample("d", i, 0, 0, text, 1, finish) for i, text in enumerate(texts)]
    wanted = [Question("d", i, "?", answer) for i, answer in enumerate(answers)]
    return [(g.score, g.answer, g.status) for g in grades.grader_of(scorer)(samples, wanted)]


def test_each_scorer_says_what_it_read():
    assert graded_by("exact", [" a ", "b"], ["a", "a"]) == [(1, "a", "ok"), (0, "b", "ok")]
    assert graded_by("last-number", ["so 1,007.50", "7", "none"], ["1007.5", "8", "9"]) == [
        (1, "1007.5", "ok"),
        (0, "7", "ok"),
        (0, None, "unparsed"),
    ]
    assert graded_by("last-number", ["7.0", "007", "700"], ["7", "7", "7"]) == [
        (1, "7", "ok"),
        (1, "7", "ok"),
        (0, "700", "ok"),
    ]
    assert graded_by("dapo-strict", ["Answer: 42", "42"], ["42", "42"])[0][0] == 1
    assert [g[0] for g in graded_by("math", ["so \\boxed{42}", "\\boxed{41}"], ["42", "42"])] == [1, 0]


def test_the_labs_answers_are_graded_as_in_training():
    generator = torch.Generator().manual_seed(0)
    tokenizer, rows, texts, finishes = toy.tokenizer(), [], [], []
    for _ in range(3000):
        ids = torch.randint(0, toy.END + 1, (toy.MAX_COMPLETION,), generator=generator)
        ids[torch.rand(len(ids), generator=generator) < 0.3] = toy.ANSWER
        ids = torch.where(ids < toy.BASE, ids % 3, ids)
        ids[torch.rand(len(ids), generator=generator) < 0.2] = toy.END
        ids = ids.tolist()
        ids = ids[: ids.index(toy.END) + 1] if toy.END in ids else ids
        rows.append(ids)
        texts.append(tokenizer.decode(ids, skip_special_tokens=True))
        finishes.append("stop" if ids[-1] == toy.END else "length")
    answers = [toy.SYMBOLS[i % 3] for i in range(3000)]
    expected = toy.reward(texts, rows, answers)
    assert 10 < sum(expected) < 1000
    for text, finish, answer, score in zip(texts, finishes, answers, expected, strict=True):
        assert graded_by("lab", [text], [answer], finish=finish)[0][0] == score


def samples_of(*texts):
    return [Sample("d", i, 0, 0, text, 1, finish) for i, (text, finish) in enumerate(texts)]


def test_a_server_whose_answers_end_a_thinking_that_they_do_not_begin_opened_it():
    opened, cut = ("so it is 4</think>4", "stop"), ("so it is \\boxed{4}", "length")
    assert grades.thinking_in({"backend": "openai"}, samples_of(opened, opened, cut, cut, cut)) == "opened"
    assert grades.thinking_in({"backend": "openai"}, samples_of(("a[/THINK]4", "stop"))) == "opened"
    for other in [opened, ("4", "stop"), ("4", "stop")], [("<think>4</think>4", "stop"), cut], [cut], []:
        assert grades.thinking_in({"backend": "openai"}, samples_of(*other)) is None
    assert grades.thinking_in({"backend": "openai", "thinking": "opened"}, []) == "opened"
    assert grades.thinking_in({"backend": "vllm", "thinking": "opened"}, []) == "opened"
    assert grades.thinking_in({"backend": "vllm", "thinking": None}, samples_of(opened)) is None
