"""A step of a data-parallel loop with micro-batches of packed rows: python examples/data_parallel.py

Under torchrun write `dist.init_process_group()`. The losses of all micro-batches and ranks add up to that of the whole
padded batch, which the last lines check.
"""

import torch
import torch.distributed as dist

import bandpo
from bandpo import token_logps

torch.manual_seed(0)
body, head = torch.nn.Linear(64, 64), torch.nn.Linear(64, 20, bias=False)
optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=0.01)
x, tokens, mask = torch.randn(8, 10, 64), torch.randint(20, (8, 10)), torch.rand(8, 10) < 0.9
rewards = torch.tensor([1.0, 0, 0, 1, 0, 1, 0, 0])
advantages = bandpo.group_advantages(rewards, group_size=4)


def current():  # log pi of the sampled tokens, (8, 10)
    return token_logps(body(x), head.weight, tokens)


# Stand for those of before the first step on this batch.
old_logps = (current().detach() + torch.randn(8, 10)).clamp(max=-1e-3)
region = bandpo.Band("kl", 0.05)

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # torchrun: init_process_group()
mine = torch.arange(8).tensor_split(dist.get_world_size())[dist.get_rank()]  # the responses of this rank
normalizer = mask[mine].any(-1).sum()
dist.all_reduce(normalizer)
optimizer.zero_grad()
losses, total = [], None
for part in mine.tensor_split(2):
    real = mask[part]  # the tokens of one packed row
    ids, packed = part[:, None].expand_as(real)[real], (x[part][real], tokens[part][real], old_logps[part][real])
    logps = token_logps(body(packed[0]), head.weight, packed[1])
    inside, new, old = bandpo.losses.unpack(ids, torch.ones_like(ids), logps, packed[2])
    loss, more = bandpo.policy_loss(new, old, advantages[part], inside, region, normalizer=normalizer)
    (loss * dist.get_world_size()).backward()  # DDP and FSDP take the mean over ranks
    total = more if total is None else total.merge(more)
    losses.append(loss.detach())
whole = torch.stack(losses).sum()
dist.all_reduce(whole)
torch.testing.assert_close(whole, bandpo.policy_loss(current(), old_logps, advantages, mask, region)[0].detach())
optimizer.step()
total = total.all_reduce()
dist.destroy_process_group()
print(total.compute()["clip/fraction"])
