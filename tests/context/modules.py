"""Modules of PyTorch that are given tensors of another device."""

from __future__ import annotations

import torch
from torch import nn

from .runs import HOME, Run, broken


def _on_home(run: Run, model: nn.Module) -> nn.Module:
    run.model, run.optimizer = model.to(HOME), None
    return run.model


@broken("Embedding got its input on cpu, its weight is on sim:1", "", cpu="tokens")
def embedding(run: Run):
    tokens = torch.tensor([1, 2]).cpu()
    tokens = tokens + 0
    model = _on_home(run, nn.Embedding(4, 3))
    model(tokens)  # fails


@broken("0 (Conv2d) got its input on cpu, its weight is on sim:1", "", cpu="image")
def convolution(run: Run):
    image = run.batch["image"].cpu().reshape(1, 1, 5, 4)
    model = _on_home(run, nn.Sequential(nn.Conv2d(1, 2, 3)))
    model(image)  # fails


@broken("LSTM got its input on cpu, its weight_ih_l0 is on sim:1", "", cpu="words")
def lstm(run: Run):
    words = run.batch["image"].cpu().reshape(5, 1, 4)
    model = _on_home(run, nn.LSTM(4, 3))
    model(words)  # fails


@broken("LSTM got its hx on cpu, its weight_ih_l0 is on sim:1", "", cpu=("hidden[0]", "hidden[1]"))
def lstm_with_its_hidden_state_left(run: Run):
    hidden = (run.batch["image"].cpu()[0, :3].reshape(1, 1, 3), run.batch["image"].cpu()[1, :3].reshape(1, 1, 3))
    model, words = _on_home(run, nn.LSTM(4, 3)), run.batch["image"].reshape(5, 1, 4)
    model(words, hidden)  # fails


@broken("layers.0.self_attn (MultiheadAttention) got its query on cpu", "", cpu="words")
def transformer(run: Run):
    words = run.batch["image"].cpu().reshape(5, 1, 4)
    model = _on_home(run, nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 1, enable_nested_tensor=False))
    model(words)  # fails


@broken("layers.0.self_attn (MultiheadAttention)", "", cpu="mask")
def transformer_with_its_mask_left(run: Run):
    mask = (run.batch["image"] @ run.batch["image"].T).cpu()
    words = run.batch["image"].reshape(5, 1, 4)
    model = _on_home(run, nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 1, enable_nested_tensor=False))
    model(words, mask=mask)  # fails


@broken("BatchNorm1d got its input on cpu, its weight is on sim:1", "", cpu="rows")
def batch_norm(run: Run):
    rows = run.batch["image"].cpu()
    model = _on_home(run, nn.BatchNorm1d(4))
    model(rows)  # fails


@broken("LayerNorm got its input on cpu, its weight is on sim:1", "", cpu="rows")
def layer_norm(run: Run):
    rows = run.batch["image"].cpu()
    model = _on_home(run, nn.LayerNorm(4))
    model(rows)  # fails


@broken("1 (Linear) got its input on sim:0, its weight is on sim:1", "", kind="split", sim0="its input")
def layers_on_two_devices(run: Run):
    run.model = nn.Sequential(nn.Linear(4, 8).to("sim:0"), nn.Linear(8, 3).to("sim:1"))
    run.optimizer = None
    run.model(run.batch["image"].to("sim:0"))
