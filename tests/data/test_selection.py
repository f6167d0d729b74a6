"""Which rows make a file: duplicates, contradictions, lengths."""

import pytest
from published import BEFORE, BEHIND, aime24, dapo, dapo_raw, math, own, problem, put, rows_of

from bandpo.errors import UserError
from bandpo_runs import toy


def test_a_hundredfold_data_set_becomes_one(make, copies, tmp_path):
    rows = [dapo_raw(problem(i), str(i), i) for i in range(9)]
    put(copies, "dapo-math-17k-raw", [row for _ in range(100) for row in rows])
    outcome, _ = make("dapo-math-17k-raw")
    entry = outcome["dapo-math-17k-raw"]
    assert (entry["read"], entry["rows"], entry["dropped"]) == (900, 9, {"duplicate": 891})
    prepared = rows_of(tmp_path / "out/dapo-math-17k-raw.parquet")
    assert [row["answer"] for row in prepared] == [str(i) for i in range(9)]
    assert prepared[0]["prompt"] == [{"role": "user", "content": BEFORE + problem(0) + BEHIND}]


def test_a_conversation_is_all_that_the_user_says(make, tmp_path):
    """The last message of several is no problem of its own, and one before it can be an evaluation problem."""

    def talk(*said):
        messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
        return {"prompt": messages, "answer": "1"}

    held = own(tmp_path, [{"prompt": problem(9), "answer": "1"}], "held.jsonl")
    rows = [talk(problem(1), "7", "Sure?"), talk(problem(2), "7", "Sure?"), talk(problem(1), "8", "Sure?")]
    first = own(tmp_path, [*rows, talk(problem(9), "7", "Sure?"), talk(problem(3))], "first.jsonl")
    second = own(tmp_path, [talk(problem(2), "7", "Sure?"), talk(problem(4), "7", "Sure?")], "second.jsonl")
    outcome, _ = make(first, second, against=(held,))
    assert outcome["first"]["dropped"] == {"duplicate": 1, f"holds a problem of {held}": 1}
    assert outcome["second"]["dropped"] == {"same problem as in " + first: 1}


def test_the_same_problem_in_another_writing_is_a_duplicate(make, tmp_path):
    texts = ["Find $x+1$ now.", " find  $X + 1$\nnow.", "Find $x-1$ now.", "Find $x+1$ now!"]
    path = own(tmp_path, [{"prompt": text, "answer": "1"} for text in texts])
    outcome, _ = make(path)
    assert [row["extra_info"]["index"] for row in rows_of(tmp_path / "out/own.parquet")] == [0, 2, 3]
    assert outcome["own"]["dropped"] == {"duplicate": 1}
    assert outcome["own"]["examples"]["duplicate"][0].endswith("of row 0")


def test_of_problems_with_contradicting_answers_none_is_trained_on(make, copies, tmp_path):
    answers = {1: ["5", "5"], 2: ["5", "6"], 3: ["5", "6", "6", "5"], 4: ["4"]}
    rows = [dapo(problem(seed), answer, seed) for seed, each in answers.items() for answer in each]
    put(copies, "dapo-math-17k", rows)
    outcome, _ = make("dapo-math-17k")
    kept = [row["extra_info"]["problem"] for row in rows_of(tmp_path / "out/dapo-math-17k.parquet")]
    assert kept == [problem(1), problem(4)]
    assert outcome["dapo-math-17k"]["dropped"] == {"same problem with different answers": 6, "duplicate": 1}


def test_answers_that_only_look_different_do_not_contradict(make, copies):
    answers = [r"\frac{1}{2}", r"$\dfrac{1}{2}$", r"\tfrac{1}{ 2}", r"\left( 1 \right)", "(1)"]
    seeds = [1, 1, 1, 2, 2]
    rows = [math(problem(seed), answer, 5, i) for i, (seed, answer) in enumerate(zip(seeds, answers, strict=True))]
    put(copies, "math-levels-3-5", rows)
    outcome, _ = make("math-levels-3-5")
    assert outcome["math-levels-3-5"]["dropped"] == {"duplicate": 3}


