"""Names in a pickle that a checkpoint has no business with: one judgement for the scanner and for `trust=`.

`danger_of` grades a name for the reader of a file; `is_dangerous` says what no caller may trust, whatever it is named.
Of Python's own library all is dangerous but what a table excepts: what runs a command there is found anew every month.
Of other packages the known ways are listed. A name that leads through a dangerous module is as dangerous as it.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Final

from .dangers_harmless import CLASSES, HARMLESS, STEPS, WHOLE

__all__ = ["PICKLES", "danger_of", "is_dangerous"]

_LIBRARY: Final = (
    sys.stdlib_module_names
    | frozenset(
        """
        __builtin__ __builtins__ _aix_support _bootsubprocess _interpreters _osx_support _pyrepl _winapi _winreg
        _xxsubinterpreters aifc annotationlib antigravity asynchat asyncore audioop BaseHTTPServer Bastion
        CGIHTTPServer cgi cgitb commands compression ConfigParser Cookie cookielib copy_reg cPickle crypt cStringIO
        distutils dummy_thread dummy_threading ftplib gopherlib HTMLParser httplib idlelib imghdr imp lib2to3 mailcap
        MimeWriter msilib nis nntplib nt ntpath os2 ossaudiodev pipes popen2 posixfile profiling Queue rexec
        robotparser SimpleHTTPServer SimpleXMLRPCServer smtpd sndhdr SocketServer spwd StringIO sunau telnetlib thread
        Tkinter tkinter turtledemo urllib2 urlparse UserDict UserList UserString uu winreg xdrlib xmlrpclib
        """.split()
    )
) - {"__main__"}
"""Modules of Python, of this version and of those before and after it."""

_MODULES: Final = frozenset(
    """
    test.support torch.hub torch.package torch.utils.cpp_extension torch.utils.collect_env torch.utils.bottleneck
    torch.utils.model_zoo torch.utils.model_dump torch.utils.show_pickle torch.utils._config_module torch.utils._zip
    torch.utils.data.datapipes.utils.decoder torch.utils.file_baton torch.utils.hipify torch.utils.benchmark
    torch.distributed.rpc torch.distributed.run torch.distributed.launch torch.distributed.launcher
    torch.distributed.elastic torch.distributed.nn.jit torch.multiprocessing torch._inductor torch._dynamo.guards
    torch._dynamo.config torch._dynamo.debug_utils torch._dynamo.repro torch._export torch.onnx torch.fx.experimental
    torch.fx.graph_module torch.fx._lazy_graph_module torch.jit._script torch.jit._serialization
    torch.jit._recursive torch.jit.frontend torch.jit.unsupported_tensor_ops torch.jit.supported_ops
    torch.jit.quantized torch._jit_internal torch._classes torch.classes torch._ops torch._sources torch._appdirs
    torch.testing torch.cuda._memory_viz torch.cuda.jiterator torch.backends.xeon torch._C.PyTorchFileReader
    torch._C.import_ir_module torch._C.CompilationUnit
    numpy.testing numpy.f2py numpy.distutils numpy.ctypeslib numpy.lib.npyio numpy.lib._npyio_impl numpy.lib.format
    numpy.lib._format_impl numpy.lib._datasource numpy.lib.utils numpy.lib._utils_impl numpy.ma.testutils
    pandas.io pandas.core.computation pandas.util.testing pandas._testing scipy.io scipy.weave
    joblib dill _dill cloudpickle ray.cloudpickle jsonpickle hickle klepto yaml ruamel pyximport Cython
    pip _pip pkg_resources setuptools _distutils_hack wheel virtualenv requests urllib3 aiohttp httpx httpcore pycurl
    paramiko pexpect ptyprocess plumbum psutil delegator boto3 botocore s3fs gcsfs smart_open pysftp wget gdown
    websocket websockets IPython ipykernel pytest _pytest nose execnet rpyc cffi llvmlite pycuda tvm
    triton.compiler triton.runtime cupy.cuda.compiler cupy.RawKernel cupy.RawModule cupy._core.raw numexpr
    keras.models keras.saving keras.src.saving tensorflow.python.platform tensorflow.io onnxruntime nltk.data
    nltk.downloader spacy.cli huggingface_hub transformers.dynamic_module_utils transformers.utils.hub
    transformers.commands datasets.load accelerate.commands deepspeed.launcher deepspeed.ops.op_builder
    fastai.learner.load_learner gradio streamlit sqlalchemy picklescan fickling modelscan modelaudit
    """.split()
)
"""Modules and packages beyond Python's own of which no part belongs in a checkpoint: they run, fetch, load or test."""

