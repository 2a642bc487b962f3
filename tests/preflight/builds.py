"""Runs as their programs build them, right ones and broken ones; a fresh process imports them by name."""

from __future__ import annotations

import io

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A Transformer layer, running statistics, a head."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.norm(self.layer(x).mean(1)))


def _data(*shape):
    return torch.randn(8, *(shape or (5, 16))), torch.arange(8) % 3


def _run(model, loss, device, *, data=None, left=(), optimizer=torch.optim.AdamW, amp=False, **extra):
    """A run whose step brings its batch to the device, but for what is `left`."""
    made = optimizer(model.parameters()) if isinstance(optimizer, type) else optimizer
    x, y = data or _data()
    scaler = torch.amp.GradScaler(torch.device(device).type, enabled=amp)

    def train_step():
        inputs = x if "input" in left else x.to(device)
        labels = y if "labels" in left else y.to(device)
        made.zero_grad()
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=amp):
            out = loss(model(inputs), labels)
        scaler.scale(out).backward()
        scaler.unscale_(made)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(made)
        scaler.update()
        return out.item()

    return {"model": model, "optimizer": made, "train_step": train_step, **extra}


def right(device):
    return _run(Net().to(device), nn.CrossEntropyLoss(weight=torch.ones(3)).to(device), device)


def input_left(device):
    return _run(Net().to(device), nn.CrossEntropyLoss(), device, left=("input",))


def labels_left(device):
    return _run(Net().to(device), nn.CrossEntropyLoss(), device, left=("labels",))


def weight_left(device):
    return _run(Net().to(device), nn.CrossEntropyLoss(weight=torch.ones(3)), device)


def batch_of_the_usual_step(device):
    model = Net().to(device)
    x, y = _data()
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss": nn.CrossEntropyLoss(),
        "batch": (x.to(device), y),
    }


def loader_of_the_usual_step(device):
    model = Net().to(device)
    loader = DataLoader(TensorDataset(*_data()), batch_size=4, shuffle=True)
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss": nn.CrossEntropyLoss(),
        "loader": loader,
    }


class Masked(Net):
    def __init__(self):
        super().__init__()
        self.mask = torch.ones(16)

    def forward(self, x):
        return super().forward(x * self.mask)


def attribute_left(device):
    return _run(Masked().to(device), nn.CrossEntropyLoss(), device)


class Noisy(Net):
    def forward(self, x):
        noise = torch.zeros(16)
        return super().forward(x + noise)


def made_in_forward(device):
    return _run(Noisy().to(device), nn.CrossEntropyLoss(), device)


class Words(nn.Module):
    """An embedding, an LSTM, a head."""

    def __init__(self):
        super().__init__()
        self.words, self.lstm, self.head = nn.Embedding(9, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, tokens):
        return self.head(self.lstm(self.words(tokens))[0][:, -1])


def words(device):
    return _run(Words().to(device), nn.CrossEntropyLoss(), device, data=(torch.ones(8, 5).long(), _data()[1]))


def tokens_left(device):
    data = (torch.ones(8, 5).long(), _data()[1])
    return _run(Words().to(device), nn.CrossEntropyLoss(), device, data=data, left=("input",))


def _image():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))


def image(device):
    model = _image()
    model(torch.randn(2, 3, 8, 8))
    return _run(model.to(device), nn.CrossEntropyLoss(), device, data=_data(3, 8, 8), amp=True)


def image_left(device):
    model = _image()
    model(torch.randn(2, 3, 8, 8))
    return _run(model.to(device), nn.CrossEntropyLoss(), device, data=_data(3, 8, 8), left=("input",))


def head_left(device):
    model = Net().to(device)
    model.head = nn.Linear(16, 3)
    return _run(model, nn.CrossEntropyLoss(), device)


def state_left(device):
    model = Net()
    optimizer = torch.optim.Adagrad(model.parameters())
    return _run(model.to(device), nn.CrossEntropyLoss(), device, optimizer=optimizer)


def without_a_device():
    model = nn.Sequential(nn.Linear(4, 3))
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters()),
        "loss": nn.CrossEntropyLoss(),
        "batch": (torch.randn(2, 4), torch.tensor([0, 1])),
    }


