"""What of Python's own library checkpoints do hold: the exceptions to the rule of `dangers`, as tables."""

from __future__ import annotations

from typing import Final

__all__ = ["CLASSES", "HARMLESS", "STEPS", "WHOLE"]

WHOLE: Final = frozenset(
    """
    __future__ _collections _collections_abc _datetime _decimal _pydatetime _pydecimal _random abc array bisect
    binascii cmath collections datetime decimal enum fractions functools heapq itertools math
    numbers operator _operator random statistics typing zoneinfo ipaddress UserDict UserList UserString
    """.split()
)
"""Modules of values and arithmetic: none of their functions opens, fetches, runs or imports anything."""

_BUILTINS: Final = """
abs all any ascii bin bool bytearray bytes callable chr classmethod complex dict divmod enumerate float format frozenset
hash hex int isinstance issubclass iter len list long max min next object oct ord pow property range repr reversed round
set slice sorted staticmethod str sum tuple unicode unichr xrange zip basestring bytes_iterator Ellipsis NotImplemented
BaseException KeyboardInterrupt StopIteration StopAsyncIteration GeneratorExit SystemExit ExceptionGroup None True False
""".split()

HARMLESS: Final = frozenset(
    [f"builtins.{name}" for name in _BUILTINS]
    + """
    _codecs.encode codecs.encode _struct.Struct struct.Struct copyreg._reconstructor copyreg.__newobj__
    copyreg.__newobj_ex__ copy_reg._reconstructor copy_reg.__newobj__ re._compile re.RegexFlag re.Pattern
    logging.getLogger logging.Logger time.struct_time types.NoneType weakref.ReferenceType contextlib.nullcontext
    os.PathLike sys.float_info sys.version_info sys.int_info
    """.split()
)
"""Single names of modules that are dangerous otherwise."""

CLASSES: Final = frozenset(
    """
    uuid.UUID uuid.SafeUUID argparse.Namespace types.SimpleNamespace types.MappingProxyType types.GenericAlias
    types.UnionType types.EllipsisType types.NotImplementedType pathlib.Path pathlib.PosixPath pathlib.WindowsPath
    pathlib.PurePath pathlib.PurePosixPath pathlib.PureWindowsPath pathlib._local io.BytesIO io.StringIO _io.BytesIO
    _io.StringIO StringIO.StringIO cStringIO.StringIO dataclasses.Field dataclasses._MISSING_TYPE
    dataclasses._FIELD_BASE dataclasses._HAS_DEFAULT_FACTORY_CLASS dataclasses.InitVar weakref.WeakKeyDictionary
    weakref.WeakValueDictionary weakref.WeakSet _weakrefset.WeakSet inspect.Parameter inspect.Signature
    inspect._ParameterKind inspect._empty configparser.ConfigParser configparser.RawConfigParser
    configparser.SectionProxy logging.Formatter logging.Filter logging.RootLogger urllib.parse.ParseResult
    urllib.parse.SplitResult urlparse.ParseResult urlparse.SplitResult sre_constants._NamedIntConstant
    """.split()
)
"""Classes of such modules."""

STEPS: Final = frozenset(
    """
    builtins.getattr builtins.hasattr builtins.map builtins.filter builtins.reduce builtins.type builtins.super
    functools.reduce functools.partialmethod functools.singledispatch functools.cached_property
    operator.attrgetter operator.call operator.methodcaller operator.itemgetter _operator.attrgetter
    _operator.methodcaller _operator.call _operator.itemgetter itertools.starmap itertools.accumulate
    itertools.takewhile itertools.dropwhile itertools.filterfalse itertools.groupby types.MethodType
    torch.storage._load_from_bytes numpy.vectorize numpy.frompyfunc numpy.fromfunction numpy.apply_along_axis
    numpy.apply_over_axes numpy.piecewise numpy.lib.vectorize torch.vmap torch.func.vmap
    typing.get_type_hints typing.ForwardRef typing._eval_type typing.evaluate_forward_ref
    zlib.decompress gzip.decompress bz2.decompress lzma.decompress
    _codecs.decode codecs.decode copy.copy copy.deepcopy collections.namedtuple
    """.split()
)
"""Harmless by themselves, a step of many an attack."""
