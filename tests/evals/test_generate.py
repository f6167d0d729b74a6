"""`bandpo eval` and `bandpo score`: from questions to numbers."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from serving import CHOICE, Fake, completion
from transformers import AutoModelForCausalLM, AutoTokenizer

from bandpo.errors import UserError
from bandpo_runs import toy
from bandpo_runs.cli import main
from bandpo_runs.evals import generate, grades
from bandpo_runs.evals.backends import server
from bandpo_runs.evals.backends.base import weights_of
from bandpo_runs.evals.backends.server import Server
from bandpo_runs.evals.backends.transformers import Transformers
from bandpo_runs.evals.folder import read_graded, read_metadata, read_samples
from bandpo_runs.statistics.estimators import pass_at_k


def ask(home, output, *options, data=None):
    data = data or str(home / "rows.jsonl")
    args = ["eval", str(home / "model"), "--data", data, "--no-chat", "-o", str(output), *options]
    return main([*args, "--scorer", "exact", "--max-tokens", "4"])


def test_an_evaluation_from_the_command_line(home, here, capsys):
    assert ask(home, "out", "-n", "4", "--label", "Tiny") == 0
    printed = capsys.readouterr()
    assert not printed.err
    assert "Tiny on rows (12): 48 samples (4 a prompt) by transformers, into out" in printed.out
    assert re.search(r"mean@4 +│ +\d", printed.out)
    assert printed.out.splitlines()[-1] == "out"
    samples = {sample.key: sample for sample in read_samples(Path("out"))}
    assert f"longest {max(sample.tokens for sample in samples.values())}" in printed.out
    facts = read_metadata(Path("out"))
    assert facts["command"].startswith("bandpo eval ")
    assert (facts["label"], facts["dtype"], facts["scorer"]) == ("Tiny", "float32", "exact")
    assert facts["data"]["rows"]["rows"] == 12
    (graded,) = read_graded(Path("out"))
    texts = [[samples["rows", p, i].text.strip() for i in range(4)] for p in range(12)]
    assert graded.answers.tolist() == texts
    for row, wording, score in zip(toy.prompts(12, 0), texts, graded.score, strict=True):
        assert score.tolist() == [text == row["answer"] for text in wording]

    before = {path: path.read_bytes() for path in Path("out").iterdir() if path.name != "eval.json"}
    assert ask(home, "out", "-n", "4", "--label", "Tiny") == 0  # again: all is there
    assert "48 of them are there" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in before} == before
    assert ask(home, "out", "-n", "4", "--seed", "1") == 2
    assert "sampling.seed: 0 there, 1 now" in capsys.readouterr().err


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
def test_the_same_command_goes_on_where_a_process_was_killed(home, here, capsys):
    command = ["eval", str(home / "model"), "--data", str(home / "rows.jsonl"), "--no-chat", "--scorer", "exact"]
    command += ["-n", "4", "--max-tokens", "4", "--batch-size", "8", "-o"]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *command, "killed"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    there = read_samples(Path("killed"))
    assert len(there) == 21
    with pytest.raises(UserError, match="not finished: 21 of 48 samples; go on with: bandpo eval "):
        read_graded(Path("killed"))
    assert main([*command, "killed"]) == 0
    assert "21 of them are there" in capsys.readouterr().out
    assert main([*command, "whole"]) == 0
    assert read_samples(Path("killed")) == read_samples(Path("whole"))
    assert [g.score.tolist() for g in read_graded(Path("killed"))] == [
        g.score.tolist() for g in read_graded(Path("whole"))
    ]


@pytest.mark.slow
def test_a_server_that_dies_loses_no_answer_and_its_key_is_written_nowhere(home, here, capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setattr(server, "Server", lambda *args, **options: Server(*args, **{**options, "retries": 0}))
    with Fake(lambda body, count: 200 if count <= 20 else 503) as fake:
        options = ["-n", "4", "--base-url", fake.url, "--concurrency", "4"]
        assert ask(home, "out", *options) == 2
        assert "503" in capsys.readouterr().err
    monkeypatch.setattr(server, "Server", Server)
    rest = [sample for sample in read_samples(Path("out")) if sample.finish != "error"]
    assert len(rest) == 20
    with Fake(lambda body, count: 200) as fake:
        assert ask(home, "out", *options[:3], fake.url) == 0  # a server may come back at another address
        assert len({body["seed"] for body in fake.asked}) == 48 - len(rest)
        assert set(fake.keys) == {"Bearer sk-secret"}
    assert not any(b"secret" in path.read_bytes() for path in Path("out").iterdir())


def test_secrets_in_an_address_and_what_a_filter_took(home, here, capsys):
    filtered = completion(choices=[CHOICE | {"finish_reason": "content_filter", "text": ""}])
    with Fake(lambda body, count: (200, filtered) if count % 2 else 200) as fake:
        url = fake.url.replace("http://", "http://me:p4ssw0rd@") + "?key=s3cr3t-key"
        assert ask(home, "out", "-n", "1", f"--base-url={url}", "--timeout", "60") == 0
        assert "content_filter: 6 samples, cut by the server's content filter\n" in capsys.readouterr().out
    written = b"".join(path.read_bytes() for path in Path("out").iterdir())
    assert not [secret for secret in (b"p4ssw0rd", b"s3cr3t") if secret in written]
    assert re.search(r"://\*\*\*@localhost:[0-9]+/v1\?key=\*\*\*'? --timeout 60", read_metadata(Path("out"))["command"])
    assert ask(home, "out2", f"--base-url={url}", "--timeout", "1") == 2  # nobody is there any more
    error = capsys.readouterr().err
    assert "://***@localhost" in error
    assert not [secret for secret in ("p4ssw0rd", "s3cr3t") if secret in error]


LONG = {"error": {"code": "context_length_exceeded", "message": "16 tokens"}}


def test_what_a_server_does_not_answer_is_wrong_and_what_may_pass_is_tried_again(home, here, capsys):
    whole = {row["prompt"]: row["answer"] for row in map(json.loads, (home / "rows.jsonl").read_text().splitlines())}
    first, second, *_ = whole
    up = False

    def script(body, count):
        if body["prompt"] == first and not up:
            return 200, {"error": {"message": "out of memory"}}
        return (400, LONG) if body["prompt"] == second else (200, completion(choices=[right(body)]))

    def right(body):
        return CHOICE | {"text": whole[body["prompt"]]}

    with Fake(script) as fake:
        options = ["-n", "2", "--base-url", fake.url, "--concurrency", "4"]
        assert ask(home, "out", *options) == 0
        out = capsys.readouterr().out
        assert re.search(r"mean@2 +│ +83.33 ", out)  # 20 of 24
        assert re.search(r"error: 2 samples, no answer from the server; the same bandpo eval .*out of memory", out)
        assert re.search(r"refused: 2 samples, refused by the server. For example: 400 .*16 tokens", out)
        kinds = [sample.finish for sample in read_samples(Path("out"))]
        assert kinds == ["error"] * 2 + ["refused"] * 2 + ["stop"] * 20

        wanted = len(fake.asked)
        assert ask(home, "out", *options) == 0  # as before: they fail again, which is not news
        wording = capsys.readouterr().out
        assert "22 of them are there; 2 that ended in an error are tried again" in wording
        assert "warning: the server at" in wording
        assert {body["prompt"] for body in fake.asked[wanted:]} == {first}
        assert [sample.finish for sample in read_samples(Path("out"))] == kinds

        up = True
        assert ask(home, "out", *options) == 0
        assert re.search(r"mean@2 +│ +91.67 ", capsys.readouterr().out)
        assert [sample.finish for sample in read_samples(Path("out"))] == ["stop"] * 2 + kinds[2:]
        wanted = len(fake.asked)
        assert ask(home, "out", *options) == 0
        assert len(fake.asked) == wanted
    grades = Path("out/grades-exact.jsonl").read_text().splitlines()
    assert len(grades) == len(set(grades)) == 24


def test_a_wrong_setting_of_the_first_try_binds_nothing_and_a_right_one_binds(home, here, capsys):
    def script(body, count):
        return (400, {"error": "Extra inputs are not permitted"}) if "seed" in body else (200, completion())

    with Fake(script) as fake:
        options = ["-n", "1", "--base-url", fake.url]
        assert ask(home, "out", *options) == 2
        assert "sent with the prompt: temperature=1.0, top_p=1.0, max_tokens=4, seed=0" in capsys.readouterr().err
        assert ask(home, "out", *options, "--body", "seed=null,logit_bias={7: 1}") == 0
        assert read_metadata(Path("out"))["body"] == {"seed": None, "logit_bias": {"7": 1}}
        assert fake.asked[-1]["logit_bias"] == {"7": 1}
        assert ask(home, "out", "-n", "2", "--base-url", fake.url, "--body", "seed=null") == 2
        assert "body: {'seed': None, 'logit_bias': {'7': 1}} there, {'seed': None} now" in capsys.readouterr().err


# ---- models


def test_a_model_may_be_given_as_the_run_that_made_it(home, here, capsys):
    run = here / "runs" / "mine"
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"label": "Band", "seed": 0, "learning_rate": 1e-5, "finished": False}))
    (run / "checkpoints" / "checkpoint-20").mkdir(parents=True)
    assert main(["eval", "runs/mine", "--data", "lab"]) == 2
    assert "runs/mine holds no model: the run is not finished; " in capsys.readouterr().err
    with pytest.raises(UserError, match=r"holds no model \(config.json\), run"):
        generate.find_model("runs")
    (run / "model").mkdir()
    assert generate.find_model("runs/mine") == generate.Model("runs/mine/model", "mine", "Band", "runs/mine")
    path = str(home / "model")
    assert generate.find_model(path) == generate.Model(path, "model", "model")
    assert generate.find_model("Qwen/Qwen2.5-0.5B") == generate.Model(
        "Qwen/Qwen2.5-0.5B", "Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B"
    )
    assert generate.find_model("org/name", "http://localhost:1/v1") == generate.Model("org/name", "name", "org/name")


def test_weights_are_told_apart(home, tmp_path):
    before = weights_of(str(home / "model"))
    model = AutoModelForCausalLM.from_pretrained(home / "model")
    model.save_pretrained(tmp_path)
    same = weights_of(str(tmp_path))
    with torch.no_grad():
        for weight in model.parameters():
            weight += 1e-6
    model.save_pretrained(tmp_path)
    assert before is not None
    assert same != weights_of(str(tmp_path))
    with pytest.raises(UserError, match=r"model 'gone/model' \(this folder does not exist\) cannot be loaded"):
        weights_of("gone/model")


def test_weights_that_are_not_finite_are_an_error_with_the_first_tensor(home, here, capsys):
    model = AutoModelForCausalLM.from_pretrained(home / "model")
    name, weight = list(model.named_parameters())[-1]
    with torch.no_grad():
        weight.view(-1)[0] = torch.nan
    model.save_pretrained("broken")
    AutoTokenizer.from_pretrained(home / "model").save_pretrained("broken")
    assert main(["eval", "broken", "--data", "lab"]) == 2
    wording = f"model 'broken' cannot be loaded: its weights are not finite (NaN or infinite), first those of {name}\n"
    assert capsys.readouterr().err.endswith(wording)


def test_ctrl_c_says_what_is_kept_and_the_same_command_goes_on(home, here, monkeypatch, capsys):
    draw_all = Transformers.generate

    def draw_some(self, requests, sampling):
        for count, result in enumerate(draw_all(self, requests, sampling)):
            if count == 5:
                raise KeyboardInterrupt
            yield result

    monkeypatch.setattr(Transformers, "generate", draw_some)
    assert ask(home, "out", "-n", "4") == 130
    assert capsys.readouterr().err == "interrupted; 5 of 48 samples are kept in out; the same command goes on\n"
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert ask(home, "out", "-n", "4") == 0
    assert "; 5 of them are there" in capsys.readouterr().out


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
    "batch": (["--data", "lab", "--base-url", "u", "--batch-size", "8"], "--batch-size is for backend transformers"),
    "greedy": (["--data", "lab", "--temperature", "0"], "n must be 1 at temperature 0, where"),
}


@pytest.mark.parametrize(("args", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_and_nothing_is_written(home, here, capsys, args, message):
    Path("rows.jsonl").write_text((home / "rows.jsonl").read_text())
    assert main(["eval", str(home / "model"), *args]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert [path.name for path in here.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize("mistake", ["template", "scorer"])
def test_nothing_is_trained_or_merged_for_a_mistake(home, here, capsys, monkeypatch, mistake):
    monkeypatch.setattr(toy, "warm_start", lambda *args: pytest.fail("trains"))
    monkeypatch.setattr(generate, "whole_weights", lambda *args: pytest.fail("merges"))
    args, message = MISTAKES[mistake]
    for model in ("lab", str(home / "model")):
        assert main(["eval", model, *args]) == 2
        assert message in capsys.readouterr().err


# ---- grades


def test_grading_goes_on_where_it_was_stopped_and_is_not_done_again(home, here, monkeypatch, capsys):
    ask(home, "out", "-n", "4")
    path = Path("out/grades-exact.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    seen = []
    exact = grades.exact
    monkeypatch.setattr(grades, "exact", lambda texts, answer: seen.extend(texts) or exact(texts, answer))
    assert main(["score", "out"]) == 0
    assert path.read_bytes() == whole
    assert len(seen) == 48 - whole[: len(whole) // 2].count(b"\n")
    assert main(["score", "out"]) == 0
    assert len(seen) == 48 - whole[: len(whole) // 2].count(b"\n")


def test_scores_as_a_table_and_for_scripts(home, here, capsys):
    ask(home, "a", "-n", "4")
    ask(home, "b", "-n", "2", "--seed", "3")
    capsys.readouterr()
    assert main(["score", "a", "b", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["source"], first["scorer"], second["source"]) == ("a", "exact", "b")
    (graded,) = read_graded(Path("a"))
    assert first["results"][0]["mean@4"]["value"] == pytest.approx(graded.score.mean())
    assert first["results"][0]["pass@4"]["value"] == pytest.approx(graded.score.max(1).mean())
    assert main(["score", "a", "-k", "3"]) == 0
    of_3 = float(pass_at_k(4, graded.score.sum(1), 3).mean())
    assert re.search(rf"pass@3 +│ +{100 * of_3:.2f} ", capsys.readouterr().out)
    assert main(["score", "a", "--wrong", "2"]) == 0
    shown = re.findall(r"rows, sample \d: .+\n  right: .+; (?:read: .+|unparsed)\n", capsys.readouterr().out)
    assert len(shown) == min(2, int((1 - graded.score).sum()))
    assert main(["score", "a", "b", "-k", "4"]) == 2
    assert "k must be from 1 to the 2 samples of b, got 4" in capsys.readouterr().err
    assert main(["score", "a", "--scorer", "lab"]) == 0
    assert Path("a/grades-lab.jsonl").is_file()
    assert main(["score", "gone"]) == 2
    assert "gone: no such file or folder; expected a folder of bandpo eval" in capsys.readouterr().err
