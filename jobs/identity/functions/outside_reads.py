"""Names by which Python code reads state outside the program: clock, environment, files, random.

A function that uses such a name may return something else in the next run, although its code and
data are the same. The list covers the common names of the standard library and of packages that
are used with PySpark; other packages are not seen. Names that only compute are left out
(`json.loads`, arithmetic on given dates, most of `numpy`). Some short names (`open`, `now`) match
when they are called as a method of any object.
"""

import inspect
import re
import types
from functools import cache

_MEANING = {
    "reads the clock": """
        time.time* time.monotonic* time.perf_counter* time.process_time* time.thread_time*
        time.clock_get* time.localtime time.ctime time.asctime time.strftime time.gmtime
        *.now *.utcnow *.today
        """,
    "reads the environment": """
        os.environ* os._Environ* os.getenv* os.getcwd* os.getpid os.getppid os.getlogin os.getuid
        os.uname os.cpu_count os.process_cpu_count os.sched_getaffinity os.getloadavg
        os.path.expandvars os.path.expanduser os.path.abspath
        os.path.realpath sys.argv sys.orig_argv sys.stdin* builtins.input getpass.* platform.*
        multiprocessing.cpu_count pathlib.*.cwd pathlib.*.home pathlib.*.expanduser
        pathlib.*.resolve pathlib.*.absolute
        """,
    "reads files": """
        builtins.open io.open* io.FileIO io.*Stdin os.open os.stat os.lstat os.fstat os.listdir
        os.scandir os.walk os.fwalk os.access os.readlink os.read os.pread os.path.exists
        os.path.lexists os.path.isfile os.path.isdir os.path.islink os.path.getsize
        os.path.get?time os.path.samefile glob.* codecs.open fileinput.* linecache.* gzip.open
        gzip.GzipFile bz2.open bz2.BZ2File lzma.open lzma.LZMAFile tarfile.* zipfile.ZipFile
        shutil.* tempfile.* mmap.mmap dbm.* shelve.* configparser.* importlib.resources.*
        pkgutil.get_data numpy*.load numpy*.loadtxt numpy*.genfromtxt numpy*.fromfile
        numpy*.memmap numpy*.open_memmap pandas*.read_* pandas*.ExcelFile pandas*.HDFStore
        polars*.read_* polars*.scan_* pyarrow*.memory_map pyarrow*.OSFile pyarrow*.input_stream
        pyarrow*.read_* pyarrow*.open_csv pyarrow*.ParquetFile pyarrow*.ParquetDataset
        pyarrow.dataset.dataset pyarrow.fs.* joblib.*load torch.*load h5py.* openpyxl.load_*
        PIL.Image.open cv2.imread imageio.* fsspec.* s3fs.* gcsfs.* adlfs.* pyspark*SparkFiles*
        """,
    "calls other programs or services": """
        os.popen os.system os.spawn* os.posix_spawn* subprocess.* socket.* ssl.* requests.* httpx.*
        aiohttp.* urllib.request.* urllib3.* http.client.* ftplib.* smtplib.* imaplib.* xmlrpc.*
        sqlite3.* duckdb.* boto3.* botocore.* psycopg*.* pymysql.* MySQLdb.* redis.* pymongo.*
        sqlalchemy.*create_engine kafka.* confluent_kafka.* google.cloud.* elasticsearch.*
        paramiko.* grpc.* mlflow.*
        """,
    "draws random numbers": """
        random.* numpy.random.* secrets.* uuid.uuid1 uuid.uuid4 uuid.getnode os.urandom
        os.getrandom
        """,
    "looks names up while it runs": """
        builtins.eval builtins.exec builtins.__import__ builtins.globals importlib.import_module
        importlib.reload importlib.__import__ importlib._bootstrap.* runpy.* sys.modules*
        """,
}  # fmt: skip
_WITH_ARGUMENTS = re.compile(
    r"random\.Random|time\.gmtime|numpy\.random\.(\w+\.)*(default_rng|RandomState|SeedSequence|"
    r"Generator|BitGenerator|MT19937|PCG64|PCG64DXSM|Philox|SFC64)"
)
"""With a seed or a time as argument, these read nothing."""
_METHODS = {
    **dict.fromkeys(("now", "utcnow", "today"), "reads the clock"),
    **dict.fromkeys(
        ("open", "read_text", "read_bytes", "iterdir", "rglob", "lstat"), "reads files"
    ),
}
_PATH_METHODS = dict.fromkeys(
    ("exists", "stat", "is_file", "is_dir", "glob", "samefile"), "reads files"
)
"""Checked only in code that uses `pathlib`."""
_ALIASES = (
    (re.compile(r"^(posix|nt)\."), "os."),
    (re.compile(r"^(posixpath|ntpath|genericpath)\."), "os.path."),
    (re.compile(r"^_io\."), "io."),
    (re.compile(r"^pathlib\._\w+\."), "pathlib."),
    (re.compile(r"^importlib\._bootstrap\."), "importlib."),
)


def what_is_read(dotted: str, *, bare: bool = False) -> tuple[str, str] | None:
    """Return (meaning, usual name) if the object reads from outside; None if it only computes.

    The meaning is a phrase such as "reads the clock".

    Args:
        dotted: module, name and attributes, such as `os.environ.get`.
        bare: True if it is called without arguments, or passed on without a call.
    """
    for pattern, name in _ALIASES:
        dotted = pattern.sub(name, dotted)
    if _WITH_ARGUMENTS.fullmatch(dotted) and not bare:
        return None
    for meaning, pattern in _patterns():
        if pattern.fullmatch(dotted):
            return meaning, dotted
    return None


def methods_that_read(methods: set[str], *, with_paths: bool) -> dict[str, str]:
    """Return method name -> meaning, for those called methods that read from outside.

    Args:
        with_paths: the code uses `pathlib`.
    """
    known = {**_METHODS, **(_PATH_METHODS if with_paths else {})}
    return {name: known[name] for name in sorted(methods & known.keys())}


def name_of(obj: object) -> str | None:
    """Return `module.name` of a function, class, module or instance; None if it has none."""
    if isinstance(obj, types.ModuleType):
        return obj.__name__
    if isinstance(obj, type):
        return f"{obj.__module__}.{obj.__qualname__}"
    owner = getattr(obj, "__self__", None) if inspect.isroutine(obj) else None
    if owner is not None and not isinstance(owner, types.ModuleType):
        kind = owner if isinstance(owner, type) else type(owner)
        name = getattr(obj, "__name__", "")
        return f"{kind.__module__}.{kind.__qualname__}.{name}"
    if inspect.isroutine(obj):
        name = getattr(obj, "__qualname__", None)
        module = getattr(obj, "__module__", None)
        return f"{module}.{name}" if name and module else None
    return f"{type(obj).__module__}.{type(obj).__qualname__}"


@cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    return [
        (meaning, re.compile("|".join(_as_regex(name) for name in names.split())))
        for meaning, names in _MEANING.items()
    ]


def _as_regex(name: str) -> str:
    return re.escape(name).replace(r"\*", ".*").replace(r"\?", ".")
