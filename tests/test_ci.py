"""The scripts of .ci: what a failed stage does to the others, and which lines of the pages are resolved."""

import importlib.util
import os
import re
import shutil
import subprocess
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import yaml
from commands import missing
from disk import write
from scripts import ROOT, load

import bandpo

STAGES = """
. .ci/stages
first() { echo begins; (exit 3); echo never; }
second() { false; echo never; }
third() { echo runs; }
beside second third
stage first
stage third
joined
report
echo never
"""


@pytest.fixture(scope="module")
def installs():
    return load(".ci/installs.py")


def run(script: str) -> tuple[int, list[str]]:
    """Run a script like those of .ci; its exit status and its lines."""
    own = {**os.environ, "CI": ""}  # installs no browser
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, env=own, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def test_after_a_failed_stage_the_others_run_and_the_end_names_it():
    code, lines = run(STAGES)
    assert (code, [lines.count(line) for line in ("never", "begins", "runs")]) == (1, [0, 1, 2])
    failed = [line for line in lines if line.startswith("=== failed: ")]
    assert sorted(failed) == ["=== failed: first (exit status 3)", "=== failed: second (exit status 1)"]
    assert lines[-2:] == failed


def test_stages_that_pass_end_with_0():
    code, (_, second, *_, last) = run(". .ci/stages; third() { echo runs; }; stage third; report; echo ended")
    assert (code, second, last) == (0, "runs", "ended")


def test_lines_that_install_are_collected_from_the_files(installs):
    lines = installs.lines()
    assert lines["-c", "constraints/base.txt", ".[lab]"] == "README.md"
    assert lines[".[verl]",] == "docs/verl.md"
    assert lines["-c", "constraints/base.txt", ".[dev,trackers,inspect]"] == ".ci/stages"
    assert ("-c", "constraints/base.txt", ".[inspect]") in lines  # the wheel, with each extra
    assert not any("$" in each or each == "--no-deps" for arguments in lines for each in arguments[-1:])


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("-c constraints/base.txt '.[lab]' && pip install x", [("-c", "constraints/base.txt", ".[lab]")]),
        ('-qq --no-deps "$torch" 2>"$work/torch.log"; then', None),
        ('-qq --no-deps --target "$work/hosts" -r list.txt', [("--no-deps", "-r", "list.txt")]),
        ("--no-deps .        # nothing else changes", [("--no-deps", ".")]),
        ("bandpo[train]", [(".[train]",)]),
        ('-qq -c constraints/base.txt -r "$work/docs.txt"', [("-c", "constraints/base.txt", ".[docs]")]),
    ],
)
def test_arguments_of_a_line(installs, line, arguments):
    assert installs.commands(line) == (arguments or [("--no-deps", *installs.variables()["$torch"])])


def test_a_variable_that_nobody_resolves_is_an_error(installs):
    with pytest.raises(SystemExit, match=r'a variable of `pip install -qq "\$new"` is not in installs\.py'):
        installs.commands('-qq "$new"')


def test_a_list_is_resolved_without_what_comes_from_an_address(installs, tmp_path):
    copy = installs.without_addresses("constraints/gpu.txt", str(tmp_path))
    text = (tmp_path / "gpu.txt").read_text(encoding="utf-8")
    assert copy == str(tmp_path / "gpu.txt")
    assert "https://" not in "".join(line for line in text.splitlines() if not line.startswith("#"))
    assert "verl==0.9.1" in text


# ---- what goes with a release: how to cite it, and what is tried of its wheel


def test_the_citation_is_the_one_of_the_model_cards():
    paper = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["preferred-citation"]
    eprint, url = paper["identifiers"][0]["value"], paper["url"]
    cited = {
        "author": " and ".join(f"{author['given-names']} {author['family-names']}" for author in paper["authors"]),
        "booktitle": paper["collection-title"], "series": paper["volume-title"],
        "pages": f"{paper['start']}--{paper['end']}", "url": url, "eprint": eprint,
    }  # fmt: skip
    card = Path(importlib.util.find_spec("bandpo").origin).with_name("integrations") / "trl.py"  # needs no TRL
    assert not missing(
        card.read_text(encoding="utf-8"), f'TITLE = "{paper["title"]}"',
        *(f"    {name:9} = {{{{{value}}}}}," for name, value in cited.items()),
        *(f"    {name:9} = {paper[name]}," for name in ("volume", "year")),
    )  # fmt: skip
    for page in ("README.md", "docs/index.md"):
        link = f"(https://arxiv.org/abs/{eprint.removeprefix('arXiv:')})"
        assert not missing((ROOT / page).read_text(encoding="utf-8"), f"({url})", link)


def test_every_extra_and_every_python_is_tried():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    script = (ROOT / ".ci" / "wheel").read_text(encoding="utf-8")
    tried = {*re.search(r"extras=\((base .*)\)", script)[1].split()}
    extras = set(project["optional-dependencies"]) - {"verl"}  # .ci/run has a stage for it
    assert tried == extras | {"base"} == {*re.findall(r"^    ([\w-]+)\)", script, re.MULTILINE)}
    named = [each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r"Python :: 3\.", each)]
    assert named == sorted(named, key=lambda each: int(each.partition(".")[2]))
    assert project["requires-python"] == f">={named[0]}"


WORKFLOWS = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml")}


@pytest.mark.parametrize("name", ["quick", "release"])
def test_a_workflow_runs_what_is_here(name):
    text = WORKFLOWS[name]
    for script in re.findall(r"- run: (\.ci/\w+)", text):
        assert os.access(ROOT / script, os.X_OK)
    for path in re.findall(r"^ +([\w./-]+\.(?:txt|toml))$", text, re.MULTILINE):  # the cache depends on them
        assert (ROOT / path).is_file()
    for action in re.findall(r"uses: (.*)", text):
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v[\d.]+", action)  # a tag may move
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    (matrix,) = [job["strategy"]["matrix"] for job in yaml.safe_load(text)["jobs"].values() if "strategy" in job]
    assert matrix == {"python": named}


