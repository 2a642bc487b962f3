"""Names in a pickle that can run anything: no checkpoint needs them, and no caller may trust them."""

from __future__ import annotations

from typing import Final

__all__ = ["DANGEROUS_MODULES", "DANGEROUS_NAMES", "is_dangerous"]

DANGEROUS_MODULES: Final = frozenset(
    """
    os posix nt ntpath posixpath subprocess sys importlib imp pickle _pickle cPickle dill cloudpickle joblib shelve
    marshal ctypes _ctypes socket _socket socketserver ssl http urllib ftplib smtplib telnetlib xmlrpc webbrowser
    shutil pathlib.os runpy code codeop pty tty pdb bdb trace timeit cProfile profile multiprocessing _posixsubprocess
    asyncio signal threading _thread concurrent tempfile glob fileinput commands popen2 pip setuptools distutils
    ensurepip venv builtins.eval operator._operator pkgutil zipimport site doctest pexpect cffi antigravity idlelib
    _dill httplib urllib2 requests aiohttp torch.hub torch.utils.cpp_extension torch.distributed.rpc
    torch._inductor.codecache numpy.testing numpy.f2py numpy.distutils
    """.split()
)

_BUILTINS: Final = """
eval exec execfile compile __import__ open file input raw_input breakpoint getattr setattr delattr globals locals vars
apply reduce map filter reload memoryview exit quit help
""".split()

DANGEROUS_NAMES: Final = frozenset(
    [f"{module}.{name}" for module in ("builtins", "__builtin__") for name in _BUILTINS]
    + """
    types.CodeType types.FunctionType types.MethodType types.LambdaType types.ModuleType functools.reduce
    functools.partialmethod operator.attrgetter operator.methodcaller operator.itemgetter operator.call
    _operator.attrgetter _operator.methodcaller _operator.call torch.load torch.jit.load torch.serialization.load
    torch.package.PackageImporter torch.storage._load_from_bytes torch.fx.graph_module.reduce_graph_module
    torch.fx.graph_module.reduce_package_graph_module torch.ops.load_library torch._ops.load_library numpy.load
    numpy.lib.npyio.load numpy.lib._npyio_impl.load numpy.fromfile numpy.memmap pandas.read_pickle
    pandas.io.pickle.read_pickle torch.jit._serialization.load torch.utils.model_zoo.load_url itertools.starmap
    logging.config.dictConfig io.open io.open_code io.FileIO _io.open _io.open_code _io.FileIO _pyio.open
    _pyio.open_code _pyio.FileIO codecs.open codecs.open_code codecs.FileIO
    """.split()
)


def is_dangerous(name: str) -> bool:
    """Whether "module.name" names something that could run anything a file chooses.

    >>> is_dangerous("posix.system"), is_dangerous("collections.OrderedDict")
    (True, False)
    """
    if name in DANGEROUS_NAMES:
        return True
    parts = name.split(".")
    return any(".".join(parts[:i]) in DANGEROUS_MODULES for i in range(1, len(parts)))
