"""`bandpo eval` and `bandpo score`: from questions to numbers."""

import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commands import missing, refusal
from disk import json_rows, write
from serving import CHOICE, Fake, completion
from transformers import AutoModelForCausalLM, AutoTokenizer

from bandpo_runs import toy
from bandpo_runs.data.questions import Question
from bandpo_runs.evals import grades
from bandpo_runs.evals.backends import server
from bandpo_runs.evals.backends.server import Server
from bandpo_runs.evals.folder import read_graded, read_metadata, read_samples
from bandpo_runs.evals.models import Model, find_model, weights_of
from bandpo_runs.evals.samples import Sample
from bandpo_runs.statistics.estimators import pass_at_k


@pytest.fixture
def ask(home, here, cli):
    """Evaluate the model of the tests: what is printed, or the error."""

    def ask(output, *options, fails=False):
        args = ["eval", home / "model", "--data", home / "rows.jsonl", "--no-chat", "-o", output, *options]
        return (cli.error if fails else cli.out)(*args, "--scorer", "exact", "--max-tokens", "4")

    return ask


def test_an_evaluation_from_the_command_line(ask, capsys):
    printed = ask("out", "-n", "4", "--label", "Tiny")
    samples = {sample.key: sample for sample in read_samples(Path("out"))}
    longest = max(sample.tokens for sample in samples.values())
    assert not missing(printed, "Tiny on rows (12): 48 samples (4 a prompt) by transformers", f"longest {longest}")
    assert re.search(r"mean@4 +│ +\d", printed)
    assert (printed.splitlines()[-1], capsys.readouterr().err) == ("out", "")
    facts = read_metadata(Path("out"))
    assert facts | {"label": "Tiny", "dtype": "float32", "scorer": "exact"} == facts
    assert (facts["command"][:12], facts["data"]["rows"]["rows"]) == ("bandpo eval ", 12)
    (graded,) = read_graded(Path("out"))
    texts = [[samples["rows", p, i].text.strip() for i in range(4)] for p in range(12)]
    assert graded.answers.tolist() == texts
    answers = [row["answer"] for row in toy.prompts(12, 0)]
    assert graded.score.tolist() == [[text == a for text in row] for row, a in zip(texts, answers, strict=True)]

    before = {path: path.read_bytes() for path in Path("out").iterdir() if path.name != "eval.json"}
    assert "48 of them are there" in ask("out", "-n", "4", "--label", "Tiny")  # again: all is there
    assert {path: path.read_bytes() for path in before} == before
    assert "sampling.seed: 0 there, 1 now" in ask("out", "-n", "4", "--seed", "1", fails=True)


