"""Names in a pickle that a checkpoint has no business with: one table for the scanner and for `trust=`.

`danger_of` grades a name for the reader of a file; `is_dangerous` says what no caller may trust, whatever it is named.
"""

from __future__ import annotations

from typing import Final

__all__ = ["PICKLES", "danger_of", "is_dangerous"]

_BUILTINS: Final = """
eval exec execfile compile __import__ apply open file input raw_input breakpoint delattr setattr globals locals vars
reload memoryview exit quit help
""".split()

_RUNS: Final = frozenset(
    [f"builtins.{name}" for name in _BUILTINS]
    + [f"{module}.{name}" for module in ("io", "_io", "_pyio", "codecs") for name in ("open", "open_code", "FileIO")]
    + [f"{module}.{name}" for module in ("pickle", "_pickle") for name in ("load", "loads", "Unpickler")]
    + """
    types.CodeType types.FunctionType types.LambdaType types.ModuleType
    torch.load torch.serialization.load torch.jit.load torch.jit._serialization.load torch.utils.model_zoo.load_url
    torch.package.PackageImporter torch.fx.graph_module.reduce_graph_module
    torch.fx.graph_module.reduce_package_graph_module torch.ops.load_library torch._ops.load_library
    numpy.load numpy.fromfile numpy.memmap numpy.lib.npyio.load numpy.lib._npyio_impl.load
    pandas.read_pickle pandas.io.pickle.read_pickle joblib.load joblib.numpy_pickle.load
    logging.config.dictConfig cProfile.run profile.run timeit.timeit timeit.repeat
    """.split()
)
"""Functions that run or open what their arguments say."""

_MODULES: Final = frozenset(
    """
    os posix nt ntpath posixpath subprocess _posixsubprocess commands popen2 pty tty pexpect shutil importlib imp runpy
    pkgutil zipimport code codeop bdb pdb trace doctest socket _socket socketserver ssl ctypes _ctypes cffi webbrowser
    dill _dill cPickle cloudpickle marshal shelve pip ensurepip setuptools distutils venv multiprocessing threading
    _thread concurrent asyncio signal sys site tempfile glob fileinput ftplib http urllib urllib2 httplib requests
    aiohttp smtplib telnetlib xmlrpc idlelib antigravity
    torch.hub torch.utils.cpp_extension torch.distributed.rpc torch._inductor.codecache
    numpy.testing numpy.f2py numpy.distutils
    """.split()
)
"""Modules of which no part belongs in a checkpoint."""

_HARMLESS: Final = frozenset(
    """
    os.PathLike urllib.parse.ParseResult urllib.parse.SplitResult sys.float_info sys.version_info
    """.split()
)
"""Plain values of those modules."""

_STEPS: Final = frozenset(
    """
    builtins.getattr builtins.map builtins.filter builtins.reduce functools.reduce functools.partialmethod
    operator.attrgetter operator.call operator.methodcaller _operator.attrgetter _operator.methodcaller _operator.call
    itertools.starmap types.MethodType torch.storage._load_from_bytes
    """.split()
)
"""Harmless by themselves, a step of many an attack."""

PICKLES: Final = frozenset({"pickle.loads", "_pickle.loads", "dill.loads", "dill._dill.loads", "cloudpickle.loads"})
"""Functions whose argument is a pickle in its own right."""


def danger_of(name: str) -> str:
    """How grave it is that a pickle names "module.name": "danger", "warning", or "" for nothing to tell.

    >>> danger_of("posix.system"), danger_of("builtins.getattr"), danger_of("collections.OrderedDict")
    ('danger', 'warning', '')
    """
    name = name.replace("__builtin__.", "builtins.", 1) if name.startswith("__builtin__.") else name
    if name in _HARMLESS:
        return ""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        head = ".".join(parts[:end])
        if head in _RUNS or head in _MODULES:
            return "danger"
    return "warning" if name in _STEPS else ""


def is_dangerous(name: str) -> bool:
    """Whether no caller may trust "module.name": it could run, or help to run, anything that a file chooses."""
    return danger_of(name) != ""
