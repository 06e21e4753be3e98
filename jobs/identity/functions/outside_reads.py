"""Decides whether a name in a function's code may read state outside of its arguments.

A function that reads the clock, the environment, files, services or random numbers may return
something else in the next run, although its code and data are the same.

- Python's own library, numpy, pandas, Arrow and PySpark: what is not known to only compute
  (`only_computes`) is named. `_READS` gives the message for names that are known to read.
- Other packages: their files count by version, so names in `_READS` and names that sound like
  reading are named. What they open all the same is seen by the worker's audit hook.
- Some names compute only if they are called in a certain way: with a seed, with a file in memory.

Methods of objects whose type is not known are asked by name.
"""

import builtins
import inspect
import re
import sys
import types
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache

from durable_shuffle.jobs.identity.functions.calls import Way
from durable_shuffle.jobs.identity.functions.code_use import CodeUse
from durable_shuffle.jobs.identity.functions.only_computes import computing, pattern_of

UNKNOWN = "uses what is not known to only compute"
_CLOCK, _ENVIRONMENT, _FILES = "reads the clock", "reads the environment", "reads files"
_SERVICES, _RANDOM = "calls other programs or services", "draws random numbers"
_LOOKUP, _SPARK = "looks names up while it runs", "reads what belongs to one run of a task"
_READS = {
    _CLOCK: """
        time.time* time.monotonic* time.perf_counter* time.process_time* time.thread_time*
        time.clock_get* time.localtime time.ctime time.asctime time.strftime time.gmtime
        *.now *.utcnow *.today email.utils.formatdate email.utils.localtime email.utils.make_msgid
        dateutil.parser.parse dateutil.parser._parser.parse dateutil.parser*.parser* timeit.*
        dateparser.* parsedatetime.* humanize.naturaltime humanize.naturalda* arrow.get
        calendar.prmonth logging.LogRecord* logging.makeLogRecord*
        """,
    _ENVIRONMENT: """
        os.environ* os._Environ* os.getenv* os.getcwd* os.getpid os.getppid os.getlogin os.getuid
        os.uname os.cpu_count os.process_cpu_count os.sched_getaffinity os.getloadavg
        os.path.expandvars os.path.expanduser os.path.abspath os.path.relpath
        os.path.realpath sys.argv sys.orig_argv sys.stdin* builtins.input getpass.* platform.*
        multiprocessing.cpu_count pathlib.*.cwd pathlib.*.home pathlib.*.expanduser
        pathlib.*.resolve pathlib.*.absolute builtins.id locale.*
        threading.get_ident threading.get_native_id psutil.* dotenv.*
        threading.active_count threading.enumerate gc.get_* pyarrow*.cpu_count
        pyarrow*.io_thread_count pyarrow*.total_allocated_bytes pyarrow*.*memory_pool*
        """,
    _FILES: """
        builtins.open io.open* io.FileIO io.*Stdin os.open os.stat os.lstat os.fstat os.listdir
        os.scandir os.walk os.fwalk os.access os.readlink os.read os.pread os.path.exists
        os.path.lexists os.path.isfile os.path.isdir os.path.islink os.path.getsize
        os.path.get?time os.path.samefile glob.* codecs.open fileinput.* linecache.* gzip.open
        gzip.GzipFile* bz2.open bz2.BZ2File* lzma.open lzma.LZMAFile* tarfile.* zipfile.ZipFile*
        zipfile.Path* shutil.* tempfile.* mmap.mmap dbm.* shelve.* importlib.resources.*
        pkgutil.get_data ctypes.CDLL* ctypes.PyDLL* ctypes.cdll* ctypes.pydll* ctypes.util.*
        xml.*parse xml.*iterparse wave.* mimetypes.* gettext.* logging.config.* logging.handlers.*
        logging.FileHandler* pathlib.*.open pathlib.*.read_* pathlib.*.exists pathlib.*.stat
        pathlib.*.is_* pathlib.*.glob pathlib.*.rglob pathlib.*.iterdir pathlib.*.lstat
        pathlib.*.samefile pathlib.*.owner pathlib.*.group pathlib.*.readlink pathlib.*.walk
        numpy*.load numpy*.loadtxt numpy*.genfromtxt numpy*.fromfile numpy*.fromregex
        numpy*.memmap* numpy*.open_memmap numpy*.DataSource* numpy*.load_library numpy*.mafromtxt
        numpy.save* numpy.lib.npyio* numpy.lib._npyio* numpy.lib.format.*
        pandas*.read_* pandas*.ExcelFile* pandas*.ExcelWriter* pandas*.HDFStore* pandas.io.*
        polars*.read_* polars*.scan_* pyarrow*.memory_map pyarrow*.create_memory_map
        pyarrow*.OSFile* pyarrow*.MemoryMappedFile* pyarrow*.input_stream pyarrow*.output_stream
        pyarrow*.CompressedInputStream* pyarrow*.read_* pyarrow*.open_* pyarrow*.ParquetFile*
        pyarrow*.ParquetDataset* pyarrow*.ORCFile* pyarrow.*ipc.RecordBatchFile*
        pyarrow.dataset.* pyarrow._dataset* pyarrow.fs.* pyarrow._fs* pyarrow._s3fs*
        pyarrow.parquet.* pyarrow._parquet* pyarrow.orc.* pyarrow._orc* pyarrow.feather.*
        pyarrow._feather* pyarrow.csv.* pyarrow._csv* pyarrow.json.* pyarrow._json*
        joblib.*load torch.*load h5py.* openpyxl.load_* PIL.Image.open cv2.imread imageio.* fsspec.*
        s3fs.* gcsfs.* adlfs.* pyspark*SparkFiles* pyspark*.read_* jinja2.*FileSystemLoader*
        jinja2.*PackageLoader* jinja2.*ModuleLoader* lxml.*parse *.listdir rasterio.* fiona.*
        geopandas.read_* netCDF4.* xarray.open_* tiktoken.* nltk.* spacy.* smart_open.*
        """,
    _SERVICES: """
        os.popen os.system os.spawn* os.posix_spawn* subprocess.* socket.* ssl.* requests.* httpx.*
        aiohttp.* urllib.request.* urllib3.* http.client.* ftplib.* smtplib.* imaplib.* xmlrpc.*
        poplib.* nntplib.* telnetlib.* socketserver.* asyncio.*create_subprocess_*
        asyncio.*open_connection asyncio.*open_unix_connection asyncio.subprocess.* webbrowser.*
        sqlite3.* duckdb.* boto3.* botocore.* aiobotocore.* psycopg*.* pymysql.* MySQLdb.* redis.*
        pymongo.* sqlalchemy.*create_engine kafka.* confluent_kafka.* google.cloud.* azure.*
        elasticsearch.* opensearchpy.* paramiko.* grpc.* mlflow.* openai.* anthropic.* cassandra.*
        cx_Oracle.* oracledb.* pyodbc.* snowflake.connector* clickhouse*.* hvac.* geopy.geocoders*
        pyarrow.flight.* pyarrow._flight* websockets.* websocket.* dns.* ldap3.* zmq.* pika.*
        """,
    _RANDOM: """
        random.* numpy.random.* secrets.* uuid.uuid1 uuid.uuid4 uuid.uuid6 uuid.uuid7 uuid.getnode
        os.urandom os.getrandom pandas*.sample faker.* shortuuid.* nanoid.* ulid.* ksuid.*
        pyarrow*.random email.*._make_boundary email.mime.multipart.*
        sklearn*.train_test_split sklearn.utils.shuffle sklearn.utils.*.shuffle
        sklearn.utils*.resample scipy*.rvs torch.rand* networkx*random* names.get_*
        """,
    _LOOKUP: """
        builtins.eval builtins.exec builtins.__import__ builtins.globals importlib.import_module
        importlib.reload importlib.__import__ importlib._bootstrap.* runpy.* sys.modules*
        importlib.metadata.* importlib.util.* pkg_resources.* pyarrow*.call_function
        pyarrow*.get_function pyarrow*.function_registry*
        """,
    _SPARK: """
        pyspark*TaskContext* pyspark*SparkSession* pyspark*SparkContext* pyspark.sql.session.*
        pyspark.core.context.* pyspark*SparkConf* pyspark*java_gateway* pyspark*TaskResource*
        """,
    UNKNOWN: """
        numpy.testing* numpy.ctypeslib* numpy.f2py* numpy.distutils* numpy.test numpy.show_*
        numpy.lib.test numpy.info pandas.show_versions pandas.test pyarrow.show_* pyarrow.get_l*
        pyarrow.get_include pyarrow.cuda* pyarrow.benchmark* pyarrow.tests* pyarrow.log_memory*
        pyspark.testing* pyspark.errors_doc_gen* pyspark.install* pyspark.daemon* pyspark.shell*
        """,
}  # fmt: skip
_PROVEN = """
    random.Random.?* numpy.random.*RandomState.?* numpy.random.*Generator.?*
    numpy.random.?*BitGenerator.?*
    pandas.io.formats.* pandas.io.json._normalize.* pyarrow.csv.*Options* pyarrow._csv.*Options*
    pyarrow.json.*Options* pyarrow._json.*Options* pyarrow.ipc.*Options* pyarrow.dataset.field
    pyarrow.dataset.scalar
    yaml.* msgpack.* cbor2.* orjson.* simplejson.* ujson.* rapidjson.* ruamel.* bson.*
    http.HTTPStatus* google.protobuf.* secrets.compare_digest
    pyspark.core.context.*<locals>* pyspark.sql.session.*<locals>*
    """
