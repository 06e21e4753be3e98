"""Names of Python's own library, numpy, pandas, Arrow and PySpark that are known to only compute.

What code names in these libraries and is not matched here makes the code unrecognised: a name that
is missing costs time, a name too many wrong rows. So a name stands here only if its result follows
from its arguments, from the code that is compared, and from the zone of the process, which counts
where code asks for it (`outside_reads.asks_zone`). `outside_reads` asks first for names that are
known to read; those of a namespace that stands here as a whole are taken away there.
"""

import re

_WHOLE = """
    __future__ abc array ast base64 binascii bisect cmath collections colorsys contextlib
    contextvars copy copyreg csv dataclasses decimal difflib enum errno fnmatch fractions functools
    gc getopt graphlib hashlib heapq hmac html ipaddress itertools json keyword logging marshal math
    numbers operator pickle pprint queue quopri re reprlib shlex stat statistics string
    stringprep struct textwrap threading tomllib traceback types typing unicodedata warnings weakref
    zlib
    calendar concurrent.futures encodings http.HTTPStatus multiprocessing.pool.ThreadPool
    urllib.parse urllib.error zoneinfo datetime
    xml.sax.saxutils xml.sax.handler xml.sax.xmlreader xml.parsers.expat xml.dom.Node
    pyexpat email.charset email.contentmanager email.encoders email.errors email.header
    email.headerregistry email.message email.mime email.parser email.policy email.quoprimime
    email.base64mime email.generator email.feedparser
    """
"""Modules and classes, each with everything below it."""
_NAMES = """
    asyncio.run asyncio.sleep asyncio.gather asyncio.wait asyncio.wait_for asyncio.create_task
    asyncio.as_completed asyncio.Semaphore asyncio.Lock asyncio.Event asyncio.Queue
    asyncio.TimeoutError asyncio.timeout asyncio.to_thread asyncio.Task asyncio.Future
    asyncio.CancelledError asyncio.get_event_loop asyncio.new_event_loop asyncio.Runner*
    asyncio.set_event_loop asyncio.run_coroutine_threadsafe asyncio.iscoroutine*
    asyncio.*.Semaphore asyncio.*.Lock asyncio.*.Event asyncio.*.Queue asyncio.*.gather
    asyncio.*.run asyncio.*.sleep asyncio.*.wait asyncio.*.wait_for asyncio.*.create_task
    bz2.compress bz2.decompress bz2.BZ2Compressor* bz2.BZ2Decompressor* gzip.compress
    gzip.decompress gzip.BadGzipFile lzma.compress lzma.decompress lzma.LZMACompressor*
    lzma.LZMADecompressor* lzma.FORMAT_* lzma.CHECK_* lzma.LZMAError
    codecs.encode codecs.decode codecs.get* codecs.lookup* codecs.BOM* codecs.iter*
    codecs.Incremental* codecs.Codec* codecs.escape_* codecs.register_error codecs.*_errors
    codecs.utf_* codecs.ascii_* codecs.latin_1_* codecs.charmap_* codecs.Stream*
    ctypes.c_* ctypes.sizeof ctypes.Structure* ctypes.Union* ctypes.Array ctypes.*Endian*
    email.message_from_* email.utils.parse* email.utils.format_datetime email.utils.formataddr
    email.utils.getaddresses email.utils.*quote email.utils.mktime_tz email.utils.decode_*
    email.utils.encode_* email.utils.collapse_* email._parseaddr.* email._policybase.*
    html.parser.*
    inspect.signature inspect.is* inspect.Signature* inspect.Parameter* inspect.getmembers
    inspect.getdoc inspect.cleandoc inspect.getmro inspect.unwrap inspect._empty inspect._Param*
    io.BytesIO* io.StringIO* io.TextIOWrapper* io.Buffered* io.BytesIO io.IOBase* io.RawIOBase*
    io.TextIOBase* io.SEEK_* io.DEFAULT_BUFFER_SIZE io.UnsupportedOperation io._IOBase*
    io.IncrementalNewlineDecoder*
    os.path.join os.path.basename os.path.dirname os.path.split* os.path.normpath os.path.normcase
    os.path.isabs os.path.common* os.path.sep os.path.altsep os.path.extsep os.path.pathsep
    os.path.curdir os.path.pardir os.sep os.altsep os.extsep os.pathsep os.linesep os.curdir
    os.pardir os.devnull os.name os.fspath os.fsencode os.fsdecode os.PathLike os.strerror
    os.error os.SEEK_* os.O_*
    pathlib.PurePath* pathlib.PurePosixPath* pathlib.PureWindowsPath* pathlib.Path pathlib.PosixPath
    pathlib.Path.* pathlib.PosixPath.*
    configparser.ConfigParser* configparser.RawConfigParser* configparser.*Error
    configparser.*Interpolation configparser.SectionProxy*
    plistlib.loads plistlib.dumps plistlib.FMT_* plistlib.UID*
    random.Random* random.getstate
    secrets.compare_digest
    sys.maxsize sys.maxunicode sys.float_info* sys.int_info* sys.hash_info* sys.byteorder
    sys.version_info* sys.version sys.hexversion sys.implementation* sys.api_version
    sys.exc_info sys.exception sys.exit sys.intern sys.getsizeof sys.getrefcount
    sys.getrecursionlimit sys.setrecursionlimit sys.getdefaultencoding sys.stdout* sys.stderr*
    sys.__stdout__ sys.__stderr__ sys.platform sys.getfilesystemencoding sys.warnoptions
    time.sleep time.strptime time.struct_time* time.mktime time.timezone time.altzone time.tzname
    time.daylight
    uuid.UUID* uuid.uuid3 uuid.uuid5 uuid.NAMESPACE_* uuid.SafeUUID* uuid.RESERVED_* uuid.RFC_*
    xml.etree.ElementTree.fromstring* xml.etree.ElementTree.XML* xml.etree.ElementTree.tostring*
    xml.etree.ElementTree.Element xml.etree.ElementTree.Element.* xml.etree.ElementTree.SubElement
    xml.etree.ElementTree.ElementTree xml.etree.ElementTree.QName* xml.etree.ElementTree.Comment
    xml.etree.ElementTree.TreeBuilder* xml.etree.ElementTree.ParseError
    xml.etree.ElementTree.ProcessingInstruction xml.etree.ElementTree.PI
    xml.etree.ElementTree.indent xml.etree.ElementTree.dump xml.etree.ElementTree.iselement
    xml.etree.ElementTree.register_namespace xml.etree.ElementTree.ElementTree.get*
    xml.etree.ElementTree.ElementTree.find* xml.etree.ElementTree.ElementTree.iter*
    elementtree.* xml.etree.ElementPath.*
    xml.dom.minidom.parseString xml.dom.minidom.Document* xml.dom.minidom.Element*
    xml.dom.minidom.Node* xml.dom.minidom.Text* xml.dom.minidom.Attr* xml.dom.minidom.getDOM*
    xml.sax.parseString xml.sax.ContentHandler* xml.sax.SAX*Exception xml.sax.ErrorHandler*
    zipfile.BadZipFile zipfile.ZIP_* zipfile.is_zipfile zipfile.LargeZipFile zipfile.ZipInfo*
    tarfile.TarError tarfile.ReadError tarfile.TarInfo*
    http.cookies.* json.tool.* http.HTTPMethod*
    multiprocessing.dummy.* timeit.default_repeat wsgiref.headers.*
    """
