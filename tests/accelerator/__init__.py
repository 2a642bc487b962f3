"""The simulated accelerator of the tests: `install()` makes the devices `sim:0` to `sim:3` of this process.

What lives here is building and registering. Devices are in `sim_device.h`, their streams in `sim_streams.h`, their
operators in `sim.cpp` and `recurrent.py`, the module `torch.sim` in `sim.py`. The shared library is compiled once per
source and torch version and kept in `.cache/sim` of the project.
"""

import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import torch
from torch.utils import backend_registration, cpp_extension

SOURCES = [Path(__file__).with_name(name) for name in ("sim.cpp", "sim_device.h", "sim_streams.h")]
CACHE = Path(__file__).parents[2] / ".cache" / "sim"


class CompilerMissing(RuntimeError):
    """No C++ compiler is there to build the simulated accelerator, and no build of it is cached."""


def install() -> ModuleType:
    """The module `torch.sim`, after building and registering the backend where this process has not yet.

    Raises `CompilerMissing` if it must be built and cannot be.
    """
    if hasattr(torch, "sim"):
        return torch.sim
    _load(CACHE / f"sim-{_fingerprint()}.so")
    backend_registration.rename_privateuse1_backend("sim")
    from . import recurrent, sim  # generators and names of `sim` exist only now

    torch._register_device_module("sim", sim)
    backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)
    recurrent.register()
    return sim


def _fingerprint() -> str:
    parts = [torch.__version__.encode(), *(source.read_bytes() for source in SOURCES)]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:12]


def _load(library: Path) -> None:
    if library.exists():
        torch.ops.load_library(library)
        return
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        raise CompilerMissing(f"no C++ compiler {compiler!r} on PATH to build {SOURCES[0].name}")
    CACHE.mkdir(parents=True, exist_ok=True)
    # A build that is killed leaves a scratch folder, never a half library or a lock that others wait for.
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        _compile_and_load(scratch)
        os.replace(Path(scratch, "sim.so"), library)


def _compile_and_load(folder: str) -> None:
    path = os.environ["PATH"]
    # A virtual environment that is not activated has its ninja beside its python, outside PATH.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), path])
    try:
        cpp_extension.load(
            "sim", [str(SOURCES[0])], extra_cflags=["-O1"], build_directory=folder, is_python_module=False
        )
    finally:
        os.environ["PATH"] = path
