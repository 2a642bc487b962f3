"""transformers: checkpoint folders of the Trainer, and models of save_pretrained in several files.

    python -m tests.dialects.writers.transformers OUT VARIANT

Runs on version 5, and on version 4, which still writes .bin, where that one comes first on the path.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils.data import SequentialSampler
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

from tests.dialects.training import AFTER, BEFORE, SIZE, Net, Tied, batch, keep, on_cpu, outcome, seed

VERSION_4 = transformers.__version__.startswith("4.")


class TiedConfig(PretrainedConfig):
    model_type = "tied_words"
    tie_word_embeddings = True


class TiedModel(PreTrainedModel):
    """The model `Tied` as one of transformers' own."""

    config_class = TiedConfig
    _tied_weights_keys = ["out.weight"] if VERSION_4 else {"out.weight": "embed.weight"}

    def __init__(self, config: TiedConfig) -> None:
        super().__init__(config)
        for name, child in Tied().named_children():
            setattr(self, name, child)
        self.post_init()

    forward = Tied.forward

    def get_input_embeddings(self) -> Any:
        return self.embed

    def get_output_embeddings(self) -> Any:
        return self.out


class Recorder(Trainer):
    """A Trainer that takes the words in order and notes the loss of each step."""

    losses: list[float]

    def _get_train_sampler(self, *args: Any) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)
        self.losses.append(loss.item())
        return loss


class Rates(TrainerCallback):
    """Notes the learning rate of each step."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])


def trained(folder: Path, model: torch.nn.Module, **options: Any) -> None:
    """Let the Trainer train to the end; it leaves a checkpoint on the way."""
    words = [batch(step) for step in range(BEFORE + AFTER)]
    items = [{"input_ids": w["input_ids"][i], "labels": w["labels"][i]} for w in words for i in range(SIZE)]
    arguments = TrainingArguments(
        output_dir=str(folder / "run"),
        per_device_train_batch_size=SIZE,
        max_steps=BEFORE + AFTER,
        save_steps=BEFORE,
        save_strategy="steps",
        learning_rate=0.01,
        weight_decay=0.1,
        warmup_steps=2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        seed=7,
        **options,
    )
    rates = Rates()
    trainer = Recorder(model=model, args=arguments, train_dataset=items, callbacks=[rates])
    trainer.losses = []
    trainer.train()
    optimizer = trainer.optimizer
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    keep(folder, outcome(model, optimizer, losses=trainer.losses, rates=rates.rates, rng=True))


def sharded(folder: Path, **options: Any) -> None:
    """A model in several files, with their index."""
    seed(2)
    model = TiedModel(TiedConfig())
    model.save_pretrained(str(folder / "model"), max_shard_size=300, **options)
    keep(folder, {"model": [on_cpu(dict(model.state_dict()))]})


def main(folder: Path, variant: str) -> None:
    seed(1)
    form: dict[str, Any] = {"save_safetensors": False} if variant.startswith("bin") else {}
    if variant.endswith("sharded"):
        sharded(folder, **({"safe_serialization": False} if form else {}))
    else:
        kind = {} if variant == "safetensors" else {"optim": "adamw_torch"}  # which is fused where nothing is said
        trained(folder, TiedModel(TiedConfig()) if variant == "tied" else Net(), **form, **kind)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
