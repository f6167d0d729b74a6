"""TRL's own tests of its GRPOTrainer, with BandPOTrainer in its place.

    git clone --depth 1 --branch v1.16.0 https://github.com/huggingface/trl      # the installed release
    python -m research.measurements.trl_suite trl [--uses 2] [--write] [-k EXPRESSION]

tests/test_grpo_trainer.py of that folder runs twice, with GRPOTrainer itself and with BandPOTrainer under the rule that
each test's epsilons are. With `--uses 2` each batch is used twice as often, so that clips act. The models and data that
it names are on a hub; here they are made: text models of the named architecture, two layers and random weights, with a
tokenizer of bytes and of the words that the tests have in numbers, TRL's chat template, and some lines of text. Each
test then is

    passed    under both; its trainings are compared bit for bit, weights and log
    refused   by BandPOTrainer, with its reason: settings that leave no bounds per token, or no answer with a reward
    not here  skipped or failed under GRPOTrainer too: vision models, vLLM, a GPU, Liger
    failed    under BandPOTrainer only

`--write` appends a row to trl_suite.csv. This file is also the plug-in that the two runs of pytest load.
"""

import argparse
import collections
import copy
import gc
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
import xml.etree.ElementTree as ElementTree
import zlib
from pathlib import Path
from typing import Any, cast

# Set for the runs of pytest, before anything reads them: the folder of the made hub, and where trainings are noted.
PLUGGED_IN = "BANDPO_TRL_SUITE" in os.environ
SUITE = "tests/test_grpo_trainer.py"
PROMPTS = [f"Line {i} is {'short' if i % 3 else 'somewhat longer'}, and" for i in range(1, 10)]
# Of every architecture that has them.
SIZES = {
    "hidden_size": 8,
    "intermediate_size": 32,
    "moe_intermediate_size": 16,
    "head_dim": 2,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 2048,
    "moe_shared_expert_intermediate_size": 32,
    "mamba_num_heads": 4,
    "mamba_head_dim": 4,
    "ssm_state_size": 8,
    "n_groups": 1,
}
# The chat templates of TRL, by what the names of models begin with; else that of Qwen 2.5.
TEMPLATES = {
    "Qwen3": "qwen3",
    "Llama": "llama3_2",
    "Gemma2": "gemma",
    "Cohere2": "cohere2",
    "Glm4Moe": "glm4moe",
    "GptOss": "gptoss",
    "NemotronH": "nemotron_3_nano",
}


# Words of the tokenizer of Qwen by the numbers that the tests have. Bytes have the same numbers here; these words get
# the next ones, in the tests too.
WORDS = {
    **{151643: "<|endoftext|>", 151644: "<|im_start|>", 151645: "<|im_end|>"},
    **{
        151657: "<tool_call>",
        151658: "</tool_call>",
        11248: "}}\n",
        95642: '"}}\n',
        17453: "Done",
        16252: " increment",
    },
    **{293: " b", 314: " {", 330: ' "', 397: ">\n", 411: "out", 450: "de", 497: '",', 522: "</", 606: "name"},
    **{788: '":', 894: " any", 927: "sh", 944: "'t", 1318: "text", 1414: " know", 1513: " don", 2765: " won"},
    **{4913: '{"', 5212: ' {"', 5392: " tool", 6023: "hi", 6659: "call", 7692: "async", 9520: "step", 13477: "crement"},
    **{14172: "tool", 16370: "arguments", 22785: "_tool", 35744: "increment", 64648: "multiply", 93054: "_multiply"},
}
NUMBERS = {theirs: str(i) for i, theirs in enumerate(map(str, WORDS), 256)}


def copy_tests(folder: Path, home: Path) -> None:
    """The tests, with our numbers of the words in their rows of token numbers."""
    shutil.copytree(folder / "tests", home / "tests")
    text = (folder / SUITE).read_text(encoding="utf-8")
    ours = lambda row: re.sub(r"\d+", lambda number: NUMBERS.get(number[0], number[0]), row[0])  # noqa: E731
    (home / SUITE).write_text(re.sub(r"\[(\d+, )*\d+\]", ours, text), encoding="utf-8")


