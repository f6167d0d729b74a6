"""The estimate of memory, time and disk, and what it reads of the recipes without verl."""

import re

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from research.plan import main as estimate
from research.plan import plan, recipe

QWEN = "llm=qwen2.5-3b"


@pytest.fixture
def estimated(capsys):
    """What `python -m research.plan` prints of a run."""

    def out(*words, code=0):
        assert estimate(words) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    return out


def test_the_estimate_of_repetitions(estimated):
    times = r"(?:800 steps|2 such runs) +([\d.]+)  hours, (\d+) GPU hours"
    one, two = re.findall(times, estimated(QWEN, "rule=band-kl", "--seeds", "2"))
    hours, gpu_hours = float(one[0]), float(one[1])
    assert (float(two[0]), gpu_hours) == (pytest.approx(2 * hours, abs=0.2), pytest.approx(8 * hours, abs=1))


# Seconds of a step in the released logs, Qwen2.5-3B-Instruct on 8 H200: four runs of four steps.
LOGS = {"generation": (35, 38), "old log-probs": (12.5, 12.5), "reference": (12, 15), "update": (42, 44)}


def test_the_estimate_of_time_against_the_released_logs():
    step = plan(recipe(words=[QWEN, "text=public"])).step
    assert 104 <= sum(step.values()) <= 111
    errors = {phase: step[phase] / (sum(logged) / 2) - 1 for phase, logged in LOGS.items()}
    # research/pages/plan.md has these numbers.
    assert errors == pytest.approx(
        {"generation": 0.0, "old log-probs": -0.08, "reference": -0.15, "update": 0.07}, abs=0.01
    )


# As their weight files on the hub have them.
PARAMETERS = {
    "r1-qwen-1.5b": 1_777_088_000,
    "r1-qwen-7b": 7_615_616_512,
    "r1-llama-8b": 8_030_261_248,
    "qwen2.5-3b": 3_085_938_688,
}


@pytest.mark.parametrize("model", PARAMETERS)
def test_the_parameters_are_those_of_transformers_model(model):
    run = recipe(words=[f"llm={model}"])
    config, cls = (LlamaConfig, LlamaForCausalLM) if "llama" in model else (Qwen2Config, Qwen2ForCausalLM)
    with torch.device("meta"):
        made = cls(config(**run["plan"]["shape"]))
    made.tie_weights()
    assert made.num_parameters() == PARAMETERS[model]
    # Qwen2's biases of queries, keys and values are left out.
    assert plan(run).parameters == pytest.approx(PARAMETERS[model], rel=1e-4)


