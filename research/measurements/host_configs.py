"""Run the doctor on example configurations of the trainers themselves, as they are and with bandpo's lines.

    python -m research.measurements.host_configs FOLDER    # writes host_configs.csv

FOLDER has a clone of each repository below, bare or not, in a folder of its name, or else its files. Nothing of them is
run or kept: a row says what the doctor said. Lines that are added stand in a file beside the configuration.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from bandpo.errors import UserError
from bandpo_runs.doctor.examine import examine
from research.csv_rows import write_rows

NODE = "{type: band, divergence: kl, delta: 0.05}"
LOSS = "actor_rollout_ref.actor.policy_loss"
MEGATRON = "train --loss-type custom_loss --custom-loss-function-path bandpo.integrations.{}.loss trust_region={}\n"
PYTHON = "from bandpo.integrations.{} import BandPOLoss\nloss = BandPOLoss{}(trust_region='band:kl:0.05')\n"
REGISTER = "from bandpo.integrations.{0} import register_bandpo_loss\nregister_bandpo_loss(bandpo.Band('kl', 0.05))\n"
# Repository, commit, the lines of bandpo as files, and configurations.
TRAINERS = {
    "verl": (
        "verl-project/verl@1dda039b",
        {".sh": f"{LOSS}._target_=bandpo.integrations.verl.BandPOLossConfig {LOSS}.loss_mode=bandpo "
                f"'+{LOSS}.trust_region={NODE}'"},
        ["examples/grpo_trainer/run_qwen3_8b_fsdp.sh", "examples/grpo_trainer/run_qwen3_30b_a3b_megatron.sh",
         "examples/gspo_trainer/run_qwen3_8b_fsdp.sh", "examples/cispo_trainer/run_qwen3_8b_fsdp.sh"],
    ),
    "SkyRL": (
        "NovaSky-AI/SkyRL@a9564572",
        {".sh": "trainer.algorithm.policy_loss_type=bandpo", ".py": REGISTER.format("skyrl")},
        ["examples/train/algorithms/dapo/run_dapo_gsm8k.sh", "examples/train/async/async_run_gsm8k.sh",
         "examples/train/gsm8k/run_gsm8k.sh", "examples/train/fully_async/fully_async_run_gsm8k.sh",
         "examples/train/algorithms/drgrpo/run_drgrpo_gsm8k.sh"],
    ),
    "prime-rl": (
        "PrimeIntellect-ai/prime-rl@559b4477",
        {".toml": '[trainer.loss]\ntype = "custom"\nimport_path = "bandpo.integrations.prime_rl.loss"\n'
                  '[trainer.loss.kwargs]\ntrust_region = { type = "band", divergence = "kl", delta = 0.05 }\n'},
        ["configs/basic/reverse-text/rl.toml", "examples/advanced/intellect-3.1/rl.toml",
         "configs/debug/algo/grpo.toml"],
    ),
    "Trinity-RFT": (
        "modelscope/Trinity-RFT@c3d094d5 889b36c5 049b8985",
        {".yaml": "algorithm:\n  policy_loss_fn: bandpo.integrations.trinity.BandPOLoss\n"
                  f"  policy_loss_fn_args: {{trust_region: {NODE}, loss_agg_mode: token-mean}}\n"},
        ["examples/grpo_gsm8k/gsm8k.yaml", "examples/dapo_math/dapo.yaml", "examples/rec_gsm8k/gsm8k.yaml"],
    ),
    "xtuner": (
        "InternLM/xtuner@b934f462",
        {".py": "policy_loss_cfg = dict(loss_type='bandpo.integrations.xtuner.loss', "
                "trust_region=dict(type='band', divergence='kl', delta=0.05))\n"},
        ["examples/v1/config/rl_grpo_gsm8k_async.py", "examples/v1/config/rl_dapo_math.py",
         "examples/v1/config/rl_disagg_multi.py", "examples/v1/config/rl_grpo_geo3k_judge.py"],
    ),
    "RLinf": (
        "RLinf/RLinf@a3816b59",
        {".yaml": "algorithm: {loss_type: bandpo}\n", ".py": REGISTER.format("rlinf")},
        ["examples/reasoning/config/math/qwen2.5-1.5b-grpo-fsdp.yaml",
         "examples/reasoning/config/math/qwen2.5-1.5b-single-gpu.yaml",
         "examples/agent/coding_online_rl/config/qwen2.5-1.5b-grpo-llm_judge.yaml",
         "examples/embodiment/config/behavior_ppo_openpi.yaml"],
    ),
    "miles": (
        "radixark/miles@31f1ca96",
        {".sh": MEGATRON.format("miles", NODE)},
        ["examples/ppo/run_qwen3_4b_ppo.py", "examples/experimental/reproducibility/run-qwen2.5-0.5B-gsm8k.sh",
         "examples/lora/run-qwen3-4B-megatron-lora.sh",
         "examples/infra_features/fully_async/run_qwen3_30b_a3b_fully_async.py"],
    ),
    "slime": (
        "THUDM/slime@624b824a",
        {".sh": MEGATRON.format("slime", NODE)},
        ["examples/retool/retool_qwen3_4b_rl.sh", "scripts/run-qwen3-4B.sh", "scripts/run-glm4-9B.sh",
         "examples/fully_async/run-qwen2.5-0.5B-fully_async.sh"],
    ),
    "torchtitan": (
        "pytorch/torchtitan@b5bcd76c",
        {".py": PYTHON.format("torchtitan", ".Config")},
        [f"torchtitan/experiments/rl/examples/{name}/config_registry.py"
         for name in ("dapo_math", "search_r1", "alphabet_sort")],
    ),
    "torchrl": (
        "pytorch/rl@ae9719f1",
        {".py": PYTHON.format("torchrl", "")},
        ["sota-implementations/grpo/config/grpo_gsm8k.yaml", "sota-implementations/grpo/config/grpo_math_7b_sync.yaml",
         "sota-implementations/grpo/grpo-sync.py"],
    ),
    "tinker": (
        "thinking-machines-lab/tinker-cookbook@9dfcc3a2",
        {".py": "from bandpo.integrations.tinker import bandpo_loss\nbandpo_loss(bandpo.Band('kl', 0.05))\n"},
        ["tinker_cookbook/recipes/math_rl/train.py", "tinker_cookbook/recipes/code_rl/train.py",
         "tinker_cookbook/recipes/rl_loop.py"],
    ),
    "axolotl": (
        "axolotl-ai-cloud/axolotl@067b021c",
        {".yaml": f"plugins: [bandpo.integrations.axolotl.Plugin]\ntrust_region: {NODE}\n"},
        ["examples/llama-3/qlora-1b-gdpo.yaml", *(f"src/axolotl/integrations/nemo_gym/examples/nemo_gym_{name}.yaml"
         for name in ("multi_env", "multi_turn", "sudoku"))],
    ),
    "AsyncGRPO": (
        "huggingface/trl@f2cd5771",
        {".py": "AsyncBandPOTrainer(trust_region='band:kl:0.05')\n"},
        ["examples/scripts/async_grpo.py", "examples/scripts/openenv/opencode.py"],
    ),
    "Liger": (
        "linkedin/Liger-Kernel@ead96b61",
        {".py": PYTHON.format("liger", "")},
        ["benchmark/scripts/benchmark_grpo_loss.py", "benchmark/scripts/benchmark_grpo_loss_kernel.py"],
    ),
    "TRL": (
        "huggingface/trl@f2cd5771",
        {},
        ["examples/scripts/grpo_2048.py", "examples/scripts/openenv/echo.py", "examples/scripts/openenv/carla.py"],
    ),
    "AReaL": (
        "inclusionAI/AReaL@4aef98d8",
        {},
        ["examples/math/gsm8k_grpo.yaml", "examples/math/gsm8k_drgrpo.yaml", "examples/math/gsm8k_dapo_dynamic_bs.yaml",
         "examples/math/boba_grpo.yaml", "examples/experimental/prox_approx/gsm8k_grpo_prox_approx.yaml"],
    ),
    "OpenRLHF": (
        "OpenRLHF/OpenRLHF@3c3be623",
        {},
        [f"examples/scripts/train_{name}.sh" for name in ("dapo_ray_hybrid_engine", "ppo_ray_hybrid_engine",
         "ppo_with_reward_fn", "reinforce_baseline_hybrid_engine", "reinforce_baseline_ray_agent_async")],
    ),
    "NeMo-RL": (
        "NVIDIA-NeMo/RL@7ea279ab",
        {},
        [f"examples/configs/grpo_math_{name}.yaml" for name in ("1B", "1B_megatron", "8B", "70B_megatron")],
    ),
    "open-instruct": (
        "allenai/open-instruct@e6c3044a",
        {},
        ["scripts/train/debug/grpo_fast.sh", "scripts/train/debug/full_integration_test.sh",
         "scripts/train/olmo2/grpo_fast_32b.sh"],
    ),
    "ROLL": (
        "alibaba/ROLL@8eb27cc2",
        {},
        ["examples/docs_examples/example_grpo.yaml", "examples/qwen2.5-7B-rlvr-offpolicy/rlvr_config.yaml",
         "examples/qwen2.5-7B-rlvr_megatron/rlvr_config.yaml"],
    ),
    "ms-swift": (
        "modelscope/ms-swift@3602360a",
        {},
        [f"examples/train/grpo/{name}.sh" for name in ("internal/vllm_lora_qwenvl72b", "internal/gspo",
         "internal/vllm_72b_4gpu", "external/grpo_7b", "multi_node/server_multi_node")],
    ),
}  # fmt: skip


def text_of(folder: Path, commit: str, path: str) -> str:
    """Return a configuration, of the clone or of the folder."""
    shown = subprocess.run(["git", "-C", str(folder), "show", f"{commit}:{path}"], capture_output=True, text=True)
    return (folder / path).read_text(encoding="utf-8") if shown.returncode else shown.stdout


def findings(arguments: list[str]) -> str:
    """Return what the doctor says, in short."""
    try:
        return "; ".join(f"{finding.level}: {finding.what[:110]}" for finding in examine(arguments))
    except UserError as error:
        return f"error: {Path(str(error)).name}"


def main(folder: Path) -> None:
    """Write a row for each configuration."""
    columns, rows = ("host", "repository", "commit", "path", "said", "with"), []
    with tempfile.TemporaryDirectory() as place:
        for host, (source, lines, paths) in TRAINERS.items():
            repository, _, commits = source.partition("@")
            added = [Path(place) / f"{host}-bandpo{suffix}" for suffix in lines]
            for file, text in zip(added, lines.values(), strict=True):
                file.write_text(text, encoding="utf-8")
            for i, path in enumerate(paths):
                commit = [*commits.split(), *[commits] * len(paths)][i]
                file = Path(place) / Path(path).name
                file.write_text(text_of(folder / repository.split("/")[1], commit, path), encoding="utf-8")
                both = findings([str(file), *map(str, added)]) if added else ""
                values = (host, repository, commit, path, findings([str(file)]), both)
                rows.append(dict(zip(columns, values, strict=True)))
    write_rows(Path(__file__).with_suffix(".csv"), rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
