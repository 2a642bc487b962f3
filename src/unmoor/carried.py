"""What a run wraps so that it can be carried: state that PyTorch keeps where no state_dict reaches it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.data import DataLoader

    from .live.gradients import Gradients
    from .live.loaders import ResumableLoader

__all__ = ["gradients", "resumable"]


def gradients(module: nn.Module) -> Gradients:
    """Give the gradients of a module a state, for a checkpoint in the middle of an accumulation.

    Pass the same to save and to restore, under a keyword of your own. Restoring sets the gradient of every parameter
    on its device, or takes it away where none was saved.

    Raises UsageError for anything but a torch.nn.Module.

    >>> unmoor.save(path, model=model, optimizer=optimizer, gradients=unmoor.gradients(model))  # doctest: +SKIP
    """
    from .live.gradients import gradients as made

    return made(module)


def resumable(loader: DataLoader[Any], *, skip: Literal["order", "data"] = "order") -> ResumableLoader:
    """Give a torch DataLoader a position that can be saved: `loader = unmoor.resumable(DataLoader(...))`.

    Iterate over what this returns, and pass it as loader= to save and restore. After a restore in the middle of an
    epoch the next iteration gives the very batches that were left, and later epochs are those of the uninterrupted
    run, as are all random draws. A loop that is left early counts as interrupted, until the next one begins.

    loader: any torch.utils.data.DataLoader: shuffled or not, with a sampler or batch sampler of your own, with workers.
        Generators that it, its samplers and its dataset hold are saved with it.
    skip: how the batches that were done are passed over. "order" draws their indices and loads nothing. "data" loads
        and drops them, so that random augmentation inside of worker processes goes on where it was too. Iterable
        datasets have no indices: their data is always drawn and dropped.

    On another number of ranks the position is that of all ranks together, and what is left of the epoch is dealt out to
    those there are now, for samplers whose order is known: see position= of restore.

    Raises UsageError for anything else than a DataLoader; a loader with state_dict needs none of this. restore raises
    MismatchError for another dataset, seed or order; the iteration does where the batches that were done are not those
    that come again: a sampler that gives others, or whose random stream the training draws from too.

    >>> loader = unmoor.resumable(DataLoader(data, batch_size=8, shuffle=True))  # doctest: +SKIP
    >>> unmoor.save("run/step_1000.pt", model=model, loader=loader)  # doctest: +SKIP
    """
    from .live.loaders import resumable as made

    return made(loader, skip=skip)