"""Compute only, although `_READS` or the sound of the name says something else.

The state of a random generator that a function holds counts with its other values.
"""
_SEEDED = re.compile(
    r"random\.Random|numpy\.random\.(\w+\.)*(default_rng|RandomState|SeedSequence|"
    r"Generator|BitGenerator|MT19937|PCG64|PCG64DXSM|Philox|SFC64)"
)
"""With a seed as argument, these read nothing."""
_GIVEN = {
    **dict.fromkeys(("time.gmtime", "time.localtime", "time.ctime", "time.asctime"), 1),
    **dict.fromkeys(("email.utils.formatdate", "email.utils.localtime", "arrow.get"), 1),
    "time.strftime": 2,
}
"""With so many arguments they do not ask the clock."""
_KEYWORDS = {
    "default": re.compile(r"dateutil\.parser.*\.parse"),
    "random_state": re.compile(r"pandas.*\.sample|sklearn.*|scipy.*"),
}
"""Argument that makes the names compute."""
_FILE_ARGUMENT = re.compile(r"xml\.etree\.ElementTree\.ElementTree")
_TELLS_TIME = re.compile(
    pattern_of(
        "pandas*.to_datetime pandas*.Timestamp pandas*.DatetimeIndex pandas*.date_range "
        "pandas*.bdate_range pandas*.Period pandas*.period_range numpy.datetime64 "
        "polars*.datetime* arrow.get pendulum.parse"
    )
)
"""Names that read a text such as "now" as the time of the clock."""
_HOLDS_TEXTS = re.compile(pattern_of("pandas*.Series pandas*.Index pandas*.DataFrame numpy.*array"))
"""Names of what may hold such a text until one of the others reads it."""
_TIME_METHODS = frozenset(
    ("asof", "between", "clip", "fillna", "ge", "gt", "le", "lt", "searchsorted", "truncate")
)
"""Methods of pandas that read such a text as a time if the rows are times."""
_TIME_TYPE = re.compile(r"datetime64|M8")
_SOUNDS = re.compile(
    r"(read|open|load|fetch|download|connect|scan|import|glob)(_\w+)?|urlopen|imread|"
    r"from_(file|path|url|uri|pretrained|disk|filename|env|json_file)\w*|getenv|environ|getcwd|"
    r"urandom|rand|randn|randint|random(_\w+)?|uuid[14]|\w*(FileSystem|File)(Loader|Reader)?|"
    r"(get|make|create)_(connection|session|client)|utcnow|now|today|is_?file|is_?dir|exists"
)
"""What a name of a package that no list holds is called if it may read."""
_CURRENT = ("now", "utcnow", "today")
_METHODS = {
    **dict.fromkeys(_CURRENT, _CLOCK),
    **dict.fromkeys(("open", "read_text", "read_bytes", "iterdir", "rglob", "lstat"), _FILES),
    **dict.fromkeys(("sample", "samples", "rvs"), _RANDOM),
}
_METHODS_WITH = {
    "pathlib": dict.fromkeys(
        ("exists", "stat", "is_file", "is_dir", "is_symlink", "glob", "samefile", "walk",
         "open", "read_text", "read_bytes", "iterdir", "rglob", "lstat", "readlink", "is_mount"),
        _FILES,
    )
    | dict.fromkeys(("cwd", "home", "expanduser", "resolve", "absolute"), _ENVIRONMENT),
    "xml": dict.fromkeys(("parse",), _FILES),
    "configparser": dict.fromkeys(("read",), _FILES),
    "mimetypes": dict.fromkeys(("read", "init"), _FILES),
    "email": dict.fromkeys(  # make a boundary of random digits
        ("make_mixed", "make_related", "make_alternative", "add_attachment", "add_related",
         "add_alternative"),
        _RANDOM,
    ),
}  # fmt: skip
"""Module that code uses -> attributes, called or not, that read there."""
_ZONE = re.compile(
    r"time\.(localtime|mktime|ctime|strftime|asctime|timezone|altzone|tzname|daylight)|"
    r"dateutil\.tz.*|tzlocal.*|email\.utils\.(formatdate|localtime|mktime_tz|format_datetime)|"
    r"datetime\.(datetime|date)\.(fromtimestamp|astimezone|timestamp|strftime)|"
    r"pandas.*\.(fromtimestamp|timestamp)"
)
_RULES = re.compile(
    r"zoneinfo\b.*|pytz\b.*|dateutil\.tz\b.*|"
    r"pyarrow\.compute\.(assume_timezone|local_timestamp|strftime|strptime)"
)
_RULES_METHODS = frozenset({"tz_localize", "tz_convert", "ZoneInfo", "astimezone"})
_ZONE_METHODS = frozenset({"fromtimestamp", "astimezone", "timestamp", "mktime", "tzlocal"})
_OF_TRIES = frozenset(
    ("getLocalProperty", "attemptNumber", "taskAttemptId", "stageId", "resources", "cpus")
)
_RAISES_EVENTS = re.compile(
    pattern_of("copy.deepcopy pickle.load* pickle.Unpickler* cloudpickle.*load* dill.load*")
)
_LISTED = frozenset({"numpy", "pandas", "pyarrow", "pyspark"})
_ALIASES = (
    (re.compile(r"^(posix|nt)\."), "os."),
    (re.compile(r"^(posixpath|ntpath|genericpath)\."), "os.path."),
    (re.compile(r"^_(blake2|md5|sha\w*)\."), "hashlib."),
    (re.compile(r"^pathlib\._\w+\."), "pathlib."),
    (re.compile(r"^importlib\._bootstrap\."), "importlib."),
    (re.compile(r"^zipfile\._path\b"), "zipfile"),
    (re.compile(r"^multiprocessing\.context\.\w+\."), "multiprocessing."),
)
_HOMES = {
    "_pydecimal": "decimal", "_pydatetime": "datetime", "_pyio": "io", "_py_abc": "abc",
    "_strptime": "time.strptime", "_weakrefset": "weakref", "_sre": "re", "_elementtree":
    "xml.etree.ElementTree", "_frozen_importlib": "importlib._bootstrap",
    "_frozen_importlib_external": "importlib._bootstrap", "_posixsubprocess": "subprocess",
    "_thread": "threading",
}  # fmt: skip


