"""The folder of an evaluation: killed at any byte, no sample is lost or there twice; other settings are refused."""

import os
from dataclasses import asdict, replace

import pytest
from commands import missing, refusal
from disk import json_rows, write

from bandpo_runs.data.questions import Question, fingerprint
from bandpo_runs.evals.folder import Evaluation, read_graded, read_metadata, read_questions, read_samples
from bandpo_runs.evals.samples import Sample, Sampling, seed_of
from bandpo_runs.files.writing import Appender

QUESTIONS = [
    Question("a", 0, "1 + 1 =", "2", {"item": 7}),
    Question("a", 1, [{"role": "user", "content": "zwei plus zwei? 二加二"}], "4"),
    Question("b", 0, "3 + 3 =", "6"),
]
SAMPLING = Sampling(n=4, max_tokens=8)
FACTS = {"label": "Tiny", "model": "m", "weights": "w", "backend": "transformers", "scorer": "exact",
         "versions": {"torch": "2"}, "command": "bandpo eval it", "started": "now"}  # fmt: skip


def answer(key, seed):
    """What a model says: of the seed, and of awkward characters."""
    return Sample(*key, seed, f"{seed}\n\u2028\x00\ud800 {{}}", 1 + seed % 8, "stop" if seed % 3 else "length")


