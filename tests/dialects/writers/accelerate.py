"""accelerate: `Accelerator.save_state` folders, as safetensors and as .bin, of one model and of two, and on two ranks.

python -m tests.dialects.writers.accelerate OUT VARIANT
"""

import sys
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import set_seed

from tests.dialects.training import AFTER, BEFORE, Counter, Net, Run, adamw, batch, halving, keep, leave, outcome, seed


def steps(run: Run, accelerator: Accelerator, counter: Counter, number: int) -> None:
    """The loop of a script that uses accelerate."""
    run.model.train()
    for _ in range(number):
        words = batch(run.step, accelerator.process_index)
        loss = run.model(**words)["loss"]
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(run.model.parameters(), 1.0)
        run.rates.append(run.optimizer.param_groups[0]["lr"])
        run.optimizer.step()
        run.scheduler.step()
        run.optimizer.zero_grad()
        counter.words += words["input_ids"].numel()
        run.step += 1
        run.losses.append(loss.item())


def prepared(accelerator: Accelerator, number: int) -> Run:
    seed(number)
    model = Net()
    optimizer = adamw(model)
    return Run(*accelerator.prepare(model, optimizer, halving(optimizer)))


def one(folder: Path, *, safe: bool) -> None:
    accelerator = Accelerator(cpu=True)
    run, counter = prepared(accelerator, 1), Counter()
    accelerator.register_for_checkpointing(counter)
    set_seed(7, device_specific=True)
    steps(run, accelerator, counter, BEFORE)
    accelerator.save_state(str(folder / "state"), safe_serialization=safe)
    steps(run, accelerator, counter, AFTER)
    model, optimizer = accelerator.unwrap_model(run.model), run.optimizer.optimizer
    result = outcome(model, optimizer, losses=run.losses, rates=run.rates, rng=True)
    keep(folder, {**result, "words": counter.words}, accelerator.process_index)
    accelerator.wait_for_everyone()
    accelerator.free_memory()


def two(folder: Path) -> None:
    """Two models, two optimizers and two schedulers in one folder: file names get a number."""
    accelerator = Accelerator(cpu=True)
    runs, counter = [prepared(accelerator, number) for number in (1, 2)], Counter()
    accelerator.register_for_checkpointing(counter)
    set_seed(7)
    for run in runs:
        steps(run, accelerator, counter, BEFORE)
    accelerator.save_state(str(folder / "state"))
    for run in runs:
        steps(run, accelerator, counter, AFTER)
    result = outcome(
        [run.model for run in runs],
        [run.optimizer.optimizer for run in runs],
        losses=runs[1].losses,
        rates=runs[1].rates,
        rng=True,
    )
    keep(folder, {**result, "words": counter.words})
    accelerator.free_memory()


if __name__ == "__main__":
    out, variant = Path(sys.argv[1]), sys.argv[2]
    if variant == "two_models":
        two(out)
    else:
        one(out, safe=variant != "bin")
    leave()
