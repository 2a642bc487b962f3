"""What is left out of a checkpoint is found and named, one component at a time."""

from __future__ import annotations

import pytest

from .in_process import proved

# keyword left out -> component that differs first, cause
KEYWORDS = {
    "optimizer": ("optimizer", "the optimizer is not in the checkpoint"),
    "scheduler": ("scheduler", "the scheduler is not in the checkpoint"),
    "loss": ("loss function", "the loss function's state is not in the checkpoint"),
    "metrics": ("metrics", "the metrics' state is not in the checkpoint"),
    "ema": ("ema", "the EMA is not in the checkpoint"),
    "rng": ("rng torch", "torch RNG: not in the checkpoint"),
    "loader": ("data order", "the loader's position is not in the checkpoint"),
}

# a way of saving by hand, with one fault -> component, name of the thing, cause, fix
BY_HAND = {
    "buffer": ("save_without_buffer", "resume_all", "buffers", "1.running_mean is not in the checkpoint", "model"),
    "torch": ("save_without_torch", "resume_all", "rng torch", "torch RNG: not in the checkpoint", "get_rng_state"),
    "numpy": ("save_without_numpy", "resume_all", "rng numpy", "numpy RNG: not in the checkpoint", "numpy.random"),
    "python": ("save_without_python", "resume_all", "rng python", "python RNG: not in the checkpoint", "getstate"),
    "noise": ("save_without_noise", "resume_all", "rng noise", "generator 'noise': not in the checkpoint", "noise"),
    "optimizer": (
        "save_without_optimizer",
        "resume_all",
        "optimizer",
        "the optimizer is not in the checkpoint",
        "Save optimizer.state_dict()",
    ),
    "learning rate": (
        "save_all",
        "resume_with_live_lr",
        "options",
        "after the resume function options lr is not as it was",
        "Load it after everything else",
    ),
    "not loaded": (
        "save_all",
        "resume_forgetting_optimizer",
        "optimizer",
        "the checkpoint holds the optimizer, and after the resume function step of 0.weight is not as it was",
        "optimizer.load_state_dict",
    ),
    "mode": ("save_all", "resume_in_eval", "loss", "model is in eval mode after the restore", "model.train()"),
    "save": ("save_changing", "resume_all", "rng torch", "saving changes the run", "leave it as it is"),
}

# a run that keeps state where no save reaches it -> steps, cut, component, cause, fix
HIDDEN = {
    "position": (
        ("in_order", 9, 5),
        "data order",
        "the batch of step 6 is that of step 1 again",
        "unmoor.resumable(loader)",
    ),
    "shuffled position": (
        ("plain", 9, 5),
        "data order",
        "nor is the generator loader.generator",
        "unmoor.resumable(loader)",
    ),
    "sampler's generator": (
        ("plain", 12, 8),
        "data order",
        "the sampler's generator (loader.generator) is not in the checkpoint",
        'rng={"sampler": loader.generator}',
    ),
    "dataset's generator": (
        ("augmented", 12, 8),
        "data order",
        "the generator loader.dataset.noise is not in the checkpoint",
        "loader.dataset.noise",
    ),
    "unseeded data": (
        ("unseeded_data", 9, 5),
        "data order",
        "the same samples have other values",
        "Seed the data inside of the build function",
    ),
    "counter": (
        ("counting", 9, 5),
        "loss",
        "train_step's count is 0 after the restore and was 5",
        'report.extra["count"]',
    ),
    **{
        f"train_step's {what}": (
            (f"forgotten_{what}", 9, 5),
            component,
            f"train_step's {variable} has a state, and is none of the objects that are saved",
            f"{variable.split()[0]!r}: {variable.split()[0]}",
        )
        for what, component, variable in (
            ("module", "loss", "head (Linear)"),
            ("optimizer", "head", "second (Adam)"),
            ("scheduler", "options", "schedule (StepLR)"),
        )
    },
    "workers of the loader": (
        ("noisy_workers", 6, 3),
        "data order",
        "it draws in the workers of its loader, whose random streams begin anew",
        "num_workers=0",
    ),
    "a list of batches": (
        ("batches", 9, 5),
        "data order",
        "the loader's position is not in the checkpoint",
        "unmoor.resumable(loader)",
    ),
    "an optimizer within an optimizer": (
        ("two_steps", 9, 5),
        "parameters",
        "optimizer.base has state of its own, which the state dict of optimizer leaves out",
        'optimizer={"outer": optimizer, "base": optimizer.base}',
    ),
    "accumulation": (
        ("accumulating", 9, 5),
        "parameters",
        "gradients that were accumulated before the cut are not in the checkpoint",
        "unmoor.gradients(model)",
    ),
}


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_a_keyword_that_is_left_out_is_named(keyword):
    """Without one keyword of save the proof names that component, and says to pass it."""
    component, cause = KEYWORDS[keyword]
    proof = proved("build", omit=(keyword,))
    assert not proof.ok
    assert (proof.verdict, proof.difference.component) == ("different", component)
    assert cause in proof.cause
    assert keyword in proof.fix
    assert cause in " ".join(str(proof).split())


