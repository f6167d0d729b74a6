"""The files that bring Ray up: the Slurm script against stand-ins for Slurm's commands, the manifest's parts."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

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
    "python": 'cat > /dev/null; echo "$NODE python $2 $3" >> "$CALLS"; /bin/sleep 1',
    "bandpo": 'echo "$NODE bandpo $* at $RAY_ADDRESS" >> "$CALLS"; exit ${BANDPO_EXIT:-0}',
}


def run(tmp_path, *arguments, **environment):
    commands = tmp_path / "bin"
    commands.mkdir(exist_ok=True)
    for name, text in STAND_INS.items():
        (commands / name).write_text(f"#!/usr/bin/env bash\n{text}\n", encoding="utf-8")
        (commands / name).chmod(0o755)
    calls = tmp_path / "calls"
    stand_ins = {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "CALLS": str(calls),
        "SLURM_JOB_NODELIST": "node[1-3]",
        "SLURM_GPUS_ON_NODE": "4",
    }
    done = subprocess.run(
        ["bash", str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **stand_ins, **environment},
        check=False,
    )
    return done, calls.read_text(encoding="utf-8").splitlines() if calls.exists() else []


@pytest.mark.slow
def test_the_slurm_script_starts_ray_on_all_nodes_waits_and_runs_the_recipe(tmp_path):
    done, calls = run(tmp_path, "recipe.yaml", "trainer.save_freq=10")
    assert done.returncode == 0, done.stderr
    assert "node1 ray start --head --node-ip-address=10.0.0.1 --port=6379 --num-gpus=4 --block" in calls
    worker = "ray start --address=10.0.0.1:6379 --num-gpus=4 --block"
    assert calls.count(f"node2 {worker}") == 2  # the first time the head was not there yet
    assert calls.count(f"node3 {worker}") == 1
    assert "node1 python 10.0.0.1:6379 12" in calls
    assert calls[0] == "node1 bandpo doctor --no-ray at "
    assert calls[-1] == "node1 bandpo verl recipe.yaml trainer.save_freq=10 trainer.nnodes=3 at 10.0.0.1:6379"


@pytest.mark.slow
def test_the_slurm_job_fails_with_the_run(tmp_path):
    assert run(tmp_path, "recipe.yaml", BANDPO_EXIT="3")[0].returncode == 3


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
    assert words[:4] == ["env", "RAY_ADDRESS=auto", "bandpo", "verl"]
    assert f"trainer.nnodes={workers['replicas']}" in words
    (container,) = workers["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == workers["rayStartParams"]["num-gpus"] == "8"
    for name in ("constraints/verl.txt", "constraints/gpu.txt"):
        pins = (FOLDER.parent.parent / name).read_text(encoding="utf-8").splitlines()
        assert f"ray=={job['spec']['rayClusterSpec']['rayVersion']}" in pins