def asks_what_there_is():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return _run(Net().to(device), nn.CrossEntropyLoss(), device)


def moves_by_cuda():
    model = Net().cuda()
    x, y = _data()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def train_step():
        torch.cuda.synchronize()
        F.cross_entropy(model(x.cuda(non_blocking=True)), y.cuda()).backward()
        optimizer.step()
        return torch.cuda.memory_allocated()

    return {"model": model, "optimizer": optimizer, "train_step": train_step}


def depends_on_values(device):
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = (one.to(device) for one in _data())

    def train_step():
        out = model(x)
        chosen = out[y > 0]
        loss = chosen.logsumexp(1).mean()
        if torch.isnan(loss) or not torch.isfinite(loss):
            raise RuntimeError("the loss is not finite")
        loss.backward()
        optimizer.step()
        return float(loss), out.argmax(1).cpu().numpy().mean()

    return {"model": model, "optimizer": optimizer, "train_step": train_step}


@torch.library.custom_op("unmoor_tests::opaque", mutates_args=())
def opaque(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def operator_without_a_rule(device):
    model = Net().to(device)
    return _run(model, lambda out, y: F.cross_entropy(opaque(out), y), device)


def wrong_shape(device):
    return _run(Net().to(device), lambda out, y: (out @ out).sum(), device)


def numpy_from_the_device(device):
    return _run(Net().to(device), lambda out, y: out.detach().numpy().sum(), device)


def stays_on_the_cpu(device):
    return _run(Net(), nn.CrossEntropyLoss(), "cpu")


def in_wrappers(device):
    model = nn.DataParallel(torch.compile(Net().to(device)))
    return _run(model, nn.CrossEntropyLoss(), device, left=("input",))


def loads_a_file(device):
    stored = io.BytesIO()
    torch.save(Net().state_dict(), stored)
    stored.seek(0)
    model = Net().to(device)
    model.load_state_dict(torch.load(stored, map_location=device))
    return _run(model, nn.CrossEntropyLoss(), device)


class Split(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 8).to("cuda:0"), nn.Linear(8, 3).to("cuda:1")

    def forward(self, x):
        return self.second(self.first(x.mean(1)).to("cuda:1"))


def on_two_devices():
    model = Split()
    return _run(model, lambda out, y: F.cross_entropy(out, y.to("cuda:1")), "cuda:0")


class Energy(nn.Module):
    """Forces are a gradient within forward."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        x = x.requires_grad_()
        energy = checkpoint(self.net, x, use_reentrant=False).sum()
        return torch.autograd.grad(energy, x, create_graph=True)[0]


def forces(device):
    model = Energy().to(device)
    average = AveragedModel(model)
    run = _run(model, lambda out, y: (out**2).mean() + 0 * y.sum(), device, data=_data(3), ema=average)
    step = run["train_step"]

    def train_step():
        loss = step()
        average.update_parameters(model)
        return loss

    return {**run, "train_step": train_step}


def closure_of_lbfgs(device):
    model = Net().to(device)
    optimizer = torch.optim.LBFGS(model.parameters())
    x, y = (one.to(device) for one in _data())

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return {"model": model, "optimizer": optimizer, "train_step": lambda: optimizer.step(closure)}


def raises(device):
    return 1 / 0


def returns_no_run(device):
    return [Net()]


def needs_more(device, width):
    return right(device)


def exits_with_words(device):
    raise SystemExit("no data found")


class Packing(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.LSTM(4, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 3)

    def forward(self, rows, lengths):
        packed = pack_padded_sequence(rows, lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.words(packed)[0], batch_first=True)
        return self.head(out.mean(1))


def packs_sequences(device):
    model = Packing().to(device)
    optimizer = torch.optim.Adam(model.parameters())

    def train_step(batch):
        rows, lengths = batch
        loss = model(rows, lengths).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    batch = torch.ones(3, 5, 4, device=device), torch.tensor([2, 5, 4])
    return {"model": model, "optimizer": optimizer, "train_step": train_step, "batch": batch}


def packs_by_lengths_there(device):
    made = packs_sequences(device)
    return {**made, "batch": tuple(one.to(device) for one in made["batch"])}