KILLED = """
import os, signal, sys
from bandpo_runs.evals import folder
from bandpo_runs.cli import main
add = folder.Evaluation.add
def stop(self, sample):
    add(self, sample)
    if len(self.done) == 21:
        os.kill(os.getpid(), signal.SIGKILL)
folder.Evaluation.add = stop
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_the_same_command_goes_on_where_a_process_was_killed(home, here, cli):
    command = [
        *["eval", str(home / "model"), "--data", str(home / "rows.jsonl"), "--no-chat", "--scorer", "exact"],
        *["-n", "4", "--max-tokens", "4", "-o"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *command, "killed"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    killed, whole = Path("killed"), Path("whole")
    assert len(read_samples(killed)) == 21
    assert "not finished: 21 of 48 samples; go on with: bandpo eval " in refusal(read_graded, killed)
    assert "21 of them are there" in cli.out(*command, "killed")
    cli.out(*command, "whole")
    (one,), (other,) = read_graded(killed), read_graded(whole)
    assert (read_samples(killed), one.score.tolist()) == (read_samples(whole), other.score.tolist())


@pytest.mark.slow
def test_a_server_that_dies_loses_no_answer_and_its_key_is_written_nowhere(ask, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with Fake(lambda body, count: 200 if count <= 20 else 503) as fake, monkeypatch.context() as patch:
        patch.setattr(server, "Server", lambda *args, **options: Server(*args, **{**options, "retries": 0}))
        assert "503" in ask("out", "-n", "4", "--base-url", fake.url, "--concurrency", "4", fails=True)
    assert len([sample for sample in read_samples(Path("out")) if sample.finish != "error"]) == 20
    with Fake(lambda body, count: 200) as fake:
        ask("out", "-n", "4", "--base-url", fake.url)  # a server may come back at another address
        assert (len({body["seed"] for body in fake.asked}), {*fake.keys}) == (48 - 20, {"Bearer sk-secret"})
    assert not any(b"secret" in path.read_bytes() for path in Path("out").iterdir())


def test_secrets_in_an_address_and_what_a_filter_took(ask):
    filtered = completion(choices=[CHOICE | {"finish_reason": "content_filter", "text": ""}])
    with Fake(lambda body, count: (200, filtered) if count % 2 else 200) as fake:
        url = fake.url.replace("http://", "http://me:p4ssw0rd@") + "?key=s3cr3t-key"
        out = ask("out", "-n", "1", f"--base-url={url}", "--timeout", "60")
    assert "content_filter: 6 samples, cut by the server's content filter\n" in out
    written = "".join(path.read_text() for path in Path("out").iterdir())
    assert missing(written, "p4ssw0rd", "s3cr3t") == ["p4ssw0rd", "s3cr3t"]
    assert re.search(r"://\*\*\*@localhost:[0-9]+/v1\?key=\*\*\*'? --timeout 60", read_metadata(Path("out"))["command"])
    error = ask("out2", f"--base-url={url}", "--timeout", "1", fails=True)  # nobody is there any more
    assert missing(error, "://***@localhost", "p4ssw0rd", "s3cr3t") == ["p4ssw0rd", "s3cr3t"]


def test_what_a_server_does_not_answer_is_wrong_and_what_may_pass_is_tried_again(ask, home):
    whole = {row["prompt"]: row["answer"] for row in json_rows(home / "rows.jsonl")}
    first, second, *_ = whole
    too_long, up = {"error": {"code": "context_length_exceeded", "message": "16 tokens"}}, False

    def script(body, count):
        if body["prompt"] == first and not up:
            return 200, {"error": {"message": "out of memory"}}
        right = CHOICE | {"text": whole[body["prompt"]]}
        return (400, too_long) if body["prompt"] == second else (200, completion(choices=[right]))

    def evaluated():
        """What is printed, how the samples ended, and the prompts that were asked for."""
        asked = len(fake.asked)
        out = ask("out", "-n", "2", "--base-url", fake.url, "--concurrency", "4")
        ends = [sample.finish for sample in read_samples(Path("out"))]
        return out, ends, {body["prompt"] for body in fake.asked[asked:]}

    with Fake(script) as fake:
        out, ends, _ = evaluated()
        for line in (
            r"mean@2 +│ +83.33 ",  # 20 of 24
            "error: 2 samples, no answer from the server; the same bandpo eval .*out of memory",
            "refused: 2 samples, refused by the server. For example: 400 .*16 tokens",
        ):
            assert re.search(line, out)
        assert ends == ["error"] * 2 + ["refused"] * 2 + ["stop"] * 20
        out, *others = evaluated()  # as before: they fail again, which is not news
        again = "22 of them are there; 2 that ended in an error are tried again"
        # A question that was answered is asked first.
        assert (missing(out, again, "error: 2 samples"), others[0], first in others[1], len(others[1])) == (
            [],
            ends,
            True,
            2,
        )
        up = True
        out, *others = evaluated()
        assert re.search(r"mean@2 +│ +91.67 ", out)
        assert (others[0], first in others[1], evaluated()[2]) == (["stop"] * 2 + ends[2:], True, set())
    grades = Path("out/grades-exact.jsonl").read_text().splitlines()
    assert len(grades) == len(set(grades)) == 24


def test_a_wrong_server_of_a_resumed_run_refuses_nothing_for_good(ask, home):
    """It is asked a question that was answered before; that its answer is not kept twice is in the counts."""
    refuses = False
    with Fake(lambda body, count: 400 if refuses else 200) as fake:
        ask("out", "-n", "1", "--base-url", fake.url)
        refuses = True
        assert "sent with the prompt" in ask("out", "-n", "2", "--base-url", fake.url, fails=True)
        assert len(json_rows(Path("out/samples.jsonl"))) == 12
        refuses = False
        ask("out", "-n", "2", "--base-url", fake.url)
    assert [sample.finish for sample in read_samples(Path("out"))] == ["stop"] * 24


def test_questions_that_always_fail_leave_the_others_their_scores(here, cli):
    prompts = [*(f"poison {i}" for i in range(6)), "good"]
    write("rows.jsonl", [{"prompt": prompt, "answer": "7"} for prompt in prompts])
    with Fake(lambda body, count: 404 if "poison" in body["prompt"] else 200) as fake:
        command = ["eval", "m", "--data", "rows.jsonl", "-n", "1", "--base-url", fake.url, "--no-chat", "-o", "out"]
        cli.out(*command)
        out = cli.out(*command)
    assert re.search(r"(?s)warning: .*5 questions failed in a row.*mean@1", out)


def test_questions_that_fail_again_come_after_those_that_are_missing(ask, home):
    prompts = [row["prompt"] for row in json_rows(home / "rows.jsonl")]
    failing = {prompts[0], prompts[1], prompts[3]}
    with Fake(lambda body, count: 404 if body["prompt"] in failing else 200) as fake:
        line = ("out", "-n", "1", "--base-url", fake.url, "--concurrency", "1")
        ask(*line)
        samples = Path("out/samples.jsonl")
        samples.write_text("".join(samples.read_text().splitlines(keepends=True)[:8]))  # as a kill leaves it
        there = {prompts[row["prompt"]] for row in json_rows(samples)}
        ask(*line)
        assert [body["prompt"] in there for body in fake.asked[13:]] == [False] * 4 + [True] * len(there & failing)
    ends = [sample.finish for sample in read_samples(Path("out"))]
    assert (ends.count("error"), ends.count("stop")) == (3, 9)


def test_a_question_that_never_passes_is_not_the_end_of_the_others(here, cli):
    """Nor those that are too long, however many, and wherever they stand."""
    prompts = [*(f"too long {i}" for i in range(20)), "poison", "short"]
    write("rows.jsonl", [{"prompt": prompt, "answer": "7"} for prompt in prompts])

    def script(body, count):
        return 503 if body["prompt"] == "poison" else 400 if "long" in body["prompt"] else 200

    with Fake(script) as fake:
        options = ["--base-url", fake.url, "--concurrency", "4", "--no-chat", "-o", "out"]
        cli.out("eval", "m", "--data", "rows.jsonl", "-n", "3", *options)
        assert sum(body["prompt"] != "poison" for body in fake.asked) == 63  # what cannot pass is asked once
    ends = sorted(sample.finish for sample in read_samples(Path("out")))
    assert ends == ["error"] * 3 + ["refused"] * 60 + ["stop"] * 3


def test_a_wrong_setting_of_the_first_try_binds_nothing_and_a_right_one_binds(ask):
    def script(body, count):
        return (400, {"error": "Extra inputs are not permitted"}) if "seed" in body else (200, completion())

    with Fake(script) as fake:
        options = ["-n", "1", "--base-url", fake.url]
        sent = "sent with the prompt: temperature=1.0, top_p=1.0, max_tokens=4, seed=0"
        assert sent in ask("out", *options, fails=True)
        ask("out", *options, "--body", "seed=null,logit_bias={7: 1}")
        assert read_metadata(Path("out"))["body"] == {"seed": None, "logit_bias": {"7": 1}}
        assert fake.asked[-1]["logit_bias"] == {"7": 1}
        other = "body: {'seed': None, 'logit_bias': {'7': 1}} there, {'seed': None} now"
        assert other in ask("out", *options, "--body", "seed=null", fails=True)


# ---- models


def test_a_model_may_be_given_as_the_run_that_made_it(home, here, cli):
    run = Path("runs/mine")
    write(run / "run.json", {"label": "Band", "seed": 0, "learning_rate": 1e-5, "finished": False})
    (run / "checkpoints" / "checkpoint-20").mkdir(parents=True)
    assert "runs/mine holds no model: the run is not finished; " in cli.error("eval", run, "--data", "lab")
    assert refusal(find_model, "runs") == "runs holds no model (config.json and weights) or run (run.json)"
    (run / "model").mkdir()
    path, name = str(home / "model"), "Qwen/Qwen2.5-0.5B"
    for args, model in (
        (["runs/mine"], ("runs/mine/model", "mine", "Band", "runs/mine")),
        ([path], (path, "model", "model")),
        ([name], (name, "Qwen2.5-0.5B", name)),
        (["org/name", "http://localhost:1/v1"], ("org/name", "name", "org/name")),
    ):
        assert find_model(*args) == Model(*model)


@pytest.mark.parametrize("end", ["", "/actor"])
def test_a_checkpoint_of_verl_names_what_makes_a_model_of_it(here, cli, end):
    actor = write("step 1/actor/fsdp_config.json", {"FSDP_version": 2}).parent
    command = "python -m verl.model_merger merge --backend fsdp --local_dir 'step 1/actor' --target_dir MODEL"
    words = (
        "holds no model (config.json and weights) or run (run.json); it is a checkpoint of verl: make a model of it by"
    )
    assert f"step 1{end} {words} {command}, then bandpo eval MODEL --label NAME\n" in cli.error(
        "eval", f"step 1{end}", "--data", "lab"
    )
    model = write(actor / "huggingface" / "config.json", {}).parent
    assert f"{words} {command}," in refusal(find_model, str(model))  # as verl leaves it
    Path("exp/global_step_10").mkdir(parents=True)
    Path("exp/global_step_9").mkdir()
    for step in (9, 10):  # the newest of an experiment
        write(f"exp/global_step_{step}/actor/fsdp_config.json", {})
    assert "--local_dir exp/global_step_10/actor " in refusal(find_model, "exp")
    write(model / "model.safetensors", "")
    assert find_model(str(model)) == Model(str(model), "huggingface", "huggingface")
    # LoRA is never taken for its base: verl's hf_model names its weights as no model does, its merger leaves it apart.
    for sign in (actor / "lora_train_meta.json", model / "lora_adapter/adapter_config.json"):
        write(sign, {})
        assert "and its LoRA apart; add that by peft's merge_and_unload" in refusal(find_model, str(model))
        sign.unlink()


def test_weights_are_told_apart(home, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(home / "model")
    model.save_pretrained(tmp_path / "same")
    model.get_input_embeddings().weight.data += 1e-6
    model.save_pretrained(tmp_path / "other")
    of_each = [weights_of(str(folder)) for folder in (home / "model", tmp_path / "same", tmp_path / "other")]
    assert (None in of_each, len({*of_each[1:]})) == (False, 2)
    assert "model 'gone/model' cannot be loaded" in refusal(weights_of, "gone/model")


def test_weights_that_are_not_finite_are_an_error_with_the_first_tensor(home, here, cli):
    model = AutoModelForCausalLM.from_pretrained(home / "model")
    name, weight = list(model.named_parameters())[-1]
    weight.data.view(-1)[0] = torch.nan
    model.save_pretrained("broken")
    AutoTokenizer.from_pretrained(home / "model").save_pretrained("broken")
    wording = f"model 'broken' cannot be loaded: its weights are not finite (NaN or infinite), first those of {name}\n"
    assert cli.error("eval", "broken", "--data", "lab").endswith(wording)


# ---- mistakes


MISTAKES = {
    "no data": ([], "--data is missing"),
    "data twice": (["--data", "rows.jsonl,rows.jsonl"], "--data names one data set twice, got rows, rows"),
    "scorers": (["--data", "rows.jsonl", "--data", "lab"], "graded differently (rows by math, lab by lab)"),
    "scorer": (["--data", "lab", "--scorer", "mth"], "scorer must be one of math, dapo-strict, dapo, exact"),
    "url": (["--data", "lab", "--backend", "openai"], "backend openai needs --base-url"),
    "scheme": (["--data", "lab", "--base-url", "localhost:8000"], "needs --base-url, http:// or https:// with a host"),
    "no host": (["--data", "lab", "--base-url", "http:///v1?key=a"], "a host, got 'http:///v1?key=***'"),
    "back end": (["--data", "lab", "--backend", "transformers", "--base-url", "u"], "--base-url is for backend openai"),
    "vllm": (["--data", "lab", "--backend", "vllm"], "backend vllm needs the package vllm, which is not installed"),
    "concurrency": (["--data", "lab", "--concurrency", "4"], "--concurrency is for backend openai, got backend"),
    "template": (["--data", "lab", "--template", "boxed"], "lab has a template of its own; --template is for other"),
    "timeout": (["--data", "lab", "--timeout", "60"], "--timeout is for backend openai, got backend transformers"),
    "greedy": (["--data", "lab", "--temperature", "0"], "n must be 1 at temperature 0, where"),
}


@pytest.mark.parametrize(("args", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_and_nothing_is_written(home, here, cli, args, message):
    rows = write("rows.jsonl", (home / "rows.jsonl").read_text())
    assert (message in cli.error("eval", home / "model", *args), [*here.iterdir()]) == (True, [here / rows])


# ---- grades


def test_grading_goes_on_where_it_was_stopped_and_is_not_done_again(ask, monkeypatch, cli):
    ask("out", "-n", "4")
    path, seen, exact = Path("out/grades-exact.jsonl"), [], grades.exact
    whole = path.read_bytes()
    half = write(path, whole[: len(whole) // 2]).read_bytes()
    monkeypatch.setattr(grades, "exact", lambda texts, answer: seen.extend(texts) or exact(texts, answer))
    for _ in range(2):
        cli.out("score", "out")
        assert (path.read_bytes(), len(seen)) == (whole, 48 - half.count(b"\n"))


def test_scores_as_a_table_and_for_scripts(ask, cli):
    ask("a", "-n", "4")
    ask("b", "-n", "2", "--seed", "3")
    first, second = cli.json("score", "a", "b", "--json")
    assert [(each["source"], each["scorer"]) for each in (first, second)] == [("a", "exact"), ("b", "exact")]
    (graded,) = read_graded(Path("a"))
    values = [first["results"][0][name]["value"] for name in ("mean@4", "pass@4")]
    assert values == pytest.approx([graded.score.mean(), graded.score.max(1).mean()])
    of_3 = float(pass_at_k(4, graded.score.sum(1), 3).mean())
    assert re.search(rf"pass@3 +│ +{100 * of_3:.2f} ", cli.out("score", "a", "-k", "3"))
    out = cli.out("score", "a", "--wrong", "2")
    shown = re.findall(r"rows, sample \d: .+\n  right: .+; (?:read: .+|unparsed)\n", out)
    assert len(shown) == min(2, int((1 - graded.score).sum()))
    assert "k must be from 1 to the number of samples 2, got 4" in cli.error("score", "a", "b", "-k", "4")


# ---- what each scorer makes of samples


def graded_by(scorer, texts, answers, finish="stop"):
    samples = [Sample("d", i, 0, 0, text, 1, finish) for i, text in enumerate(texts)]
    wanted = [Question("d", i, "?", answer) for i, answer in enumerate(answers)]
    return [(g.score, g.answer, g.status) for g in grades.grader_of(scorer)(samples, wanted)]


@pytest.mark.parametrize(
    ("scorer", "text", "answer", "grade"),
    [
        ("exact", " a ", "a", (1, "a", "ok")), ("exact", "b", "a", (0, "b", "ok")),
        ("last-number", "so 1,007.50", "1007.5", (1, "1007.5", "ok")), ("last-number", "7", "8", (0, "7", "ok")),
        ("last-number", "none", "9", (0, None, "unparsed")), ("last-number", "7.0", "7", (1, "7", "ok")),
        ("last-number", "007", "7", (1, "7", "ok")), ("last-number", "700", "7", (0, "700", "ok")),
        ("dapo-strict", "Answer: 42", "42", (1, "42", "ok")), ("math", "so \\boxed{42}", "42", (1, "42", "ok")),
        ("math", "\\boxed{41}", "42", (0, "41", "ok")),
    ],
)  # fmt: skip
def test_each_scorer_says_what_it_read(scorer, text, answer, grade):
    assert graded_by(scorer, [text], [answer]) == [grade]


def test_the_labs_answers_are_graded_as_in_training():
    draw, tokenizer, expected = random.Random(0), toy.tokenizer(), []
    for i in range(3000):
        ids = draw.choices([0, 1, 2, *range(toy.BASE, toy.END + 1), toy.ANSWER], k=toy.MAX_COMPLETION)
        ids = ids[: [*ids, toy.END].index(toy.END) + 1]
        text, finish = tokenizer.decode(ids, skip_special_tokens=True), "stop" if ids[-1] == toy.END else "length"
        expected += toy.reward([text], [ids], [toy.SYMBOLS[i % 3]])
        assert graded_by("lab", [text], [toy.SYMBOLS[i % 3]], finish=finish)[0][0] == expected[-1]
    assert 10 < sum(expected) < 1000


OPENED, CUT, PLAIN = ("so it is 4</think>4", "stop"), ("so it is \\boxed{4}", "length"), ("4", "stop")


@pytest.mark.parametrize(
    ("facts", "answers", "thinking"),
    [
        ({"backend": "openai"}, [OPENED, OPENED, CUT, CUT, CUT], "opened"),
        ({"backend": "openai"}, [("a[/THINK]4", "stop")], "opened"),
        ({"backend": "openai"}, [OPENED, PLAIN, PLAIN], None),
        ({"backend": "openai"}, [("<think>4</think>4", "stop"), CUT], None),
        ({"backend": "openai"}, [CUT], None),
        ({"backend": "openai"}, [], None),
        ({"backend": "openai", "thinking": "opened"}, [], "opened"),
        ({"backend": "vllm", "thinking": "opened"}, [], "opened"),
        ({"backend": "vllm", "thinking": None}, [OPENED], None),
    ],
)
def test_a_server_whose_answers_end_a_thinking_that_they_do_not_begin_opened_it(facts, answers, thinking):
    samples = [Sample("d", i, 0, 0, text, 1, finish) for i, (text, finish) in enumerate(answers)]
    assert grades.thinking_in(facts, samples) == thinking
