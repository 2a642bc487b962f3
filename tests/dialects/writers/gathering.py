"""What a run on several ranks came to, gathered from all of them; for the writers that shard their parameters."""

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

from tests.dialects.training import Run, outcome, unbuffered


def whole(run: Run, *, losses: list[float], rates: list[float]) -> dict[str, object]:
    """What the run came to, gathered from all ranks."""
    options = StateDictOptions(full_state_dict=True)
    model, state = get_state_dict(run.model, run.optimizer, options=options)
    plain = unbuffered()
    plain.load_state_dict(model)
    names = dict(plain.named_parameters())
    kinds = ("lr", "betas", "weight_decay")
    groups = [{"params": [names[n] for n in g["params"]], **{k: g[k] for k in kinds}} for g in state["param_groups"]]
    optimizer = torch.optim.AdamW(groups)
    for name, values in state["state"].items():
        optimizer.state[names[name]] = values
    return outcome(plain, optimizer, losses=losses, rates=rates, rng=False)
