"""Turn the training run's checkpoints into the four model directories that transformers loads."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import GenerationConfig, PreTrainedConfig

from llama import config_of
from train import DRAFT, TARGET

HERE = Path(__file__).parent


def write_model(directory: Path, config: PreTrainedConfig, weights: dict[str, Tensor], tokenizer: Path) -> None:
    """Replace `directory` by a bfloat16 checkpoint with the tokenizer files found in `tokenizer`."""
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".writing-") as scratch:
        new = Path(scratch) / directory.name
        new.mkdir()
        config.save_pretrained(new)
        GenerationConfig(bos_token_id=0, eos_token_id=0, pad_token_id=0, do_sample=False).save_pretrained(new)
        tensors = {name: value.to(torch.bfloat16).contiguous() for name, value in weights.items()}
        save_file(tensors, new / "model.safetensors", metadata={"format": "pt"})
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(tokenizer / name, new / name)
        (new / "model.safetensors").chmod(0o644)
        new.chmod(0o755)
        if directory.exists():
            directory.rename(Path(scratch) / "old")
        new.rename(directory)


def _config(shape: dict[str, int], weights: dict[str, Tensor]) -> PreTrainedConfig:
    return config_of(**shape, vocabulary=len(weights["model.embed_tokens.weight"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="train.py's --out")
    parser.add_argument("--into", type=Path, default=HERE)
    parser.add_argument("--early", default="0-98", help="which of the draft snapshots is the worse draft: phase-share")
    parser.add_argument("--draft-only", action="store_true", help="after train.py --distill-on: leave the others alone")
    options = parser.parse_args()
    state = torch.load(options.run / "state-0.pt", weights_only=False)
    drafts = {"draft": state["draft"]}
    if not options.draft_only:
        drafts["draft-early"] = torch.load(options.run / f"draft-{options.early}.pt")
        drafts["draft-untrained"] = torch.load(options.run / "draft-untrained.pt")
        write_model(options.into / "target", _config(TARGET, state["target"]), state["target"], options.run)
    for name, weights in drafts.items():
        write_model(options.into / name, _config(DRAFT, weights), weights, options.run)
    print(f"written at {state['at']}")


if __name__ == "__main__":
    main()