def test_a_scaler_that_is_left_out_is_named():
    """The scale of a GradScaler that had grown is not there after the restore."""
    proof = proved("scaled", omit=("scaler",))
    found = proof.difference
    assert (found.component, found.name, found.resumed, found.uninterrupted) == ("scaler", "scale", "8.0", "32.0")
    assert "the scaler is not in the checkpoint" in proof.cause


@pytest.mark.parametrize("fault", BY_HAND)
def test_a_fault_of_a_users_own_way_is_named(fault):
    """A run that is saved by hand is judged like any other; what was forgotten is named, with the way by hand."""
    save, resume, component, cause, fix = BY_HAND[fault]
    proof = proved("build", save=save, resume=resume)
    assert (proof.verdict, proof.difference.component) == ("different", component)
    assert cause in proof.cause
    assert fix in proof.fix


def test_the_model_alone_is_no_checkpoint_of_a_run():
    """The classical file of the weights alone: the first omission is named, and all the others beside it."""
    proof = proved("build", save="save_model_alone", resume="resume_all")
    assert proof.difference.component == "optimizer"
    assert dict(proof.notes)["also"].startswith("options, scheduler, loss function, metrics, ema, RNG torch")


@pytest.mark.parametrize("what", HIDDEN)
def test_state_that_no_save_reaches_is_named(what):
    """A loader without a position, a generator, a variable of train_step, gradients: found where they are kept."""
    (build, steps, cut), component, cause, fix = HIDDEN[what]
    proof = proved(build, steps=steps, cut=cut)
    assert (proof.verdict, proof.difference.step, proof.difference.component) == ("different", cut + 1, component)
    assert cause in proof.cause
    assert fix in proof.fix


def test_both_sides_of_the_first_difference_are_shown():
    """The samples of both runs stand side by side."""
    found = proved("in_order").difference
    assert (found.resumed, found.uninterrupted) == ("samples 0, 1, 2, 3, ..", "30, 31, 32, 33, ..")


def test_an_omission_without_effect_says_so():
    """Metrics do not move a parameter: the proof tells both."""
    proof = proved("build", omit=("metrics",))
    assert dict(proof.notes)["effect"] == "none so far: losses and parameters of the 4 steps that followed are equal"
    assert [row.component for row in proof.table if row.verdict == "different"] == ["metrics"]


def test_a_resume_that_raises_is_an_answer():
    """A run that cannot be resumed at all is a proof that is false, with the error and its lines of code."""
    proof = proved("build", save="save_all", resume="resume_raising")
    assert not proof.ok
    assert "the resume function raised KeyError: 'epoch'" in proof.cause
    assert 'raise KeyError("epoch")' in proof.cause
    assert str(proof).startswith("the run DOES NOT RESUME from its checkpoint")


@pytest.mark.parametrize("build", ["restless", "restless_late"])
def test_a_run_that_does_not_repeat_itself_is_said_to_be_so(build):
    """Noise of the run is told from a fault of the checkpoint, before the cut and after it."""
    proof = proved(build)
    assert (proof.ok, proof.verdict) == (False, "undetermined")
    assert "the run itself is not deterministic: two uninterrupted runs differ from step" in proof.cause
    assert (
        "but",
        "the state right after the restore is that at the cut, bit for bit; what follows cannot be judged",
    ) in (proof.notes)


def test_without_a_further_run_the_difference_stands():
    """repeat=False takes no further run; the difference is reported as one whose cause is not known."""
    proof = proved("restless_late", repeat=False)
    assert (proof.verdict, proof.difference.step) == ("different", 6)
    assert proof.cause.startswith("not known")
