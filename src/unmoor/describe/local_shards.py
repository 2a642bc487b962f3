"""What one rank's file holds of a tensor that torch spreads over ranks: the local shards of a pickled ShardedTensor.

Mirrors ShardedTensor.__getstate__ of torch.distributed._shard: (local shards, metadata, process group, ...).
"""

from __future__ import annotations

from typing import Any, Final

from unmoor.values.nodes import Opaque, TensorNode

__all__ = ["SHARDED_TENSOR", "SHARD_CLASSES", "local_shards"]

SHARDED_TENSOR: Final = "torch.distributed._shard.sharded_tensor.api.ShardedTensor"
"""The class of a tensor that is spread over ranks; FSDP1 makes them of its FlatParameters."""

SHARD_CLASSES: Final = frozenset({
    SHARDED_TENSOR,
    "torch.distributed._shard.metadata.ShardMetadata",
    "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
    "torch.distributed._shard.sharded_tensor.metadata.ShardedTensorMetadata",
    "torch.distributed._shard.sharded_tensor.metadata.TensorProperties",
    "torch.distributed._shard.sharded_tensor.shard.Shard",
    "torch.distributed._shard.sharding_spec.chunk_sharding_spec.ChunkShardingSpec",
    "torch.distributed._shard.sharding_spec.api.EnumerableShardingSpec",
    "torch.distributed.remote_device._remote_device",
})  # fmt: skip
"""The classes that are pickled with one: they say where the shards of all ranks lie."""


def local_shards(state: Any) -> dict[tuple[int, ...], TensorNode]:
    """Where in the whole tensor each local shard begins -> its values; empty for a rank that holds none."""
    shards = state[0] if type(state) is tuple and state and type(state[0]) is list else []
    found: dict[tuple[int, ...], TensorNode] = {}
    for shard in shards:
        fields = _fields(shard)
        start = _fields(fields.get("metadata")).get("shard_offsets")
        if type(fields.get("tensor")) is TensorNode and type(start) is list and all(type(n) is int for n in start):
            found[tuple(start)] = fields["tensor"]
    return found


def _fields(value: Any) -> dict[Any, Any]:
    """The attributes of a pickled object, which classes with slots pickle as (None, attributes)."""
    state = value.state if type(value) is Opaque else None
    if type(state) is tuple and len(state) == 2 and state[0] is None:
        state = state[1]
    return state if type(state) is dict else {}
