"""What is wrong with where a model is: tensors left behind, tensors without data, wrappers that feed another device."""

from __future__ import annotations

from collections.abc import Iterator

from unmoor.values.finding import Finding
from unmoor.values.run_facts import ModelFacts, RunFacts, TensorFact
from unmoor.values.text import count, listing

from .places import full_name, home_of, others, placed
from .run_tree import Tree, registered

__all__ = ["module_findings"]


def module_findings(facts: RunFacts) -> Iterator[Finding]:
    """All findings about the modules of a run, whatever they meet."""
    for model in facts.models:
        home = home_of(model)
        yield from _meta(model, home)
        yield from _lazy(model)
        if home:
            yield from _wrappers(model, home)
            yield from _left_behind(model, home)
            yield from _attributes(model, home)
            yield from _unregistered(model, home)
            yield from _other_rank(model, home, facts)
        yield from _untied(model)
    yield from _nothing_to_train(facts)
    for place, device in facts.bad:
        text = f"numbers that are not finite, on {device}: the loss becomes NaN, and with it all that is trained"
        yield Finding("not-finite", "error", place, text, "unmoor.restore(path, ...)  # a checkpoint before it broke")


def _meta(model: ModelFacts, home: str) -> Iterator[Finding]:
    if any(module.hooked for module in model.modules):
        return  # accelerate keeps what it has offloaded on the meta device, and brings it back for each forward
    names = [
        full_name(model.label, module.name, tensor.name)
        for module in model.modules
        for tensor in module.tensors
        if tensor.device == "meta" and tensor.kind in ("parameter", "buffer")
    ]
    if names:
        text = "on the meta device, without data: nothing can be computed"
        goal = repr(home or "auto")
        remedy = f"unmoor.restore(path, {model.at}={model.at}, model_device={goal})  # gives memory and fills it"
        yield Finding("meta-tensors", "error", others(names), text, remedy)


def _lazy(model: ModelFacts) -> Iterator[Finding]:
    names = [
        full_name(model.label, module.name, tensor.name)
        for module in model.modules
        for tensor in module.tensors
        if tensor.lazy
    ]
    if names:
        text = "no shape before the first forward pass, so nothing more can be told of it"
        yield Finding("lazy-parameters", "info", others(names), text)


def _wrappers(model: ModelFacts, home: str) -> Iterator[Finding]:
    for wrapper in model.wrappers:
        elsewhere = [t for t in model.tensors("parameter", "buffer") if t.device not in (wrapper.source, "meta")]
        if wrapper.class_name == "DataParallel" and elsewhere:
            text = (
                f"DataParallel takes parameters and buffers from {wrapper.source}, which its device_ids begin with; "
                f"{_are(elsewhere)} on {listing(sorted({t.device for t in elsewhere}))}"
            )
            yield Finding("data-parallel-source", "error", model.label, text, f'{model.at}.to("{wrapper.source}")')
        elif wrapper.source and wrapper.class_name != "DataParallel" and wrapper.source != home:
            text = (
                f"{wrapper.class_name} brings inputs to {wrapper.source} (device_ids={list(wrapper.device_ids)}), "
                f"and the parameters are on {home}"
            )
            yield Finding("wrapper-device", "error", model.label, text, f'{model.at}.to("{wrapper.source}")')
        elif wrapper.built and wrapper.built != home:
            text = f"{wrapper.class_name} was put around it on {wrapper.built}, and it is on {home} now"
            remedy = f"{model.at} = torch.nn.parallel.{wrapper.class_name}({model.at}.module)  # after model.to(...)"
            yield Finding("wrapper-device", "warning", model.label, text, remedy)


def _are(tensors: list[TensorFact]) -> str:
    return f"{count(len(tensors), 'tensor')} {'is' if len(tensors) == 1 else 'are'}"


def _left_behind(model: ModelFacts, home: str) -> Iterator[Finding]:
    """Parameters and buffers that meet others on another device, by the module in which they meet."""
    if any(wrapper.class_name == "DataParallel" and wrapper.source for wrapper in model.wrappers):
        return
    tree = Tree(model)
    devices = tree.devices()
    if len(devices) < 2:
        return
    if any(module.hooked for module in model.modules):
        yield _split(model, devices, "hooks of accelerate bring each part its inputs")
        return
    by_hand: list[str] = []
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for module in model.modules:
        for tensor in registered(module):
            if tensor.device == home:
                continue
            meeting = tree.meeting(module.name, tensor.device)
            if meeting.moves:
                by_hand.append(meeting.class_name)
                continue
            severity = "warning" if meeting.opaque else "error"
            key = (meeting.name, tensor.kind, tensor.device, severity)
            groups.setdefault(key, []).append(full_name(model.label, module.name, tensor.name))
    for (name, kind, device, severity), names in groups.items():
        where = f"{full_name(model.label, name)} ({tree.modules[name].class_name})"
        rest = listing(sorted(tree.devices(name) - {device}))
        text = f"on {device}; {where}, where {'it meets' if len(names) == 1 else 'they meet'} others, is on {rest}"
        code = "buffer-elsewhere" if kind == "buffer" else "parameters-elsewhere"
        yield Finding(code, severity, others(names), text, f'{model.at}.to("{home}")')
    if by_hand and not groups:
        yield _split(model, devices, f"the forward of {by_hand[0]} moves tensors between them")