def tokenizer(template: Path) -> Any:
    """One token a byte, and those words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = list(WORDS.values())[:3]
    symbols_of_words = [text.replace(" ", "Ġ").replace("\n", "Ċ") for text in WORDS.values()]
    symbols = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *symbols_of_words]
    words = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(symbols)}, []))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token=special[0],
        eos_token=special[2],
        additional_special_tokens=special[1:2],
        chat_template=template.read_text(encoding="utf-8") if template.exists() else None,
        model_input_names=["input_ids", "attention_mask"],
    )


def make_hub(home: Path, names: list[str]) -> None:
    """A cache of the model hub with these models in it, for HF_HOME."""
    import torch
    import transformers
    import trl

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for name in names:
        match = re.fullmatch(r"trl-internal-testing/tiny-(\w+?)For(CausalLM|SequenceClassification)[-.\w]*", name)
        kind = match and getattr(transformers, f"{match[1]}Config", None)
        if not kind:
            continue
        template = next((of for begin, of in TEMPLATES.items() if match[1].startswith(begin)), "qwen2_5")
        words = tokenizer(Path(trl.__file__).parent / "chat_templates" / f"{template}.jinja")
        ids = {
            "vocab_size": len(words),
            "pad_token_id": words.pad_token_id,
            "eos_token_id": words.eos_token_id,
        }
        fields = vars(kind()).keys()
        config = kind(**{key: value for key, value in SIZES.items() if key in fields}, **ids, bos_token_id=None)
        torch.manual_seed(zlib.crc32(name.encode()))
        folder = home / "hub" / f"models--{name.replace('/', '--')}"
        made = folder / "snapshots" / ("0" * 40)
        if match[2] == "CausalLM":
            model = transformers.AutoModelForCausalLM.from_config(config)
        else:
            config.num_labels = 1
            model = transformers.AutoModelForSequenceClassification.from_config(config)
        model.save_pretrained(made)
        words.save_pretrained(made)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text("0" * 40)


def plug_in() -> None:
    """What the runs of pytest find: made data, and the trainer under test, whose trainings are noted."""
    import datasets
    import pytest
    import torch
    import trl
    from trl import import_utils

    gc.freeze()  # the tests collect after each one, which takes a third of their time
    theirs, load = trl.GRPOTrainer, datasets.load_dataset
    if not hasattr(import_utils, "is_joblib_available"):  # the tests of 1.10 ask for it, and 1.16 has it not
        cast(Any, import_utils).is_joblib_available = lambda: False

    def load_dataset(name: str, config: str | None = None, split: str | None = None, streaming: bool = False) -> Any:
        if name != "trl-internal-testing/zen":
            return load(name, config, split=split)
        chat = config == "conversational_prompt_only"
        rows = [{"prompt": [{"role": "user", "content": text}] if chat else text} for text in PROMPTS]
        parts: Any = {"train": datasets.Dataset.from_list(rows[:7]), "test": datasets.Dataset.from_list(rows[7:])}
        if streaming:
            parts = {key: part.to_iterable_dataset() for key, part in parts.items()}
        whole = (datasets.IterableDatasetDict if streaming else datasets.DatasetDict)(parts)
        return whole if split is None else whole[split]

    def train(self: Any, *args: Any, **named: Any) -> Any:
        out = super(theirs, self).train(*args, **named)
        weights = hashlib.sha256()
        for value in self.model.state_dict().values():
            weights.update(value.detach().cpu().float().numpy().tobytes())
        clock = ("step_time", "runtime", "per_second")
        log = [
            {key: value for key, value in row.items() if "bandpo/" not in key and not key.endswith(clock)}
            for row in self.state.log_history
        ]
        with Path(os.environ["BANDPO_TRL_SUITE"]).open("a", encoding="utf-8") as file:
            test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
            clips = any(row.get("clip_ratio/region_mean") for row in log)
            file.write(json.dumps([test, weights.hexdigest(), repr(log), clips]) + "\n")
        return out

    def settings(self: Any) -> None:
        self.use_cpu = self.use_cpu or not torch.cuda.is_available()  # TRL's tests are for a GPU
        self.num_iterations *= int(os.environ["BANDPO_TRL_SUITE_USES"])
        prepare(self)

    prepare = trl.GRPOConfig.__post_init__
    datasets.load_dataset, theirs.train, trl.GRPOConfig.__post_init__ = load_dataset, train, settings
    if os.environ["BANDPO_TRL_SUITE_TRAINER"] == theirs.__name__:
        return
    from bandpo import Clip
    from bandpo.integrations import trl as ours
    from bandpo.integrations.trl_context import NotFiniteError

    class Ours(ours.BandPOTrainer):
        """Under the rule that the epsilons are."""

        def __init__(self, model: Any, reward_funcs: Any = None, args: Any = None, *others: Any, **named: Any) -> None:
            region = Clip(0.2, 0.2)
            if args is not None:
                region = Clip(args.epsilon, args.epsilon if args.epsilon_high is None else args.epsilon_high)
                args = copy.copy(args)
                args.epsilon, args.epsilon_high = 0.2, None
            try:
                super().__init__(model, reward_funcs, args, *others, trust_region=region, **named)
            except ValueError as error:
                if Path(traceback.extract_tb(error.__traceback__)[-1].filename).parent != Path(ours.__file__).parent:
                    raise
                pytest.skip(f"refused: {error}")

        def train(self, *args: Any, **named: Any) -> Any:
            try:
                return super().train(*args, **named)
            except NotFiniteError as error:
                pytest.skip(f"refused: {error}")

    trl.GRPOTrainer = Ours


def pytest_runtest_setup() -> None:
    """Seed each test: one draws the weights of a LoRA by itself."""
    import torch

    torch.manual_seed(0)


def results(home: Path, trainer: str, expression: str, uses: int) -> tuple[dict[str, str], dict[str, list[list[Any]]]]:
    """What became of each test ("passed", or why not), and the trainings of each."""
    report, notes = home / f"{trainer}.xml", home / f"{trainer}.jsonl"
    own = {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "BANDPO_TRL_SUITE": str(notes),
        "BANDPO_TRL_SUITE_TRAINER": trainer,
        "BANDPO_TRL_SUITE_USES": str(uses),
    }
    options = ["-p", "trl_suite", "-p", "no:cacheprovider", "-W", "default", f"--junitxml={report}", "-k", expression]
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "--disable-warnings", *options, SUITE]
    done = subprocess.run(command, cwd=home, env=os.environ | own, stdout=subprocess.PIPE, text=True, check=False)
    if not report.exists():
        raise SystemExit(f"the tests did not run:\n{done.stdout[-2000:]}")
    (home / f"{trainer}.txt").write_text(done.stdout, encoding="utf-8")
    tests = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        bad = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        tests[name] = "passed" if bad is None else " ".join((bad.get("message") or bad.tag).split())[:200]
    trainings = collections.defaultdict(list)
    for line in notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []:
        test, *what = json.loads(line)
        trainings[test.partition("::")[2]].append(what)
    return tests, trainings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a clone of TRL's repository, at the installed release")
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="only these tests, as for pytest")
    parser.add_argument("--uses", type=int, default=1, help="by what num_iterations of each test is multiplied")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if not (args.folder / SUITE).is_file():
        parser.error(f"folder must be a clone of TRL's repository, with {SUITE} in it, got {args.folder}")
    import transformers
    import trl

    from bandpo_runs.provenance import source_commit
    from research.csv_rows import write_rows

    suite = (args.folder / "VERSION").read_text().strip()
    git = subprocess.run(["git", "-C", args.folder, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    if suite.split(".")[:2] != trl.__version__.split(".")[:2]:
        print(f"note: the tests are of TRL {suite}, installed is {trl.__version__}", file=sys.stderr)
    text = (args.folder / SUITE).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as home:
        copy_tests(args.folder, Path(home))
        make_hub(Path(home), sorted(set(re.findall(r'"(trl-internal-testing/tiny-[^"]+)"', text))))
        theirs, before = results(Path(home), "GRPOTrainer", args.k, args.uses)
        ours, after = results(Path(home), "BandPOTrainer", args.k, args.uses)
        shown = (Path(home) / "BandPOTrainer.txt").read_text(encoding="utf-8")
    by_outcome: dict[str, dict[str, str]] = {"passed": {}, "refused": {}, "not here": {}, "failed": {}}
    for test, outcome in theirs.items():
        mine = ours.get(test, "did not run")
        refused = mine.partition("refused: ")[2]
        kind = (
            "not here" if outcome != "passed" else "refused" if refused else "passed" if mine == "passed" else "failed"
        )
        by_outcome[kind][test] = refused if kind == "refused" else outcome if kind == "not here" else mine
    trained = [test for test in by_outcome["passed"] if before[test]]
    same = [before[test] == after[test] for test in trained]
    if by_outcome["failed"]:
        print(shown)
    for kind in ("not here", "refused", "failed"):
        print(f"\n{kind}:")
        for reason, count in collections.Counter(by_outcome[kind].values()).most_common():
            print(f"  {count:3}  {reason}")
    row = {
        "suite": suite,
        "suite_commit": git.stdout.strip(),
        "trl": trl.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "uses": args.uses,
        "tests": len(theirs),
        **{kind.replace(" ", "_"): len(tests) for kind, tests in by_outcome.items()},
        "tests_that_train": len(same),
        "bit_for_bit": sum(same),
        "of_these_clip": sum(any(clips for *_, clips in before[test]) for test in trained),
        "commit": source_commit(),
    }
    print(f"\n{row}")
    if args.write:
        write_rows(Path(__file__).with_suffix(".csv"), [row], add=True)
    raise SystemExit(bool(by_outcome["failed"]) or not all(same))


if PLUGGED_IN:
    plug_in()
elif __name__ == "__main__":
    main()