_PACKAGES = """
    numpy.?* pandas.?* pyarrow.?* pyspark.?*
    """
"""Less what `outside_reads` says of them. A bare name of the package may stand for any of these."""
_BUILTINS = """
    abs aiter all anext any ascii bin bool bytearray bytes callable chr classmethod complex delattr
    dict dir divmod enumerate filter float format frozenset getattr hasattr hash hex int
    isinstance issubclass iter len list locals map max memoryview min next object oct ord pow print
    property range repr reversed round set setattr slice sorted staticmethod str sum super tuple
    type vars zip __build_class__ __debug__ __name__ __doc__ Ellipsis NotImplemented True False None
    NoneType function builtin_function_or_method method module generator ellipsis cell code
    method_descriptor wrapper_descriptor mappingproxy getset_descriptor member_descriptor coroutine
    async_generator method-wrapper classmethod_descriptor traceback frame PyCapsule
    """
_EXCEPTIONS = r"builtins\.\w*(Error|Exception|Warning|Exit|Interrupt|Iteration|ExceptionGroup)"


def pattern_of(names: str) -> str:
    """Return a regular expression for names with `*` (anything) and `?` (one character)."""
    return "|".join(
        re.escape(name).replace(r"\*", ".*").replace(r"\?", ".") for name in names.split()
    )


def computing() -> re.Pattern[str]:
    """Return what matches the dotted names that only compute."""
    whole = "|".join(rf"{re.escape(name)}(\..*)?" for name in _WHOLE.split())
    built_in = "|".join(rf"builtins\.{re.escape(name)}(\..*)?" for name in _BUILTINS.split())
    rest = f"{pattern_of(_NAMES)}|{pattern_of(_PACKAGES)}"
    return re.compile(rf"{whole}|{built_in}|{rest}|{_EXCEPTIONS}(\..*)?")
