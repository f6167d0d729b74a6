"""The doctor of scripts and settings as people keep them: wrappers, arithmetic, Hydra's files, and what is missing."""

import itertools
import time

import pytest

from bandpo_runs.training.doctor import examine
from bandpo_runs.training.shell import of_shell

ACTOR = "actor_rollout_ref.actor"
BASE = f'python3 -m verl.trainer.main_ppo data.train_batch_size=64 {ACTOR}.ppo_mini_batch_size="${{MINI:-16}}" "$@"\n'


def told(tmp_path, **files):
    """Write files, and return what is said of the first one, without the precision."""
    paths = [tmp_path / name.replace("__", ".") for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    return [f for f in examine([str(paths[0])]) if "the actor computes" not in f.what]


def steps_of(tmp_path, **files):
    (finding,) = (f for f in told(tmp_path, **files) if "optimizer step" in f.what)
    return finding.level, finding.what


def test_of_a_script_that_is_not_there_nothing_is_made_up(tmp_path):
    run = f"bash ../other/base.sh {ACTOR}.optim.lr=1e-7\nsource /opt/env.sh\nsource ~/x.sh\n"
    first, *_, last = told(tmp_path, run__sh=run)
    assert (first.level, first.what.startswith("base.sh: called in a script, and not beside it")) == ("note", True)
    assert first.cure.startswith("give it too, first: bandpo doctor base.sh ")
    assert last.level == "note"
    assert last.what == (
        "the optimizer steps of a batch are not judged: train_batch_size is not given here; verl's default would be "
        "1024; ppo_mini_batch_size is not given here; verl's default would be 256"
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("N=4\nrun a.b=$((N * 2))", 8),
        ("N=4; M=12\nrun a.b=$(( (${N} + M) / 2 - 1 ))", 7),
        ("N=${N:-4}\nrun a.b=$(($N%3))", 1),
        ("N=4\nrun a.b=${X:-$((N * N))}", 16),
        ("N=8 bash x\nN=${N:-4}\nrun a.b=$N", 8),
        ("N=4\nN=\"${N}\" M='1'\nexport N\nif [ N ]; then run a.b=$N; fi", 4),
        ("A=$B\nB=4\nrun a.b=$A", 4),
        ("N=4\nrun a.b=${Y:-${N}}", 4),
    ],
)
def test_shell_arithmetic_of_known_names_is_computed(text, value):
    assert of_shell(text)["a"]["b"] == value


@pytest.mark.parametrize(
    "text",
    [
        "run a.b=$((N * 2))",
        "N=4\nN=8\nrun a.b=$((N * 2))",
        "N=4\nN=8\nrun a.b=${N:-2}",
        'N=${N:-4}\nif [ "$DEBUG" ]; then N=8; fi\nrun a.b=$N',
        ': "${N:=4}"\nif [ "$DEBUG" ]; then N=8; fi\nrun a.b=$N',
        "N=$(nvidia-smi | wc -l)\nrun a.b=$((N * 2))",
        "run a.b=$((1 / 0))",
        "run a.b=$((2 ** 9))",
        "run a.b=$(($(f 4)))",
        "A=$B\nB=$A\nrun a.b=$A",
    ],
)
def test_what_is_not_known_is_not_computed(text):
    assert "$" in of_shell(text)["a"]["b"]


def test_variables_that_grow_without_end_take_no_time():
    names = "abcdefghijklmnop"
    lines = [f"{name}={10 * f'${before}'}" for before, name in itertools.pairwise(names)]
    assert "$" in of_shell("\n".join(["a=xxxxx", *lines, "run a.b=$p"]))["a"]["b"]


@pytest.mark.parametrize(
    "text", ["$((" * 20_000, f"{'9' * 900}\nrun a.b=$(({'$N*' * 6}1))", f"{{}} {'a/' * 50_000}", "1 " + "N=1 " * 50_000]
)
def test_a_script_of_any_shape_takes_no_time(tmp_path, text):
    began = time.process_time()
    told(tmp_path, run__sh=f"N={text}\n{text}\n{BASE}")
    assert time.process_time() - began < 5


def test_scripts_that_call_the_next_one_twice_are_read_once_each(tmp_path):
    files = {f"s{k}__sh": f"bash s{k + 1}.sh\nbash s{k + 1}.sh x.n={k}\n" for k in range(30)}
    level, what = steps_of(tmp_path, **files, s30__sh=BASE)
    assert (level, "spread over 4 optimizer steps" in what) == ("ok", True)