@lru_cache(maxsize=1 << 16)
def what_is_read(dotted: str, ways: frozenset[Way] = frozenset()) -> tuple[str, str] | None:
    """Return (meaning, usual name) if a name of a library may read from outside; else None.

    The meaning is a phrase such as "reads the clock".

    Args:
        dotted: module, name and attributes, such as `os.environ.get`.
        ways: how the code calls it; empty for an object that is only held.
    """
    dotted = _usual(dotted)
    if _proven().fullmatch(dotted):
        return None
    if ways and _FILE_ARGUMENT.fullmatch(dotted) and any(map(_names_a_file, ways)):
        return _FILES, dotted
    for meaning, pattern in _patterns():
        if pattern.fullmatch(dotted):
            # what is only held was made by code that is asked, or with its other values it counts
            held = not ways and _SEEDED.fullmatch(dotted)
            called = bool(ways) and all(_computes(dotted, meaning, way) for way in ways)
            return None if held or called else (meaning, dotted)
    top, _, below = dotted.partition(".")
    if top in sys.stdlib_module_names or top in _LISTED:
        if top == "builtins" and not hasattr(builtins, below.partition(".")[0]):
            return None  # a type of Python's that has no name
        return None if _computing().fullmatch(dotted) else (UNKNOWN, dotted)
    if any(map(_SOUNDS.fullmatch, below.split("."))) and not (
        ways and all(way.memory for way in ways)
    ):
        return UNKNOWN, dotted
    return None


