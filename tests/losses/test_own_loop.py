"""The functions of examples/papers.py, for papers without a name in the index, against their formulas, written here
anew; and the lines of docs/own_loop.md for several processes.
"""

import re

import pytest
import torch
from own_loop import PAPERS, holding, of_batch, run, run_as_rank
from scripts import ROOT
from scripts import load as load_script
from textbook import F64, ppo
from torch import Tensor

import bandpo

ROWS, COLUMNS, GROUP = 24, 9, 4


def batch(seed: int = 0) -> dict[str, Tensor]:
    """Return what the loop has: ragged rows, some garbage in padding, one prompt solved never and one always."""
    rng = torch.Generator().manual_seed(seed)
    noise = lambda scale: scale * torch.randn(ROWS, COLUMNS, generator=rng, dtype=F64)  # noqa: E731
    rewards = torch.randint(2, (ROWS,), generator=rng).to(F64)
    rewards[:GROUP], rewards[GROUP : 2 * GROUP] = 0, 1
    rewards[2 * GROUP], rewards[2 * GROUP + 1] = 0, 1
    old = (torch.rand(ROWS, COLUMNS, generator=rng, dtype=F64) * 0.9 + 0.02).log()
    mask = torch.arange(COLUMNS) < torch.randint(1, COLUMNS + 1, (ROWS, 1), generator=rng)
    garbage = torch.where(mask, 0.0, -5.0)
    return {
        "rewards": rewards,
        "advantages": bandpo.group_advantages(rewards, GROUP),
        "mask": mask,
        "old_logps": old,
        "rollout_logps": (old + noise(0.1)).clamp(max=-1e-3) + garbage,
        "logps": (old + noise(0.5) + 0.5 * torch.randn(ROWS, 1, generator=rng, dtype=F64)).clamp(max=-1e-3) + garbage,
    }


def plain(logps, old_logps, advantages, mask, objective="grpo"):
    return bandpo.policy_loss(logps, old_logps, advantages, mask, objective)


def check(function, data: dict[str, Tensor], formula, **more) -> None:
    """Compare value and gradient with a formula's, which differ from those of GRPO's clip."""
    log_pi = data["logps"].clone().requires_grad_()
    expected = -formula(log_pi)
    loss, gradient = run(function, data, **more)
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-9, atol=0)
    slope = torch.autograd.grad(expected, log_pi)[0]
    torch.testing.assert_close(gradient, slope, rtol=1e-9, atol=1e-14)
    assert ((gradient - run(plain, data)[1]).abs() > 1e-9)[data["mask"]].double().mean() > 0.01


def clipped(data: dict[str, Tensor], log_pi: Tensor, weigh, high: float = 1.2, *, tokens: bool = False) -> Tensor:
    """Return the mean of PPO's clip with an advantage of each token, over responses or over tokens."""
    mask, total = data["mask"], torch.zeros((), dtype=F64)
    for i, row in enumerate(mask):
        now, old = log_pi[i][row], data["old_logps"][i][row]
        weights = torch.stack([weigh(i, x) for x in now.detach()])
        terms = ppo((now - old).exp(), weights, 0.8, high)
        total = total + (terms.sum() / mask.sum() if tokens else terms.mean() / len(mask))
    return total


def groups(rewards: Tensor) -> list[list[float]]:
    return [rewards[i : i + GROUP].tolist() for i in range(0, ROWS, GROUP)]