def test_only_the_last_job_of_a_release_may_publish():
    jobs = yaml.safe_load(WORKFLOWS["release"])["jobs"]
    assert {name: job["permissions"] for name, job in jobs.items() if "permissions" in job} == {
        "publish": {"id-token": "write"}
    }
    assert {*jobs["publish"]["needs"], "publish"} == set(jobs)
    assert yaml.safe_load(WORKFLOWS["release"])["permissions"] == {"contents": "read"}


@pytest.mark.parametrize(("tag", "code"), [(f"v{bandpo.__version__}", 0), (f"v{bandpo.__version__}.1", 1), ("v", 1)])
def test_a_release_needs_the_tag_of_its_version(tag, code):
    steps = yaml.safe_load(WORKFLOWS["release"])["jobs"]["build"]["steps"]
    (script,) = [step["run"] for step in steps if step.get("name") == "the tag is the version"]
    variables = os.environ | {"GITHUB_REF_NAME": tag}
    assert subprocess.run(["bash", "-e", "-c", script], cwd=ROOT, env=variables, check=False).returncode == code


# ---- the files that bring Ray up: the Slurm script against stand-ins for Slurm's commands, the manifest's part

FOLDER = Path(__file__).parent.parent / "recipes" / "cluster"
SCRIPT = FOLDER / "slurm.sbatch"
# Each notes how it was called; srun runs the command on this machine, with the node's name in NODE.
STAND_INS = {
    "scontrol": "printf 'node1\\nnode2\\nnode3\\n'",
    "srun": 'for a; do case $a in --nodelist=*) export NODE=${a#*=};; --*) ;; *) break;; esac; shift; done; exec "$@"',
    "hostname": "echo '10.0.0.1 10.1.0.1'",
    "ray": 'echo "$NODE ray $*" >> "$CALLS"; [ "$1 $NODE" != "start node2" ] || [ -e "$CALLS.again" ] || '
    '{ touch "$CALLS.again"; exit 1; }; exec /bin/sleep 5 > /dev/null 2>&1',
    "sleep": "exec /bin/sleep 0.05",
    "python": '[ "$1" = - ] || { echo "$NODE python $* at $RAY_ADDRESS" >> "$CALLS"; exit ${VERL_EXIT:-0}; }; '
    'cat > /dev/null; echo "$NODE python $2 $3" >> "$CALLS"; /bin/sleep 1',
    "bandpo": 'echo "$NODE bandpo $*" >> "$CALLS"',
}


def run_slurm(tmp_path, *arguments, **environment):
    commands, calls = tmp_path / "bin", tmp_path / "calls"
    for name, text in STAND_INS.items():
        write(commands / name, f"#!/usr/bin/env bash\n{text}\n").chmod(0o755)
    stand_ins = {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "CALLS": str(calls),
        "SLURM_JOB_NODELIST": "node[1-3]",
        "SLURM_GPUS_ON_NODE": "4",
    }
    env = {**os.environ, **stand_ins, **environment}
    done = subprocess.run(["bash", str(SCRIPT), *arguments], capture_output=True, text=True, timeout=60, env=env)
    return done, calls.read_text(encoding="utf-8").splitlines() if calls.exists() else []


@pytest.mark.slow
def test_the_slurm_script_starts_ray_on_all_nodes_waits_and_runs_the_recipe(tmp_path):
    done, (doctor, *calls, last) = run_slurm(tmp_path, "--config-name", "paper", "rule=grpo")
    assert (done.returncode, doctor) == (0, "node1 bandpo doctor"), done.stderr
    main = "python -m verl.trainer.main_ppo --config-name paper rule=grpo trainer.nnodes=3"
    assert last == f"node1 {main} at 10.0.0.1:6379"
    worker = "ray start --address=10.0.0.1:6379 --num-gpus=4 --block"
    assert Counter(calls) == {
        "node1 ray start --head --node-ip-address=10.0.0.1 --port=6379 --num-gpus=4 --block": 1,
        f"node2 {worker}": 2,  # the first time the head was not there yet
        f"node3 {worker}": 1,
        "node1 python 10.0.0.1:6379 12": 1,
    }


@pytest.mark.slow
def test_the_slurm_job_fails_with_the_run(tmp_path):
    assert run_slurm(tmp_path, "rule=grpo", VERL_EXIT="3")[0].returncode == 3


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck")
def test_the_scripts_pass_shellcheck():
    ours = [str(SCRIPT), str(FOLDER.parent.parent / ".ci" / "run")]
    done = subprocess.run(["shellcheck", "-e", "SC1091", *ours], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_manifest_is_a_ray_job_whose_nodes_are_those_of_the_recipe():
    job = yaml.safe_load((FOLDER / "rayjob.yaml").read_text(encoding="utf-8"))
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    (workers,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    words = job["spec"]["entrypoint"].split()
    assert words[:5] == ["env", "RAY_ADDRESS=auto", "python", "-m", "verl.trainer.main_ppo"]
    assert f"trainer.nnodes={workers['replicas']}" in words
    (container,) = workers["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == workers["rayStartParams"]["num-gpus"] == "8"
    for name in ("constraints/verl.txt", "constraints/gpu.txt"):
        pins = (FOLDER.parent.parent / name).read_text(encoding="utf-8").splitlines()
        assert f"ray=={job['spec']['rayClusterSpec']['rayVersion']}" in pins
