"""Let verl 0.7 and 0.8 compute on a CPU. verl imports it by VERL_USE_EXTERNAL_MODULES; verl 0.9 has platforms instead.

No line of a loss or of an update is touched: devices, the backend, four functions of flash-attn, and the list of
engines.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import torch
import torch.nn.functional as F
from einops import rearrange


def _zero(*args, **kwargs):
    return 0


_SIZES = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
for name in ("empty_cache", *_SIZES, "reset_peak_memory_stats", "ipc_collect", "manual_seed", "manual_seed_all"):
    setattr(torch.cpu, name, _zero)
torch.cpu.get_rng_state, torch.cpu.set_rng_state = torch.get_rng_state, torch.set_rng_state
torch.cpu.mem_get_info = lambda *args: (1 << 33, 1 << 34)
torch.cpu.current_device = lambda: torch.device("cpu")
_init = torch.distributed.init_process_group


def _gloo(backend=None, *args, **kwargs):
    return _init("gloo", *args, **{name: value for name, value in kwargs.items() if name != "device_id"})


torch.distributed.init_process_group = _gloo


def _unpad_input(x, mask):
    lengths = mask.sum(-1, dtype=torch.int32)
    indices = mask.flatten().nonzero().flatten()
    ends = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return x.reshape(-1, *x.shape[2:])[indices], indices, ends, int(lengths.max()), lengths


def _pad_input(x, indices, batch, length):
    out = x.new_zeros(batch * length, *x.shape[1:])
    out[indices] = x
    return out.view(batch, length, *x.shape[1:])


_flash_attn, _padding = ModuleType("flash_attn"), ModuleType("flash_attn.bert_padding")
_padding.unpad_input, _padding.pad_input, _padding.rearrange = _unpad_input, _pad_input, rearrange
_padding.index_first_axis = lambda x, indices: x[indices]
_flash_attn.bert_padding, _flash_attn.__version__ = _padding, "2.8.3"
for module in (_flash_attn, _padding):
    module.__spec__ = ModuleSpec(module.__name__, None)
    sys.modules[module.__name__] = module

import verl.workers.engine.fsdp.transformer_impl as fsdp  # noqa: E402
from verl.utils import device  # noqa: E402
from verl.workers.engine.base import EngineRegistry  # noqa: E402

device.get_nccl_backend = lambda: "gloo"
for kinds in EngineRegistry._engines.values():
    for by_device in kinds.values():
        if "cuda" in by_device:
            by_device.setdefault("cpu", by_device["cuda"])
_apply_fsdp2 = fsdp.apply_fsdp2


def _apply(model, *args, **kwargs):
    if isinstance(model._no_split_modules, set):  # of transformers 5; verl 0.7 takes its first one
        model._no_split_modules = sorted(model._no_split_modules)
    return _apply_fsdp2(model, *args, **kwargs)


fsdp.apply_fsdp2 = _apply