def test_a_grae():
    """As its repository's function; the trainer there leaves the weight that leads to it with the first step."""
    data = batch()
    means = [sum(each) / GROUP for each in groups(data["rewards"])]
    overall = sum(means) / len(means)

    def weigh(i: int, _: Tensor) -> Tensor:
        a, p = data["advantages"][i], means[i // GROUP]
        hard, easy = 0.5 * a / (p**0.5 + 1e-6), 0.5 * a / (1 - p**0.5 + 1e-6)
        both = (1 - overall) * easy + overall * hard
        return both * min(1, overall) if both > 0 else both

    check(PAPERS.a_grae, data, lambda log_pi: clipped(data, log_pi, weigh))


@pytest.mark.parametrize(
    ("solve_rate", "entropy", "alpha", "delta"),
    [(0.4, 0.9, 2.25, 0.9), (0.2, 2.0, 3, 1), (0.9, 0.1, 1, 0.3)],  # alpha = 3 (1 - p) / (2 p)
)
def test_fade(solve_rate, entropy, alpha, delta):
    """As a digest; what it calls a batch's mean is a prompt's here, for which alone its p q^alpha makes sense."""
    data = batch()
    means = [sum(each) / GROUP for each in groups(data["rewards"])]

    def weigh(i: int, _: Tensor) -> Tensor:
        mean = means[i // GROUP]
        rise = data["rewards"][i] - mean
        return (1 - mean) ** (alpha - 1) * (rise if rise >= 0 else rise / delta)

    state = {"solve_rate": solve_rate, "entropy": entropy}
    check(PAPERS.fade, data, lambda log_pi: clipped(data, log_pi, weigh), **state)


@pytest.mark.parametrize("zeta", [0.001, 0.9])  # with 0.9 some factors are cut at 0
def test_repo_r(zeta):
    data = batch()

    def weigh(i: int, log_pi: Tensor) -> Tensor:
        a = data["advantages"][i]
        return (a * (1 - zeta * log_pi)).clamp(min=0) if a > 0 else (a * (1 + zeta * log_pi)).clamp(max=0)

    check(PAPERS.repo_r, data, lambda log_pi: clipped(data, log_pi, weigh), zeta=zeta)


@pytest.mark.parametrize("seed", range(3))
def test_stare(seed):
    data = batch(seed)
    good = data["mask"] & (data["advantages"] > 0)[:, None]
    surprise = (-data["logps"])[good].sort(descending=True).values
    count = -(-len(surprise) // 10)
    assert count > 1

    def weigh(i: int, log_pi: Tensor) -> Tensor:
        a = data["advantages"][i]
        return a * (1.1 if a > 0 and -log_pi >= surprise[count - 1] else 1)

    check(PAPERS.stare, data, lambda log_pi: clipped(data, log_pi, weigh, high=1.28, tokens=True))
    data["advantages"] = torch.zeros(ROWS, dtype=F64)  # without good answers it is DAPO
    assert all(map(torch.equal, run(PAPERS.stare, data), run(plain, data, objective="dapo")))


def test_wapo():
    data = batch()
    data["logps"][2 * GROUP + 1, 0] = data["rollout_logps"][2 * GROUP + 1, 0] + 2.5  # 12 times as likely: clipped
    data["logps"], data["rollout_logps"] = data["logps"] - 3, data["rollout_logps"] - 3

    def formula(log_pi: Tensor) -> Tensor:
        total, prompts = torch.zeros((), dtype=F64), 0
        for g, rewards in enumerate(groups(data["rewards"])):
            mean = sum(rewards) / GROUP
            prompts += any(r > mean for r in rewards)
            for i, r in enumerate(rewards, g * GROUP):
                if r > mean:  # losers have no part in it
                    row = data["mask"][i]
                    ratio = (log_pi[i][row] - data["rollout_logps"][i][row]).exp()
                    held = torch.where(ratio > 1 + 9, 1.0 + 9, ratio)
                    total = total + (held * (r - mean)).sum() / (GROUP * COLUMNS)
        assert prompts == 4
        return total / prompts

    check(PAPERS.wapo, data, formula)
    assert run(PAPERS.wapo, data | {"rewards": torch.zeros(ROWS, dtype=F64)})[0] == 0


def test_trm_and_opsm_drop_responses_as_their_formulas():
    data, dropped = batch(), {PAPERS.trm: [], PAPERS.opsm: []}
    for row, new, old, a in zip(*(data[x] for x in ("mask", "logps", "rollout_logps", "advantages")), strict=True):
        ratios = (new - old)[row].exp()
        dropped[PAPERS.trm].append(bool((ratios - 1 - ratios.log() > 0.05).any()))
        dropped[PAPERS.opsm].append(bool((-ratios.log()).mean() > 0.5 and a < 0))
    for function, expected in dropped.items():
        data["kept"] = of_batch(function, data)
        assert (~data["kept"]).tolist() == expected
        assert not run(PAPERS.of_kept_responses, data)[1][~data["kept"]].any()
        assert 0 < sum(expected) < ROWS


@pytest.mark.parametrize("seed", range(5))
def test_opsm_is_trls(seed):
    theirs = pytest.importorskip("trl").GRPOTrainer.get_off_policy_mask
    data = batch(seed)
    kept = of_batch(PAPERS.opsm, data)
    expected = theirs(data["advantages"][:, None], data["logps"], data["rollout_logps"], data["mask"].double(), 0.5)
    assert torch.equal(kept[:, None], expected.bool())
    assert 0 < (~kept).sum() < ROWS


@pytest.mark.parametrize("share", [0.0002, 0.1])
def test_kl_cov(share):
    data = batch()
    mask = data["mask"]
    a, x = data["advantages"][:, None].expand_as(mask)[mask], data["logps"][mask]
    covariance = [float((b - a.mean()) * (y - x.mean())) for b, y in zip(a, x, strict=True)]
    count = max(1, int(len(covariance) * share))
    least = sorted(covariance)[-count]

    def formula(log_pi: Tensor) -> Tensor:
        log_r = (log_pi - data["old_logps"])[mask]
        terms = log_r.exp() * a
        held = torch.tensor([c >= least for c in covariance])
        return (terms - torch.where(held, log_r.abs(), 0.0)).sum() / len(terms)

    check(PAPERS.kl_cov, data, formula, share=share)


def test_dro():
    data = batch()
    a, mask = data["advantages"][:, None], data["mask"]

    def formula(log_pi: Tensor) -> Tensor:
        terms = torch.where(mask, log_pi * a - 0.3 / 2 * (log_pi - data["old_logps"]) ** 2, 0.0)
        return (terms.sum(1) / mask.sum(1)).mean()

    check(PAPERS.dro, data, formula)


def in_processes(ranks: int, lines: str, tmp_path) -> None:
    torch.multiprocessing.spawn(run_as_rank, (ranks, str(tmp_path / "meeting"), lines), nprocs=ranks)


@pytest.mark.parametrize("ranks", [1, 2])
def test_packed_micro_batches_on_ranks_are_the_whole_padded_batch(ranks, tmp_path):
    """The script compares the losses; the gradients are the mean over the ranks, as DDP and FSDP leave them."""
    check = """
weights = [*body.parameters(), *head.parameters()]
expected = torch.autograd.grad(bandpo.policy_loss(current(), old_logps, advantages, mask, region)[0], weights)
for weight, whole_gradient in zip(weights, expected, strict=True):
    dist.all_reduce(weight.grad)
    torch.testing.assert_close(weight.grad / dist.get_world_size(), whole_gradient)
assert total.all_reduce().compute()["tokens"] == mask.sum()
optimizer.step()
"""
    packed = (ROOT / "examples" / "data_parallel.py").read_text(encoding="utf-8")
    before, step, after = packed.rpartition("optimizer.step()\n")
    assert step
    in_processes(ranks, f"{before}{check}{after}", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_fsdp2_has_the_gradients_of_the_whole_model(ranks, precision, tmp_path):
    check = """
if plain.lm_head.weight.grad is None:
    bandpo.policy_loss(logps_of(plain), first_logps, advantages, mask, "dapo")[0].backward()
    assert (logps_of(plain) - first_logps).abs().max() < FAR
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert ours.dtype == ours.grad.dtype == torch.float32
        difference = (ours.grad.full_tensor() - theirs.grad).norm()
        assert difference <= NEAR * theirs.grad.norm()
"""
    lines = holding("Qwen2Config", "fully_shard").replace(
        "class Policy", "import copy\nplain = copy.deepcopy(model)\nclass Policy"
    )
    if precision == "float32":
        lines = lines.replace("(torch.bfloat16, reduce_dtype=torch.float32)", "()")
    near, far = (1e-4, 1e-5) if precision == "float32" else (0.1, 0.05)
    check = check.replace("NEAR", str(near)).replace("FAR", str(far)).replace("\n", "\n    ")
    before, step, after = lines.rpartition("; adam.step()\n")
    assert step
    in_processes(ranks, f"{before}{check}\n    adam.step()\n{after}", tmp_path)


def test_the_index_names_each(capsys):
    absent, text = load_script("docs/methods.py").ABSENT, (ROOT / "examples" / "papers.py").read_text(encoding="utf-8")
    PAPERS.main()
    names, numbers = re.findall(r"^\S+", capsys.readouterr().out, re.M), re.findall(r"\d{4}\.\d{5}", text)
    papers = " ".join(papers for _, papers, why in absent if "examples/papers.py" in why)
    assert all(name in " ".join(name for name, _, _ in absent) and f'"""{name}' in text for name in names)
    assert all(number in papers for number in numbers)
    assert len(names) == len(numbers) == 9
