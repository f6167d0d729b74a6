"""Nine papers' advantages, filters and penalties around `policy_loss`: python examples/papers.py

Copy the function that you need into your loop. No rule changes in them, so they have no name in docs/methods.md.
Log-probabilities and `mask` are (B, T), rewards and advantages (B,), with the answers to a prompt side by side.
"""

import torch

import bandpo


def a_grae(logps, old_logps, rewards, mask, group_size=4):
    """A-GRAE, 2602.05548: easy prompts first, hard ones later; good answers weigh less while few are right."""
    advantages = bandpo.group_advantages(rewards, group_size)
    solved = rewards.view(-1, group_size).mean(1)
    root, overall = solved.repeat_interleave(group_size).sqrt(), solved.mean()
    shaped = advantages / 2 * ((1 - overall) / (1 - root + 1e-6) + overall / (root + 1e-6))
    shaped = torch.where(shaped > 0, shaped * overall, shaped)
    return bandpo.policy_loss(logps, old_logps, shaped, mask, "grpo")


def fade(logps, old_logps, rewards, mask, solve_rate=0.4, entropy=0.9, target=1.0, group_size=4):
    """FADE, 2607.01490, by a digest: hard prompts first; bad answers weigh more below the target entropy.

    `solve_rate` and `entropy` are smoothed over steps.
    """
    alpha, delta = min(max(1.5 / solve_rate - 1.5, 1), 3), min(max(1 + entropy - target, 0.3), 1)
    centred = bandpo.group_advantages(rewards, group_size, normalize=False)
    hard = (1 - rewards.view(-1, group_size).mean(1)).repeat_interleave(group_size) ** (alpha - 1)
    shaped = hard * torch.where(centred < 0, centred / delta, centred)
    return bandpo.policy_loss(logps, old_logps, shaped, mask, "grpo")


def repo_r(logps, old_logps, advantages, mask, zeta=0.001):
    """REPO-R, 2603.11682: rare tokens weigh more in good answers, less in bad ones."""
    advantages = advantages[:, None]
    shaped = advantages * (1 - zeta * advantages.sign() * logps.detach()).clamp(min=0)
    return bandpo.policy_loss(logps, old_logps, shaped, mask, "grpo")


def stare(logps, old_logps, advantages, mask):
    """STARE, 2606.19236: the least likely tenth of good answers' tokens x 1.1, while the mean entropy is below 0.3."""
    good = mask & (advantages > 0)[:, None]
    rank = torch.where(good, logps.detach(), torch.inf).flatten().argsort().argsort().view_as(logps)
    weights = 1 + 0.1 * (good & (rank < good.sum() / 10)).to(logps)
    return bandpo.policy_loss(logps, old_logps, advantages, mask, "dapo", rollout_is_weights=weights)


def wapo(logps, rollout_logps, rewards, mask, group_size=4):
    """WAPO, 2606.16154: good answers alone; the mean over the prompts that have one."""
    winners = bandpo.group_advantages(rewards, group_size, normalize=False).clamp(min=0)
    prompts = (winners.view(-1, group_size) > 0).any(1).sum().clamp(min=1)
    objective = bandpo.Objective(bandpo.Clip(1, 9), aggregation="seq-mean-token-sum-norm")
    normalizer = prompts * group_size * mask.shape[1]  # the longest length allowed
    return bandpo.policy_loss(logps, rollout_logps, winners, mask, objective, normalizer=normalizer)


def trm(logps, rollout_logps, mask, limit=0.05):
    """TRM, 2512.23075: keep the responses of which no token has moved far from the sampler, by k3."""
    drift = torch.where(mask, rollout_logps - logps.detach(), 0.0)
    return (torch.expm1(-drift) + drift).amax(1) <= limit


def opsm(logps, rollout_logps, advantages, mask, limit=0.5):
    """OPSM of DeepSeek-V3.2, 2512.02556: drop bad responses that are far from the sampler on average."""
    drift = torch.where(mask, rollout_logps - logps.detach(), 0.0)
    return (advantages >= 0) | (drift.sum(1) / mask.sum(1).clamp(min=1) <= limit)


def of_kept_responses(logps, old_logps, advantages, mask, kept):
    """Give the responses that `trm` or `opsm` drops a weight of 0."""
    weights = kept[:, None].expand_as(logps).to(logps)
    return bandpo.policy_loss(logps, old_logps, advantages, mask, "grpo", rollout_is_weights=weights)


def kl_cov(logps, old_logps, advantages, mask, share=0.0002):
    """KL-Cov, 2505.22617: a penalty where the covariance of A and log pi is largest, without a clip."""
    a = advantages[:, None].expand_as(mask)
    covariance = (a - a[mask].mean()) * (logps - logps[mask].mean()).detach()
    order = torch.where(mask, covariance, -torch.inf).flatten().argsort(descending=True)
    rank = order.argsort().view_as(logps)
    ref_logps = torch.where(rank < max(1, int(share * mask.sum())), old_logps, logps.detach())
    objective = bandpo.Objective(bandpo.Clip(1, torch.inf), beta=1, kl_penalty="abs", aggregation="token-mean")
    return bandpo.policy_loss(logps, old_logps, advantages, mask, objective, ref_logps=ref_logps)


def dro(logps, old_logps, advantages, mask, beta=0.3):
    """DRO, 2405.19107, as verl has it: log pi times A, and a quadratic penalty; beta is yours."""
    objective = bandpo.Objective(bandpo.Clip(0, 0), surrogate="weight", beta=beta, kl_penalty="k2")
    return bandpo.policy_loss(logps, old_logps, advantages, mask, objective, ref_logps=old_logps)


def main():
    """Print each loss of one made batch."""
    torch.manual_seed(0)
    old_logps, mask = (torch.rand(8, 10) * 0.9 + 0.02).log(), torch.rand(8, 10) < 0.9
    logps, rollout_logps = (old_logps + torch.randn(2, 8, 10) / 8).clamp(max=-1e-3)
    rewards = torch.tensor([1.0, 0, 0, 1, 0, 1, 0, 0])
    advantages = bandpo.group_advantages(rewards, 4)
    logps.requires_grad_()
    batch = (logps, old_logps, advantages, mask)
    losses = {
        "A-GRAE": a_grae(logps, old_logps, rewards, mask),
        "FADE": fade(logps, old_logps, rewards, mask),
        "REPO-R": repo_r(*batch),
        "STARE": stare(*batch),
        "WAPO": wapo(logps, rollout_logps, rewards, mask),
        "TRM": of_kept_responses(*batch, trm(logps, rollout_logps, mask)),
        "OPSM": of_kept_responses(*batch, opsm(logps, rollout_logps, advantages, mask)),
        "KL-Cov": kl_cov(*batch),
        "DRO": dro(*batch),
    }
    for name, (loss, _) in losses.items():
        loss.backward(retain_graph=True)
        print(f"{name:8}{loss.item():9.4f}")


if __name__ == "__main__":
    main()
