"""Pickles that would run something, by name: published ways past other scanners, and ways to reach a function.

The names are facts of advisories on picklescan and fickling of 2025 and 2026, of their lists and modelscan's, and of
the functions that the standard library and torch have for running what they are given. None of these files is run.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

__all__ = ["BENIGN", "FORMS", "MALICIOUS", "NAMES", "named", "reduced"]

NAMES = """
os.system posix.system nt.system subprocess.run subprocess.Popen subprocess.getoutput _posixsubprocess.fork_exec
builtins.eval builtins.exec builtins.compile builtins.__import__ builtins.open builtins.breakpoint builtins.globals
builtins.getattr builtins.setattr __builtin__.eval __builtin__.apply __builtin__.execfile __builtin__.file sys.exit
sys.settrace sys.setprofile os.execv os.popen os.remove os.kill os.putenv shutil.rmtree shutil.copyfile
importlib.import_module importlib.util.spec_from_file_location importlib.machinery.SourceFileLoader imp.load_source
pkgutil.resolve_name zipimport.zipimporter runpy.run_path runpy._run_code _frozen_importlib._gcd_import pydoc.locate
pydoc.pipepager pydoc.tempfilepager pty.spawn code.InteractiveInterpreter.runcode code.interact
codeop.compile_command cProfile.run cProfile.runctx profile.run profile.Profile.run profile.Profile.runctx pdb.run
pdb.runeval bdb.Bdb.run trace.Trace.run trace.Trace.runctx timeit.timeit timeit.repeat doctest.debug_script
doctest.testmod idlelib.autocomplete.AutoComplete.get_entity idlelib.autocomplete.AutoComplete.fetch_completions
idlelib.calltip.Calltip.fetch_tip idlelib.calltip.get_entity idlelib.debugobj.ObjectTreeItem.SetText
idlelib.pyshell.ModifiedInterpreter.runcode idlelib.pyshell.ModifiedInterpreter.runcommand
idlelib.run.Executive.runcode lib2to3.pgen2.grammar.Grammar.loads lib2to3.pgen2.pgen.ParserGenerator.make_label
ensurepip._run_pip venv.create pip.main pip._internal.cli.main.main
asyncio.unix_events._UnixSubprocessTransport._start asyncio.create_subprocess_shell
multiprocessing.util.spawnv_passfds multiprocessing.Process multiprocessing.popen_spawn_posix.Popen threading.Thread
_thread.start_new_thread concurrent.futures.ProcessPoolExecutor signal.signal atexit.register sched.scheduler
ctypes.CDLL ctypes.cdll.LoadLibrary _ctypes.dlopen ctypes.string_at socket.create_connection
ssl.get_server_certificate http.client.HTTPSConnection httplib.HTTPSConnection urllib.request.urlopen
urllib2.urlopen requests.api.get requests.get aiohttp.client.ClientSession smtplib.SMTP ftplib.FTP
imaplib.IMAP4_stream poplib.POP3 telnetlib.Telnet nntplib.NNTP xmlrpc.client.ServerProxy webbrowser.open
antigravity.geohash uuid._get_command_stdout uuid._popen _osx_support._read_output _osx_support._find_build_tool
_aix_support._read_cmd_output _pyrepl.pager.pipe_pager _pyrepl.pager.tempfile_pager
test.support.script_helper.assert_python_ok _interpreters.run_string _xxsubinterpreters.run_string mailcap.findmatch
platform.popen distutils.file_util.write_file distutils.spawn.spawn setuptools.sandbox.run_setup
pkg_resources.run_script site.main site.addsitedir tempfile.mkdtemp fileinput.input glob.glob linecache.getlines
logging.FileHandler logging.config.fileConfig logging.config.listen io.open _io.FileIO _io.open codecs.open
gzip.open bz2.open lzma.open tarfile.open zipfile.ZipFile sqlite3.connect shelve.open dbm.open marshal.loads
pickle.loads pickle.load _pickle.loads _pickle.Unpickler dill.loads dill._dill._create_function joblib.load
cloudpickle.loads cloudpickle.cloudpickle._make_function cloudpickle.cloudpickle._builtin_type
cloudpickle.cloudpickle._function_setstate cloudpickle.cloudpickle._make_cell
cloudpickle.cloudpickle._make_empty_cell cloudpickle.cloudpickle.subimport jsonpickle.decode yaml.unsafe_load
types.CodeType types.FunctionType types.MethodType types.ModuleType operator.attrgetter operator.methodcaller
operator.itemgetter _operator.attrgetter _operator.methodcaller functools.reduce builtins.map builtins.filter
itertools.starmap typing.ForwardRef typing.get_type_hints inspect.getsource ast.literal_eval gc.get_objects
unittest.mock._importer xml.etree.ElementTree.parse tkinter.Tk turtle.Screen py_compile.compile
compileall.compile_dir time.sleep copyreg.pickle readline.read_init_file resource.setrlimit mmap.mmap fcntl.fcntl
select.select numpy.load numpy.fromfile numpy.memmap numpy.savetxt numpy.f2py.crackfortran.getlincoef
numpy.f2py.crackfortran._eval_length numpy.testing._private.utils.runstring numpy.testing.runstring
numpy.distutils.exec_command.exec_command numpy.ctypeslib.load_library numpy.lib.npyio.DataSource numpy.vectorize
pandas.read_pickle pandas.io.pickle.read_pickle pandas.eval torch.load torch.serialization.load torch.hub.load
torch.hub.load_state_dict_from_url torch.jit.load torch.jit.unsupported_tensor_ops.execWrapper
torch.ops.load_library torch.classes.load_library torch._ops.load_library torch.utils.cpp_extension.load
torch.utils.cpp_extension.load_inline torch.utils.model_zoo.load_url torch.utils.bottleneck.__main__.run_cprofile
torch.utils.bottleneck.__main__.run_autograd_prof torch.utils.collect_env.run
torch.utils.collect_env.run_and_read_all torch.utils._config_module.ConfigModule.load_config
torch.utils.data.datapipes.utils.decoder.basichandlers torch._dynamo.guards.GuardBuilder.get
torch._inductor.codecache.compile_file torch.fx.experimental.symbolic_shapes.ShapeEnv.evaluate_guards_expression
torch.fx.graph_module.reduce_graph_module torch.package.PackageImporter torch.distributed.rpc.rpc_sync
torch.distributed.run.main torch.distributed.elastic.multiprocessing.start_processes torch.multiprocessing.spawn
torch.storage._load_from_bytes torch.os.system torch.sys.exit torch.nn.modules.module.importlib.import_module
numpy.os.system collections.sys.exit random._os.system tempfile._os.system pathlib.os.system logging.os.system
functools.partial.__reduce__ builtins.object.__subclasses__ builtins.type.__subclasses__
mine.Model.__init__.__globals__ mine.helper.__builtins__ mine.helper.__code__ mine.helper.__class__.__base__
huggingface_hub.hf_hub_download transformers.dynamic_module_utils.get_class_from_dynamic_module IPython.get_ipython
pytest.main _pytest.config.main execnet.makegateway psutil.Popen pexpect.spawn paramiko.SSHClient
picklescan.scanner.scan_file_path fickling.hook.deactivate_safe_ml_environment
""".split()
"""Functions that run, open, fetch or reach something."""

BENIGN = """
collections.OrderedDict collections.Counter collections.defaultdict collections.deque
torch._utils._rebuild_tensor_v2 torch._utils._rebuild_parameter torch.FloatStorage torch.nn.modules.linear.Linear
torch.nn.functional.relu torch._C._nn.gelu torch.optim.adamw.AdamW torch.optim.lr_scheduler.LambdaLR torch.device
torch.Size torch.float32 numpy.ndarray numpy.dtype numpy.core.multiarray._reconstruct numpy._core.multiarray.scalar
numpy.random._pickle.__randomstate_ctor numpy.random._pickle.__generator_ctor argparse.Namespace pathlib.PosixPath
pathlib._local.PosixPath datetime.datetime decimal.Decimal fractions.Fraction uuid.UUID enum.Enum functools.partial
types.SimpleNamespace _codecs.encode builtins.set builtins.slice builtins.object builtins.int builtins.ValueError
copyreg._reconstructor re._compile omegaconf.dictconfig.DictConfig omegaconf.base.ContainerMetadata
transformers.training_args.TrainingArguments transformers.trainer_utils.IntervalStrategy
transformers.trainer_pt_utils.AcceleratorConfig accelerate.state.PartialState
pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint lightning.fabric.utilities.data.AttributeDict
deepspeed.runtime.fp16.loss_scaler.LossScaler deepspeed.runtime.zero.config.ZeroStageEnum
deepspeed.utils.tensor_fragment.fragment_address hippynn.graphs.graph.GraphModule
hippynn.experiment.controllers.RaiseBatchSizeOnPlateau chgnet.model.model.CHGNet
timm.models.vision_transformer.VisionTransformer torchvision.models.resnet.ResNet
sklearn.preprocessing._data.StandardScaler pandas.core.frame.DataFrame pandas._libs.internals._unpickle_block
scipy.sparse._csr.csr_matrix torch.distributed.checkpoint.metadata.Metadata
torch.distributed._shard.sharded_tensor.api.ShardedTensor torch.distributed.tensor.DTensor
torch.jit._pickle.build_intlist __torch__.Model __main__.Config mine.code.Trainer mine.trace.Tracer mine.site.Site
mine.commands.Train mine.os_utils.Paths
""".split()
"""Names that honest checkpoints hold."""


def _global(name: str) -> bytes:
    """The name by GLOBAL, split as picklers split it: what begins with a capital letter belongs to the object."""
    parts = name.split(".")
    at = next((i for i, part in enumerate(parts) if part[:1].isupper() and i), len(parts) - 1)
    return b"c" + ".".join(parts[:at]).encode() + b"\n" + ".".join(parts[at:]).encode() + b"\n"


def _text(word: str) -> bytes:
    data = word.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def reduced(name: str) -> bytes:
    """A dict of a call of the name, as a pickler writes it."""
    return b"\x80\x02}" + _text("x") + _global(name) + _text("echo hostile") + b"\x85Rs."


def named(name: str) -> bytes:
    """A dict that holds the class or function itself."""
    return b"\x80\x02}" + _text("x") + _global(name) + b"s."


def _stack_global(module: str, name: str) -> bytes:
    """A name as protocol 4 writes it."""
    return _short(module) + _short(name) + b"\x93"


def _short(word: str) -> bytes:
    return b"\x8c" + bytes([len(word)]) + word.encode()


_SYSTEM = _stack_global("posix", "system")
_GETATTR = _stack_global("builtins", "getattr")
_IMPORTED = _stack_global("importlib", "import_module") + _short("posix") + b"\x85R"
_MADE = _stack_global("mine", "A")
_LS = _short("ls") + b"\x85"
_INNER = b"cposix\nsystem\n(S'ls'\ntR."

_FOURTH: dict[str, bytes] = {
    "reduce": _SYSTEM + _LS + b"R.",
    "newobj_ex": _SYSTEM + _LS + b"}\x92.",
    "result thrown away": _SYSTEM + _LS + b"R0N.",
    "result thrown away by a mark": b"(" + _SYSTEM + _LS + b"R1N.",
    "result as a key": b"}" + _SYSTEM + _LS + b"RNs.",
    "result as a state": _MADE + b")\x81" + _SYSTEM + _LS + b"Rb.",
    "result as an argument": _MADE + _SYSTEM + _LS + b"R\x85R.",
    "result as a persistent id": _SYSTEM + _LS + b"RQ.",
    "names out of the memo": _short("system") + b"\x94" + _short("posix") + b"\x9400h\x01h\x00\x93" + _LS + b"R.",
    "names put and memoized": _short("posix") + b"q\x000" + _short("system") + b"q\x010" + _short("torch._utils")
    + b"\x940" + _short("_rebuild_tensor_v2") + b"\x940h\x00h\x01\x93" + _LS + b"R.",
    "names far in the memo": _short("posix") + b"r\xff\xff\xff\x7f" + _short("system") + b"r\xfe\xff\xff\x7f00"
    b"j\xff\xff\xff\x7fj\xfe\xff\xff\x7f\x93" + _LS + b"R.",
    "function out of the memo": _SYSTEM + b"\x940" + _short("") + b"h\x00" + _LS + b"R\x86.",
    "function by a dotted name": _stack_global("torch", "os.system") + _LS + b"R.",
    "function through getattr": _GETATTR + _SYSTEM + _short("__call__") + b"\x86R" + _LS + b"R.",
    "function through import and getattr": _GETATTR + _stack_global("builtins", "__import__") + _short("posix")
    + b"\x85R" + _short("system") + b"\x86R" + _LS + b"R.",
    "function through attrgetter": _stack_global("operator", "attrgetter") + _short("system") + b"\x85R" + _IMPORTED
    + b"\x85R" + _LS + b"R.",
    "function through methodcaller": _stack_global("operator", "methodcaller") + _short("system") + _short("ls")
    + b"\x86R" + _IMPORTED + b"\x85R.",
    "function through resolve_name": _stack_global("pkgutil", "resolve_name") + _short("posix:system") + b"\x85R"
    + _LS + b"R.",
    "function through partial": _stack_global("functools", "partial") + _SYSTEM + _short("ls") + b"\x86R)R.",
    "function through map": _stack_global("builtins", "list") + _stack_global("builtins", "map") + _SYSTEM + b"]("
    + _short("ls") + b"e\x86R\x85R.",
    "function through a default": _stack_global("collections", "defaultdict") + _stack_global("mine", "f") + b"\x85R"
    + _SYSTEM + b"b.",
    "function as a value": b"}" + _short("f") + _SYSTEM + b"s.",
    "function as a state": _MADE + b")\x81}" + _short("f") + _SYSTEM + b"sb.",
    "function set on a class": _MADE + b"N}" + _short("__call__") + _SYSTEM + b"s\x86b.",
    "pickle in a pickle": _stack_global("pickle", "loads") + b"C" + bytes([len(_INNER)]) + _INNER + b"\x85R.",
    "pickle in torch's own loader": _stack_global("torch.storage", "_load_from_bytes") + b"C\x05cos\n.\x85R.",
    "modules replaced": _stack_global("sys", "modules") + _short("torch") + b"Ns.",
    "an exception": _stack_global("builtins", "exec") + _short("raise") + b"\x85RN.",
    "a name as bytes": b"C\x05posix" + _short("system") + b"\x93" + _LS + b"R.",
    "a name out of a call": _stack_global("builtins", "str") + _short("posix") + b"\x85R" + _short("system") + b"\x93"
    + _LS + b"R.",
    "cut off after the call": _SYSTEM + _LS + b"R",
    "garbage after the call": _SYSTEM + _LS + b"R\xff\xff",
    "a frame that lies": b"\x95\xff\xff\xff\xff\xff\xff\xff\x7f" + _SYSTEM + _LS + b"R.",
}  # fmt: skip
"""Those in protocol 4, without the instruction that says so."""

FORMS: dict[str, bytes] = {
    **{form: b"\x80\x04" + code for form, code in _FOURTH.items()},
    "protocol 0": b"cposix\nsystem\n(S'ls'\ntR.",
    "inst": b"(S'ls'\niposix\nsystem\n.",
    "obj": b"(cposix\nsystem\nS'ls'\no.",
    "newobj": b"\x80\x02cposix\nsystem\nX\x02\0\0\0ls\x85\x81.",
    "attributes set on a function": b"cnumpy\nprod\nN(Va\nVposix\nd\x86bN(Vb\nVsystem\nd\x86b0cnumpy\nprod.a\np0\n0"
    b"cnumpy\nprod.b\np1\n0g0\ng1\n\x93Vls\n\x85R.",
    "text escapes": b"cposix\nsystem\n(V\\u006cs\ntR.",
    "builtins of Python 2": b"c__builtin__\neval\n(S'1'\ntR.",
    "protocol in the middle": b"N0\x80\x02" + _SYSTEM + _LS + b"R.",
    "an extension code": b"\x80\x02\x82\x01X\x02\0\0\0ls\x85R.",
    "a buffer out of band": b"\x80\x05" + _SYSTEM + _LS + b"\x97\x85R.",
}  # fmt: skip
"""How a function is reached -> the pickle."""

MALICIOUS: dict[str, Callable[[], bytes]] = {
    **{f"name: {name}": lambda name=name: reduced(name) for name in NAMES},  # type: ignore[misc]
    **{f"form: {form}": lambda form=form: FORMS[form] for form in FORMS},  # type: ignore[misc]
}
"""Name -> what makes the pickle."""