def _computes(dotted: str, meaning: str, way: Way) -> bool:
    """Return whether a name that may read only computes if it is called in this way."""
    given = way.positional > 0 and not way.nothing
    if _SEEDED.fullmatch(dotted):
        return given or bool(way.keywords)
    if dotted in _GIVEN:
        return (given and way.positional >= _GIVEN[dotted]) or bool(way.keywords - {"localtime"})
    for keyword, pattern in _KEYWORDS.items():
        if pattern.fullmatch(dotted):
            return keyword in way.keywords
    return meaning == _FILES and way.memory


def _names_a_file(way: Way) -> bool:
    return not way.called or way.positional > 1 or "file" in way.keywords


def methods_that_read(
    methods: Mapping[str, Iterable[Way]], attributes: Iterable[str], modules: Iterable[str]
) -> dict[str, str]:
    """Return name -> meaning, for methods of any object that read from outside.

    Args:
        methods: called on any object -> how.
        attributes: read from any object, called or not.
        modules: whose names the code uses.
    """
    found = {
        name: _METHODS[name]
        for name in sorted(methods.keys() & _METHODS.keys())
        if not all(_is_harmless(_METHODS[name], way) for way in methods[name])
    }
    for module in sorted(set(modules) & _METHODS_WITH.keys()):
        known = _METHODS_WITH[module]
        found |= {name: known[name] for name in sorted(known.keys() & set(attributes))}
    return found


