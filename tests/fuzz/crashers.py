"""Inputs that broke a reader once, as small as they could be made: what each is, how it is looked at, and its bytes."""

from __future__ import annotations

import json
import re
from struct import pack

from tests.describe.sparse_zip import number, state_dict_pickle, text
from tests.fuzz.choices import Files
from tests.fuzz.pickling import doubled, named
from tests.fuzz.zipping import Member, written

__all__ = ["CRASHERS"]


def framed(body: bytes, nbytes: int) -> bytes:
    """A pickle whose frame claims to be of `nbytes` bytes."""
    return b"\x80\x04\x95" + pack("<Q", nbytes) + body


def checkpoint(pickle: bytes, *others: Member) -> Files:
    return {"": written([Member(b"a/data.pkl", pickle), *others])}


def tensors(header: object) -> Files:
    raw = json.dumps(header).encode()
    return {"": len(raw).to_bytes(8, "little") + raw}


def wide_below(levels: int, width: int) -> bytes:
    """Lists in lists, the innermost of which holds very many values."""
    return b"]" * levels + b"(" + b"N" * width + b"e" + b"a" * (levels - 1)


def rebuilt_between() -> bytes:
    """Tensors that are pickled alike; one is given another storage, offset and shape after it was made."""
    whole = state_dict_pickle([f"w{i}" for i in range(90)], (2, 2))
    begin = state_dict_pickle([f"w{i}" for i in range(60)], (2, 2)).removesuffix(b"u.")
    pid = b"(" + text("storage") + named("torch", "FloatStorage") + text("1") + text("cpu") + number(4) + b"tQ"
    state = b"(" + pid + number(1) + number(3) + b"\x85" + number(1) + b"\x85t"
    learned = re.findall(rb"tr....Rr(....)", begin, re.DOTALL)[1]  # the first whose numbers all have four bytes
    return begin + b"j" + learned + state + b"b0" + whole[len(begin) :]


def metadata(**fields: bytes) -> Files:
    """The `.metadata` of a folder without entries, whose fields are as given."""
    fields = {"state_dict_metadata": b"}", "storage_data": b"}", "planner_data": b"}", **fields}
    state = b"".join(text(name) + value for name, value in fields.items())
    return {".metadata": b"\x80\x02" + _of("Metadata", state) + b"."}


def _of(name: str, state: bytes) -> bytes:
    return named("torch.distributed.checkpoint.metadata", name) + b")\x81}(" + state + b"ub"


def placed(index: bytes, info: bytes) -> Files:
    return metadata(storage_data=b"}(" + _of("MetadataIndex", index) + _of("_StorageInfo", info) + b"u")


def deep(levels: int) -> bytes:
    return b"]" * levels + b"a" * (levels - 1)


def zero(state: bytes) -> Files:
    """Two files of DeepSpeed, whose optimizer's state is as given."""
    model = b"\x80\x02}(" + text("module") + b"}" + text("param_shapes") + b"](}eu."
    optimizer = b"\x80\x02}" + text("optimizer_state_dict") + b"}(" + state + b"us."
    return {
        "global_step1/mp_rank_00_model_states.pt": checkpoint(model)[""],
        "global_step1/zero_pp_rank_0_mp_rank_00_optim_states.pt": checkpoint(optimizer)[""],
        "latest": b"global_step1",
    }


def ranked(state: bytes) -> bytes:
    """What a rank of FSDP1 saved of an optimizer."""
    return (
        b"\x80\x02}("
        + text("state")
        + b"}(K\x00}("
        + state
        + b"uu"
        + text("param_groups")
        + b"](}"
        + text("params")
        + b"](K\x00eseu."
    )


INFO = text("relative_path") + text("a") + text("offset") + b"K\x00" + text("length") + b"K\x00"

CRASHERS: dict[str, tuple[str, Files]] = {
    "an escape of which Python warns": ("pickle", {"": b"S'\\q'\n."}),
    "an octal escape of which Python warns": ("pickle", {"": b"S'\\777'\n."}),
    "a number that Python's unpickler reads as octal": ("pickle", {"": b"I010\n."}),
    "a name over the end of a frame, of which the unpickler takes another part": (
        "pickle", {"": framed(b"cposix\nhidsystem\n.", 10)}),
    "a pickle that ends before its frame does": ("pickle", {"": framed(b"N.cos\nsystem\n", 13)}),
    "a frame within a frame": ("pickle", {"": framed(b"\x95" + bytes(8) + b"N.", 11)}),
    "a tensor that is made another between two that are pickled like it": ("pickle", {"": rebuilt_between()}),
    "lists that double sixty times": ("zip", checkpoint(b"\x80\x02}" + text("a") + doubled(60) + b"s.")),
    "very many values very deep": ("zip", checkpoint(b"\x80\x02}" + text("a") + wide_below(900, 60_000) + b"s.")),
    "an escape sequence in the name of a record": (
        "zip", checkpoint(b"\x80\x02}.", Member(b"a/x\x1b[2J", b"x" * 40, method=8))),
    "a dtype that is a list": ("safetensors", tensors({"w": {"dtype": [], "shape": [0], "data_offsets": [0, 0]}})),
    "half of a surrogate pair as a name": (
        "safetensors", tensors({"\ud800": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}})),
    "sizes whose strides take gibibytes": (
        "safetensors", tensors({"w": {"dtype": "U8", "shape": [0] + [1 << 62] * 20_000, "data_offsets": [0, 0]}})),
    "an optimizer that counted infinitely many steps": (
        "zip", checkpoint(
            b"\x80\x02}(" + text("param_groups") + b"](}" + text("params") + b"]K\x00ase" + text("state")
            + b"}K\x00}" + text("step") + b"G\x7f\xf0" + bytes(6) + b"ssu.")),
    "a version that doubles sixty times": ("dcp", metadata(version=doubled(60))),
    "a version nested very deep": ("dcp", metadata(version=deep(5000))),
    "a save that is named by depth": ("dcp", metadata(storage_meta=_of("StorageMeta", text("save_id") + deep(5000)))),
    "a tensor that is named by depth": ("dcp", placed(text("fqn") + deep(5000), INFO)),
    "a tensor that is named by doubling": ("dcp", placed(text("fqn") + doubled(60), INFO)),
    "transforms that are a number": ("dcp", placed(text("fqn") + text("w"),
    INFO + text("transform_descriptors") + b"K\x05")),
    "transforms nested very deep": (
        "dcp", placed(text("fqn") + text("w"), INFO + text("transform_descriptors") + b"](" + deep(5000) + b"e")),
    "a stage of ZeRO nested very deep": ("deepspeed", zero(text("zero_stage") + deep(5000))),
    "a stage of ZeRO that doubles": ("deepspeed", zero(text("zero_stage") + doubled(60))),
    "states of two ranks that are compared in depth": ("fsdp", {
        f"state_rank{rank}.pt": checkpoint(ranked(text("step") + deep(5000)))[""] for rank in range(2)}),
    "states of two ranks that double": ("fsdp", {
        f"state_rank{rank}.pt": checkpoint(ranked(text("step") + doubled(40)))[""] for rank in range(2)}),
}  # fmt: skip
"""What it is -> the target that it broke, and the input."""