def draw(folder, sampling=SAMPLING, questions=QUESTIONS, facts=FACTS, most=None):
    """Draw what is missing, or so many at most; whether all is there."""
    with Evaluation(folder, facts, sampling, questions) as evaluation:
        for count, request in enumerate(evaluation.todo()):
            if count == most:
                return False
            evaluation.add(answer(request.key, request.seed))
    return True


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "eval"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """samples.jsonl of the evaluation that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    draw(folder)
    return (folder / "samples.jsonl").read_bytes()


# ---- killed


@pytest.mark.parametrize("torn", [b"", b"\n", b'{"a": 2}', b'{"a":'])
def test_the_line_that_a_killed_process_began_is_cut_off(tmp_path, torn):
    path = write(tmp_path / "rows.jsonl", b'{"a": 1}\n' + torn)
    with Appender(path) as file:
        assert file.rows == [{"a": 1}]
        file.add({"a": 3})
    assert path.read_bytes() == b'{"a": 1}\n' + (torn if torn == b"\n" else b"") + b'{"a":3}\n'


@pytest.mark.slow
def test_cut_off_at_every_byte_it_goes_on_to_the_same_file(folder, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: None)  # thousands of them take minutes on some disks
    small = Sampling(n=1, max_tokens=8)
    draw(folder, small)
    complete = (folder / "samples.jsonl").read_bytes()
    assert complete.count(b"\n") == 3
    for size in range(len(complete)):
        (folder / "samples.jsonl").write_bytes(complete[:size])
        assert len(read_samples(folder)) == complete[:size].count(b"\n")  # whoever only reads changes nothing
        assert (folder / "samples.jsonl").stat().st_size == size
        draw(folder, small)
        assert (folder / "samples.jsonl").read_bytes() == complete


def test_a_folder_killed_before_it_says_what_it_is_begins_again(folder, whole):
    write(folder / "samples.jsonl", b"")
    write(folder / "prompts.jsonl", b'{"half')
    assert (draw(folder), (folder / "samples.jsonl").read_bytes()) == (True, whole)


def test_what_is_there_is_not_drawn_again(folder):
    draw(folder, most=5)
    first, _ = json_rows(folder / "samples.jsonl"), draw(folder)
    rows = json_rows(folder / "samples.jsonl")
    assert (len(first), rows[:5]) == (5, first)
    asked = {(q.data, q.prompt, i) for q in QUESTIONS for i in range(4)}
    assert {tuple(row[k] for k in ("data", "prompt", "sample")) for row in rows} == asked


def test_the_start_is_that_of_the_first_part(folder):
    draw(folder, most=1)
    draw(folder, facts={**FACTS, "started": "later"})
    assert read_metadata(folder)["started"] == "now"


# ---- refused

OTHER = {
    "model": ({"facts": {**FACTS, "model": "n", "weights": "v"}}, "model: 'm' there, 'n' now; other weights"),
    "weights": ({"facts": {**FACTS, "weights": "v"}}, "other weights"),
    "back end": ({"facts": {**FACTS, "backend": "vllm"}}, "backend: 'transformers' there, 'vllm' now"),
    "seed": ({"sampling": replace(SAMPLING, seed=1)}, "sampling.seed: 0 there, 1 now"),
    "fewer": ({"sampling": replace(SAMPLING, n=3)}, "sampling.n: 4 there, 3 now"),
    "two": (
        {"sampling": replace(SAMPLING, top_p=0.9, top_k=5)},
        "sampling.top_k: -1 there, 5 now; sampling.top_p: 1.0 there, 0.9 now",
    ),
    "questions": ({"questions": [*QUESTIONS[:2], replace(QUESTIONS[2], answer="7")]}, "other data.b"),
    "more data": ({"questions": [*QUESTIONS, Question("c", 0, "?", "!")]}, "other data.c"),
}


@pytest.mark.parametrize(("changes", "message"), OTHER.values(), ids=OTHER)
def test_other_settings_are_refused_by_name_and_nothing_is_changed(folder, changes, message):
    draw(folder, most=5)
    before = {path: path.read_bytes() for path in folder.iterdir() if path.name != "eval.json"}
    assert f"other settings ({message})" in refusal(draw, folder, **changes)
    assert ({path: path.read_bytes() for path in before}, draw(folder)) == (before, True)


def test_another_precision_is_refused(folder):
    with Evaluation(folder, FACTS, SAMPLING, QUESTIONS) as evaluation:
        for _ in range(2):
            evaluation.record("dtype", "float32")
        assert "dtype: 'float32' there, 'bfloat16' now" in refusal(evaluation.record, "dtype", "bfloat16")


def test_a_model_that_was_moved_is_the_same_model_unless_only_its_name_is_known(folder):
    draw(folder, most=5)
    assert draw(folder, facts={**FACTS, "model": "elsewhere/m"})
    served, facts = folder.with_name("served"), {**FACTS, "weights": None}
    draw(served, most=5, facts=facts)
    assert "other settings (model: 'm' there, 'n' now)" in refusal(draw, served, facts={**facts, "model": "n"})


def test_more_samples_are_added_to_those_that_are_there(folder, tmp_path):
    draw(folder)
    first, more = json_rows(folder / "samples.jsonl"), replace(SAMPLING, n=6)
    for each in (folder, tmp_path / "at once"):
        draw(each, more)
    assert (json_rows(folder / "samples.jsonl")[:12], read_samples(folder)) == (
        first, read_samples(tmp_path / "at once")
    )  # fmt: skip


def test_one_process_writes_at_a_time(folder):
    with Evaluation(folder, FACTS, SAMPLING, QUESTIONS):
        assert "another process is writing to" in refusal(draw, folder)
    assert draw(folder)


DAMAGE = {
    "no JSON": (lambda rows: [rows[0], b"{", rows[1]], "line 2: corrupt: one JSON object is expected"),
    "no object": (lambda rows: [b"3"], "line 1: corrupt: one JSON object is expected"),
    "twice": (lambda rows: [rows[0], rows[1], rows[0]], "line 3: corrupt: sample ('a', 0, 0) is there twice"),
    "not asked for": (
        lambda rows: [rows[0].replace(b'"prompt":0', b'"prompt":5')],
        "line 1: corrupt: sample ('a', 5, 0) is not asked for",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_refused_with_the_line(folder, damage, message):
    draw(folder, most=5)
    path = folder / "samples.jsonl"
    content = b"".join(row + b"\n" for row in damage(path.read_bytes().split(b"\n")[:-1]))
    write(path, content)
    assert (message in refusal(draw, folder), path.read_bytes()) == (True, content)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n": 0}, "n must be from 1 to 100,000, got 0"),
        ({"temperature": float("inf")}, "temperature must be 0 or more, and finite, got inf"),
        ({"temperature": float("nan")}, "temperature must be 0 or more, and finite, got nan"),
        ({"temperature": 0.0}, "n must be 1 at temperature 0, "),
        ({"top_p": 0.0}, "top_p must be in (0, 1], got 0.0"),
        ({"top_k": 0}, "top_k must be -1 (all) or from 1 to 2^31, got 0"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, and below 2^31, got 0"),
        ({"seed": -1}, "seed must be 0 or more, and below 2^53, got -1"),
    ],
)
def test_sampling_that_makes_no_sense_is_refused(changes, message):
    assert message in refusal(Sampling, **changes)


# ---- seeds


def test_every_sample_has_a_seed_of_its_own_that_every_server_takes():
    seeds = [seed_of(0, question, i) for question in QUESTIONS for i in range(10_000)]
    assert (len({*seeds}), 0 <= min(seeds) <= max(seeds) < 2**31) == (len(seeds), True)
    assert seed_of(0, QUESTIONS[0], 2**31 - seeds[0]) == 0  # the count goes round


def test_a_seed_depends_on_the_question_and_not_on_its_place():
    moved = replace(QUESTIONS[0], data="z", prompt=9, answer="?")
    assert seed_of(3, moved, 2) == seed_of(3, QUESTIONS[0], 2) != seed_of(4, moved, 2)
    # What is in folders must be found again by later versions; printf '"1 + 1 ="\n' | sha256sum
    assert (seed_of(0, QUESTIONS[0], 1), QUESTIONS[0].id) == (1_549_262_483, "9db80a26c063662e")


# ---- reading


def grades(folder, samples, scorer="exact"):
    with Appender(folder / f"grades-{scorer}.jsonl") as file:
        for s in samples:
            right = s.seed % 2
            grade = {"score": right, "answer": s.text if right else None, "status": "ok" if right else "unparsed"}
            file.add({"data": s.data, "prompt": s.prompt, "sample": s.sample} | grade)


def test_graded_samples_are_arrays_in_the_order_of_questions_and_samples(folder):
    rows = [answer((q.data, q.prompt, i), seed_of(0, q, i)) for q in QUESTIONS for i in range(4)]
    with Evaluation(folder, FACTS, SAMPLING, QUESTIONS) as evaluation:
        for sample in rows[::-1]:
            evaluation.add(sample)
    grades(folder, rows[1:] + rows[:1])
    a, b = read_graded(folder)
    assert (a.data, b.data, b.score.shape, a.prompt_ids) == ("a", "b", (1, 4), [q.id for q in QUESTIONS[:2]])
    for array, of in (
        (a.score, lambda s: s.seed % 2),
        (a.tokens, lambda s: s.tokens),
        (a.truncated, lambda s: s.finish == "length"),
        (a.parsed, lambda s: bool(s.seed % 2)),
        (a.answers, lambda s: s.text if s.seed % 2 else None),
        (read_graded(folder, "exact")[0].score, lambda s: s.seed % 2),
    ):
        assert array.tolist() == [[of(s) for s in row] for row in (rows[:4], rows[4:8])]


def test_what_is_missing_is_said_with_the_command_that_makes_it(folder):
    draw(folder, most=5)
    assert "not finished: 5 of 12 samples; go on with: bandpo eval it" in refusal(read_graded, folder)
    draw(folder)
    assert not missing(refusal(read_graded, folder), "12 of 12 grades are missing; bandpo score ", " --scorer exact")
    grades(folder, read_samples(folder)[:7], "math")
    why = refusal(read_graded, folder, "math")
    assert not missing(why, "5 of 12 grades are missing; bandpo score ", " --scorer math")
    (folder / "eval.json").unlink()  # samples of nobody knows what
    for call, place in ((draw, folder), (read_graded, folder), (read_graded, folder / "none")):
        assert "holds no evaluation (no eval.json)" in refusal(call, place)


def test_what_was_written_is_read_back(folder):
    draw(folder)
    rows = [answer((q.data, q.prompt, i), seed_of(0, q, i)) for q in QUESTIONS for i in range(4)]
    first = [rows[i] for sample in range(4) for i in (sample, 8 + sample, 4 + sample)]  # the message is longest
    written = [{k: v for k, v in asdict(row).items() if v is not None} for row in first]
    assert (read_samples(folder), json_rows(folder / "samples.jsonl")) == (rows, written)
    facts = read_metadata(folder)
    assert read_questions(folder, facts) == QUESTIONS
    assert facts["data"]["a"] == {"rows": 2, "sha256": fingerprint(QUESTIONS[:2])}
    assert facts["sampling"] == {"n": 4, "temperature": 1, "top_p": 1, "top_k": -1, "max_tokens": 8, "seed": 0}