def _is_harmless(meaning: str, way: Way) -> bool:
    """Return whether a method that may read computes if it is called in this way."""
    # random.Random().sample takes two arguments, pandas' sample a seed
    by_random = way.positional >= 2 or "k" in way.keywords
    seeded = way.called and (by_random or bool(way.keywords & {"random_state", "seed"}))
    return (meaning == _RANDOM and seeded) or (meaning == _FILES and way.memory)


def only_numbers_partitions(dotted: str, methods: Iterable[str], attributes: Iterable[str]) -> bool:
    """Return whether code asks Spark's task context for the number of the partition alone.

    The plan decides it, as it does for `spark_partition_id()`.
    """
    of_task = dotted.endswith(("TaskContext", "TaskContext.get"))
    return of_task and "partitionId" in set(methods) and _OF_TRIES.isdisjoint(attributes)


def asks_clock(uses: Mapping[str, Iterable[Way]], use: CodeUse) -> str | None:
    """Return what reads a text such as "now" as the time of the clock.

    Args:
        uses: dotted name -> how the code calls it.
    """
    if use.compared:
        return "a comparison"
    for name, ways in use.methods.items():
        if name in _TIME_METHODS and any(way.moment for way in ways):
            return name
    told = any(way.moment for ways in (*uses.values(), *use.methods.values()) for way in ways)
    if (told or use.moments) and any(map(_TIME_TYPE.fullmatch, use.words)):
        return "a conversion"
    names = {name: list(ways) for name, ways in uses.items()}
    readers = sorted(name for name in names if _TELLS_TIME.fullmatch(_usual(name)))
    holders = [name for name in names if _HOLDS_TEXTS.fullmatch(_usual(name))]
    held = any(way.moment for name in holders for way in names[name])
    for name in readers:
        if any(way.moment for way in names[name]) or held or use.moments:
            return name
    for name in holders:
        if any(way.moment and "dtype" in way.keywords for way in names[name]):
            return name
    return None


def raises_events(names: Iterable[str]) -> bool:
    """Return whether code makes Python raise audit events by the thousand, each of which costs."""
    return any(_RAISES_EVENTS.fullmatch(_usual(name)) for name in names)


def asks_zone(names: Iterable[str], attributes: Iterable[str]) -> set[str]:
    """Return what of `zones` the result depends on: "process", "rules", both or nothing."""
    usual = [_usual(name) for name in names]
    found = set()
    if not _ZONE_METHODS.isdisjoint(attributes) or any(map(_ZONE.fullmatch, usual)):
        found.add("process")
    if not _RULES_METHODS.isdisjoint(attributes) or any(map(_RULES.fullmatch, usual)):
        found.add("rules")
    return found


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
        if owner is _hidden("random", "_inst"):
            return f"random.{name}"
        if owner is _hidden("numpy.random.mtrand", "_rand"):
            return f"numpy.random.{name}"
        return f"{kind.__module__}.{kind.__qualname__}.{name}"
    if inspect.isroutine(obj):
        name = getattr(obj, "__qualname__", None)
        module = getattr(obj, "__module__", None)
        return f"{module}.{name}" if name and module else None
    return f"{type(obj).__module__}.{type(obj).__qualname__}"


def _hidden(module: str, name: str) -> object:
    """Return the generator behind the functions of a module, which has no seed of the user's."""
    return getattr(sys.modules.get(module), name, _hidden)


def _usual(dotted: str) -> str:
    """Return the name under which users know what a library keeps in a private module."""
    top, dot, below = dotted.partition(".")
    if top[:1] == "_":
        top = _HOMES.get(top, top[1:] if top[1:] in sys.stdlib_module_names else top)
        dotted = f"{top}{dot}{below}"
    for pattern, name in _ALIASES:
        dotted = pattern.sub(name, dotted)
    return dotted


@cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    return [(meaning, re.compile(pattern_of(names))) for meaning, names in _READS.items()]


@cache
def _proven() -> re.Pattern[str]:
    return re.compile(pattern_of(_PROVEN))


@cache
def _computing() -> re.Pattern[str]:
    return computing()