def test_a_training_file_does_not_repeat_the_one_before_it(make, copies, tmp_path):
    again = [(300, "0"), (301, "7"), (9, "1"), (409, "1")]
    put(copies, "math-levels-3-5", [math(problem(seed), answer, 5, 0) for seed, answer in again])
    outcome, _ = make("paper")
    assert outcome["math-levels-3-5"]["dropped"] == {
        "same problem as in dapo-math-17k": 2,
        "holds a problem of aime24": 1,
    }


def test_as_published_counts_duplicates_and_keeps_them(make, copies, tmp_path):
    put(copies, "dapo-math-17k", [dapo(problem(1), a, i) for i, a in enumerate(["5", "5", "6"])])
    outcome, _ = make("dapo-math-17k", as_published=True)
    entry = outcome["dapo-math-17k"]
    assert (entry["rows"], entry["dropped"]) == (3, {})
    assert entry["kept_though"] == {"duplicate": 1, "same problem with different answers": 1}


def test_of_an_evaluation_set_only_what_cannot_be_asked_or_graded_is_dropped(make, tmp_path):
    answers = ["1", "1", "2", "proof", "", ["3", "4"]]
    rows = [{"prompt": problem(1), "answer": answer} for answer in answers]
    path = own(tmp_path, [*rows, {"prompt": "", "answer": "1"}])
    outcome, _ = make(path, columns={"evaluation": True})
    gone = {"no answer": 1, "answer has several values, where one is expected": 1, "no problem": 1}
    assert (outcome["own"]["rows"], outcome["own"]["dropped"]) == (4, gone)


def test_nothing_is_dropped_of_an_evaluation_set(make, copies):
    put(copies, "aime24", [aime24(problem(1), "5", i) for i in range(30)])
    outcome, _ = make("aime24")
    assert outcome["aime2024"]["rows"] == 30
    assert outcome["aime2024"]["kept_though"] == {"duplicate": 29}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """The lab's, with a chat template; text that it does not know is one token a word."""
    folder = tmp_path_factory.mktemp("tokenizer")
    made = toy.tokenizer()
    made.chat_template = (
        "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %} a a a{% endif %}"
    )
    made.save_pretrained(folder)
    return folder


def test_prompts_that_are_too_long_are_dropped_and_counted(make, tmp_path, tokenizer):
    lengths = [3, 12, 13, 14, 30]
    path = own(tmp_path, [{"prompt": " ".join(["a", "b", "0"] * 10)[: 2 * n - 1], "answer": "1"} for n in lengths])
    outcome, _ = make(path, tokenizer=str(tokenizer), max_prompt_tokens=16)
    from transformers import AutoTokenizer

    counter = AutoTokenizer.from_pretrained(tokenizer)
    counts = []
    for row in rows_of(tmp_path / "out/own.parquet"):
        counts.append(len(counter.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False)))
    entry = outcome["own"]
    assert entry["dropped"] == {"prompt longer than 16 tokens": 2}
    assert counts == [6, 15, 16]
    assert [e[-9:] for e in entry["examples"]["prompt longer than 16 tokens"]] == ["tokens 17", "tokens 33"]


def test_long_evaluation_prompts_stay(make, tokenizer):
    outcome, said = make("aime24", tokenizer=str(tokenizer), max_prompt_tokens=5)
    assert outcome["aime2024"]["rows"] == 30
    assert "  found and kept: 30 prompt longer than 5 tokens" in said


def test_a_tokenizer_that_cannot_count_is_named(make, tmp_path):
    toy.tokenizer().save_pretrained(tmp_path / "bare")
    with pytest.raises(UserError, match=r"^--tokenizer .*bare has no chat template"):
        make("aime24", tokenizer=str(tmp_path / "bare"))
    with pytest.raises(UserError, match=r"^--tokenizer .*nothing cannot be loaded: "):
        make("aime24", tokenizer=str(tmp_path / "nothing"))