def _split(model: ModelFacts, devices: set[str], how: str) -> Finding:
    return Finding("split-model", "info", model.label, f"on {', '.join(sorted(devices))}: {how}")


def _attributes(model: ModelFacts, home: str) -> Iterator[Finding]:
    """Tensors that are attributes and no buffers, elsewhere than the module that holds them."""
    tree = Tree(model)
    for module in model.modules:
        around = tree.devices(module.name) or tree.devices()
        goal = home if home in around else sorted(around)[0] if around else home
        for tensor in placed(t for t in module.tensors if t.kind == "attribute"):
            if tensor.device in around or tensor.grade == "idle" or (model.brings and not around):
                continue
            text = f"a plain attribute on {tensor.device}, its module is on {goal}"
            severity = "error" if tensor.grade == "used" else "info"
            if severity == "error" and tensor.dtype.startswith("int") and tensor.device == "cpu":
                severity = "warning"  # an index on the CPU is taken; only some operators refuse it
            if severity == "info":
                text += f"; the forward of {module.class_name} moves tensors, maybe this one too"
            else:
                text += f": .to() does not move it, register_buffer({tensor.name!r}, ...) makes it move"
            place = full_name(model.label, module.name, tensor.name)
            remedy = f'{tensor.at} = {tensor.at}.to("{goal}")'
            yield Finding("attribute-elsewhere", severity, place, text, remedy if severity != "info" else "")


def _unregistered(model: ModelFacts, home: str) -> Iterator[Finding]:
    """Modules in plain lists and dicts that stayed behind when the model was moved; one finding for each list."""
    held: dict[tuple[str, str], list[str]] = {}
    for module in model.modules:
        for tensor in placed(t for t in module.tensors if t.kind == "unregistered" and t.grade == "used"):
            if tensor.device != home:
                place = full_name(model.label, module.name, tensor.name)
                held.setdefault((tensor.at, tensor.device), []).append(place)
    for (at, device), places in held.items():
        kind = "ModuleDict" if "['" in places[0] else "ModuleList"
        text = (
            f"on {device}, the model is on {home}: modules in a plain {'dict' if kind == 'ModuleDict' else 'list'} are "
            "none of the model's, so neither .to() nor .parameters() reaches them"
        )
        line = f'{at} = torch.nn.{kind}({at}).to("{home}")  # where it is made, before the optimizer'
        yield Finding("attribute-elsewhere", "error", others(places), text, line)


def _other_rank(model: ModelFacts, home: str, facts: RunFacts) -> Iterator[Finding]:
    rank = facts.others.get(home)
    if rank is not None and not model.brings:
        text = f"on {home}, the device of local rank {rank}: two processes share it, and one device is idle"
        remedy = f"{model.at}.to(unmoor.device_fallback())"
        yield Finding("device-of-another-rank", "warning", model.label, text, remedy)


def _untied(model: ModelFacts) -> Iterator[Finding]:
    for one, other in model.untied:
        text = f"the model says that it is {other}, and they are two tensors now: each is trained for itself"
        remedy = f"{model.at}.tie_weights()"
        yield Finding("weights-untied", "warning", full_name(model.label, one), text, remedy)


def _nothing_to_train(facts: RunFacts) -> Iterator[Finding]:
    leaves = facts.batch.leaves if facts.batch is not None else ()
    parameters = [t for model in facts.models for t in model.tensors("parameter")]
    trained = [t for loss in facts.losses for t in loss.tensors if t.trains]
    if parameters and not any(t.trains for t in parameters) and not trained:
        if any(leaf.tensor.trains for leaf in leaves):
            return
        model = facts.models[0]
        text = f"none of {count(len(parameters), 'parameter')} requires a gradient: backward() has nothing to do"
        yield Finding("nothing-to-train", "error", model.label, text, f"{model.at}.requires_grad_(True)")
