"""accelerate's BatchSamplerShard in worlds of one process: run by the interpreter that has accelerate.

python -m tests.worlds.shards

Prints, as JSON, the number of worlds that were tried and those whose samples were not the ones that were left.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from typing import Any

from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

import unmoor

from .epochs import batches, carry, flat, stop

SIZE = 48


def loaders(ranks: int, batch: int, *, split: bool, shuffle: bool, stateful: bool = False) -> list[Any]:
    """A batch sampler shared among ranks by batch, or by parts of each batch of `batch` samples a rank."""
    made = []
    for rank in range(ranks):
        sampler: Any = SeedableRandomSampler(range(SIZE), data_seed=3) if shuffle else SequentialSampler(range(SIZE))
        if shuffle:
            sampler.set_epoch(4)
        whole = BatchSampler(sampler, batch * ranks if split else batch, False)
        shard = BatchSamplerShard(whole, ranks, rank, split_batches=split)
        made.append(_stateful(shard) if stateful else unmoor.resumable(DataLoader(range(SIZE), batch_sampler=shard)))
    return made


def _stateful(shard: Any) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(range(SIZE), batch_sampler=shard)


def main() -> int:
    """Every pair of worlds, each way to share, both orders."""
    wrong, tried, refused = [], 0, 0
    for saved, live, split, now, shuffle, number, stateful in itertools.product(
        (1, 2, 3, 4), (1, 2, 3, 4), (True, False), (True, False), (True, False), (2,), (True, False)
    ):
        whole = [flat(batch) for batch in batches(loaders(1, 1, split=False, shuffle=shuffle)[0])]
        order = flat(whole)
        given, states = stop(loaders(saved, 3, split=split, shuffle=shuffle, stateful=stateful), number)
        again = loaders(live, 2, split=now, shuffle=shuffle, stateful=stateful)
        plans = carry(states, again)
        done = saved * 3 * number
        tried += 1
        if any(plan.faults for plan in plans):
            refused += 1
            if not stateful or done % (2 * live) == 0:
                wrong.append([saved, live, split, now, shuffle, number, plans[0].faults[0].message])
            continue
        rest = Counter(flat([batches(loader) for loader in again]))
        exact = rest == Counter(order[done:]) if (SIZE - done) % (2 * live) == 0 else set(rest) >= set(order[done:])
        if Counter(flat(given)) != Counter(order[:done]) or not exact:
            wrong.append([saved, live, split, now, shuffle, number, sorted(rest.elements())])
    sys.stdout.write(json.dumps({"tried": tried, "refused": refused, "wrong": wrong}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