def kept_bytes(hidden, intermediate, layers, tokens, checkpointing):
    """What autograd keeps of a forward pass in bfloat16, beside the parameters."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=64, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=hidden // 128, num_key_value_heads=1, use_cache=False,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).bfloat16().train()
    if checkpointing:
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    rest = {}

    def keep(x):
        if x.untyped_storage().data_ptr() not in parameters:
            rest[x.untyped_storage().data_ptr()] = x
        return x

    with torch.autocast("cpu", torch.bfloat16), torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        model.model(torch.zeros(1, tokens, dtype=torch.long))
    return sum(x.untyped_storage().nbytes() for x in rest.values())


@pytest.mark.parametrize(("hidden", "intermediate"), [(256, 1376), (512, 1792)])
@pytest.mark.slow
def test_the_estimate_of_activations_against_what_autograd_keeps(hidden, intermediate):
    def of_a_layer(checkpointing):
        more_layers = [
            kept_bytes(hidden, intermediate, 2, tokens, checkpointing)
            - kept_bytes(hidden, intermediate, 1, tokens, checkpointing)
            for tokens in (256, 512)
        ]
        return (more_layers[1] - more_layers[0]) / 256

    assert of_a_layer(True) == 2 * hidden
    formula = 24 * hidden + 8 * intermediate
    assert 0.94 * formula < of_a_layer(False) < formula  # research/pages/plan.md has this number
    settings = [f"plan.shape.hidden_size={hidden}", f"plan.shape.intermediate_size={intermediate}"]
    wanted = plan(recipe(words=[QWEN, *settings, "plan.shape.num_hidden_layers=3"])).training["activations"]
    assert wanted * 2**30 == pytest.approx(8 * 5120 * (3 * 2 * hidden + formula))


def test_the_estimate_follows_the_settings():
    def of(*settings):
        return plan(recipe(words=[QWEN, *settings]))

    one, two = of(), of("trainer.nnodes=2")
    assert two.training["gradients"] == pytest.approx(one.training["gradients"] / 2)
    assert two.step["update"] == pytest.approx(one.step["update"] / 2)
    # The longest answer takes as long on two nodes; half of the little that grows with the answers is gone.
    assert one.step["generation"] - 1 < two.step["generation"] < one.step["generation"]
    assert one.generation["rollout"] == pytest.approx(0.8 * 139)
    # 512 answers on a GPU, 256 at once: two waves of the longest, and a cache that is read for longer.
    assert of("plan.response_tokens=4096").step["generation"] > 2 * one.step["generation"]
    assert "reference" not in of("actor_rollout_ref.actor.use_kl_loss=false").step
    lora = plan(recipe("lora", [QWEN]))
    assert lora.step["update"] == pytest.approx(3 * lora.step["old log-probs"])
    assert lora.step["old log-probs"] == pytest.approx(one.step["old log-probs"] * 8 / 4)


def test_the_estimate_of_disk():
    whole = "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]"
    one, more = plan(recipe(words=[QWEN])), plan(recipe(words=[QWEN, whole]))
    gib = one.parameters / 2**30  # float32 with Adam's two; bfloat16; and verl writes a whole model in float32
    assert (one.checkpoint, one.merged, more.checkpoint) == pytest.approx((12 * gib, 2 * gib, 16 * gib))
    assert one.answers == pytest.approx(3200 * (4 * 700 + 1024) / 2**30)


LLAMA = ("llm=r1-llama-8b", "plan.memory=40", "trainer.total_training_steps=null")


@pytest.mark.parametrize(
    ("words", "shown", "hidden"),
    [
        ([QWEN], r"3\.09 billion parameters, on 1 x 8 H200\n4096 answers a step of 700 tokens\n", "DOES NOT FIT"),
        ([QWEN], r"checkpoints +69\.0  2 of 34\.5\n(.*\n)*.*validations +1\.8  161 of 12 MiB", None),
        ([QWEN, "trainer.total_training_steps=7"], r"checkpoints .* 1 of 34\.5", None),
        ([QWEN, "trainer.max_actor_ckpt_to_keep=null"], r"checkpoints .* 80 of 34\.5", None),
        ([QWEN, "trainer.save_freq=-1"], "disk of a run", "checkpoints  "),
        ([QWEN, "trainer.validation_data_dir=null"], "disk of a run", "validations  "),
        ([QWEN, "trainer.test_freq=-1"], "disk of a run", "validations  "),
        (LLAMA, "4096 tokens at most: all are taken to be as long as allowed(.*\n)*.* 1020 steps ", None),
        (LLAMA, r"training +\d+\.\d +DOES NOT FIT: weights", None),
        (["--config-name", "lora", QWEN, "text=public"], " 4080 steps ", None),  # a quarter of the batch
    ],
)
def test_the_plan_says_what_fits_what_is_kept_and_what_is_a_bound(estimated, words, shown, hidden):
    text = estimated(*words)
    assert re.search(shown, text), text
    assert hidden is None or hidden not in text


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("plan.shape=null", "plan.shape.num_hidden_layers must be a number, got None"),
        ("trainer.n_gpus_per_node=0", "trainer.n_gpus_per_node must be positive, got 0"),
        ("data.train_batch_size=many", "data.train_batch_size must be a number, got 'many'"),
        ("llm=qwen2.5", "llm/qwen2.5.yaml does not exist, did you mean 'qwen2.5-3b.yaml'?"),
        ("rule=nonsense", "rule/nonsense.yaml does not exist"),
        ("variant=public", "unknown choice variant: there are llm, rule, text, seed and run"),
    ],
)
def test_a_number_that_the_estimate_lacks_is_named(estimated, setting, message):
    assert message in estimated(QWEN, setting, code=2)
    assert "llm= is missing: one of qwen2.5-3b, " in estimated("rule=grpo", code=2)