_RUNS: Final = frozenset(
    """
    torch.load torch.save torch.serialization.load torch.serialization._load torch.serialization._legacy_load
    torch.serialization.save torch.serialization.add_safe_globals torch.compile torch.library.Library
    torch.jit.load torch.jit.script torch.jit.CompilationUnit torch.jit.export torch.ops.load_library
    torch.from_file torch.UntypedStorage.from_file torch.TypedStorage.from_file torch.storage.UntypedStorage.from_file
    torch.storage.TypedStorage.from_file torch._utils._import_dotted_name torch._dynamo.optimize
    torch.distributed.init_process_group torch.distributed.TCPStore torch.distributed.FileStore
    torch._C._distributed_c10d.TCPStore torch._C._distributed_c10d.FileStore
    torch.distributed.distributed_c10d._object_to_tensor torch.distributed.distributed_c10d._tensor_to_object
    torch.distributed.checkpoint.load torch.distributed.checkpoint.save
    torch.distributed.checkpoint.format_utils torch.distributed.checkpoint.filesystem.FileSystemWriter
    numpy.load numpy.save numpy.savez numpy.savez_compressed numpy.savetxt numpy.loadtxt numpy.genfromtxt
    numpy.fromregex numpy.fromfile numpy.memmap numpy.core.memmap.memmap numpy._core.memmap.memmap numpy.DataSource
    numpy.core.records.fromfile numpy._core.records.fromfile numpy.rec.fromfile numpy.core.multiarray.fromfile
    numpy._core.multiarray.fromfile numpy.ndarray.tofile numpy.ndarray.dump numpy.safe_eval numpy.lib.safe_eval
    pandas.eval pandas.read_pickle pandas.read_csv pandas.read_json pandas.read_html pandas.read_xml pandas.read_sql
    pandas.read_excel pandas.read_hdf pandas.read_parquet pandas.read_feather pandas.read_table pandas.ExcelFile
    pandas.HDFStore pandas.DataFrame.eval pandas.DataFrame.query pandas.DataFrame.to_pickle pandas.DataFrame.to_csv
    pandas.core.frame.DataFrame.eval pandas.core.frame.DataFrame.query pandas.core.generic.NDFrame.to_pickle
    safetensors.torch.load_file safetensors.torch.save_file PIL.Image.open PIL.ImageMath.eval PIL.ImageShow
    lightning.pytorch.core.module.LightningModule.load_from_checkpoint unmoor.load unmoor.save
    """.split()
)
"""Functions of other packages that run, open or load what their arguments say."""

_REACHED: Final = frozenset(
    """
    os _os posix nt sys _sys subprocess _subprocess builtins __builtin__ __builtins__ importlib runpy ctypes socket
    shutil pickle cPickle marshal pty webbrowser pydoc timeit cProfile
    """.split()
)
"""Modules that other modules import, so that a name can lead through them: `torch.os.system`."""

_INNER: Final = frozenset(
    """
    __globals__ __builtins__ __code__ __subclasses__ __dict__ __class__ __getattribute__ __getattr__ __import__
    __loader__ __spec__ __mro__ __bases__ __base__ __closure__ __reduce__ __reduce_ex__ __func__ __self__ __wrapped__
    __defaults__ __kwdefaults__ __setattr__ __delattr__ __call__ __path__ gi_frame f_globals f_builtins f_locals
    tb_frame cr_frame load_module exec_module
    """.split()
)
"""Attributes by which one gets from an object to the program around it."""

PICKLES: Final = frozenset(
    """
    pickle.loads _pickle.loads cPickle.loads pickle._loads dill.loads dill._dill.loads cloudpickle.loads
    cloudpickle.cloudpickle.loads torch.storage._load_from_bytes
    """.split()
)
"""Functions whose argument is a pickle in its own right."""


@lru_cache(maxsize=4096)
def danger_of(name: str) -> str:
    """How grave it is that a pickle names "module.name": "danger", "warning", or "" for nothing to tell.

    >>> danger_of("posix.system"), danger_of("builtins.getattr"), danger_of("collections.OrderedDict")
    ('danger', 'warning', '')
    >>> danger_of("torch.os.system"), danger_of("mine.Model"), danger_of("pipes.quote")
    ('danger', '', 'danger')
    """
    name = name.replace("__builtin__.", "builtins.", 1) if name.startswith("__builtin__.") else name
    parts = name.split(".")
    if not _INNER.isdisjoint(parts[1:]):
        return "danger"
    if name in HARMLESS:
        return ""
    if name in STEPS:
        return "warning"
    if parts[0] in _LIBRARY:
        return "" if _is_plain(name, parts) else "danger"
    if not _REACHED.isdisjoint(parts[1:]):
        return "danger"
    heads = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    return "danger" if heads & _MODULES or heads & _RUNS else ""


def is_dangerous(name: str) -> bool:
    """Whether no caller may trust "module.name": it could run, or help to run, anything that a file chooses."""
    return danger_of(name) != ""


def _is_plain(name: str, parts: list[str]) -> bool:
    """Whether a name of Python's own library is excepted: it, its class, its module, or an exception of builtins."""
    if ".".join(parts[:2]) in CLASSES and len(parts) <= 3:
        return True
    if parts[0] in ("builtins", "exceptions") and len(parts) == 2:
        return name.endswith(("Error", "Exception", "Warning"))
    return parts[0] in WHOLE and (
        len(parts) == 2 or (len(parts) == 3 and (parts[1] == "abc" or parts[1][:1].isupper()))
    )
