"""What functions of the user's modules use: values count, reads from outside are named."""

import json
import os
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from durable_shuffle.jobs.identity.functions.identity import identify_function

ROOT = Path(__file__).parents[3]

SETTINGS = """
import json, os, pathlib
RATES = json.loads((pathlib.Path(__file__).parent / "rates.json").read_text())
RATE = float(os.environ["RATE"])
class Config:
    def __init__(self, rate):
        self.rate = rate
CONFIG = Config(RATES["x"])
"""
HELPER = """
import functools
import numpy as np
import settings
from settings import RATE
TABLE = dict(settings.RATES)
PAIR = tuple(TABLE.values())
FLAT = TABLE["x"]
LIMITS = {"a": [1, {"b": TABLE["x"]}]}
ARRAY = np.array([TABLE["x"]])

def direct_flat(x): return x * FLAT
def direct_table(x): return x * TABLE["x"]
def direct_tuple(x): return x * PAIR[0]
def nested_data(x): return x * LIMITS["a"][1]["b"]
def array(x): return x * ARRAY[0]
def via_module(x): return x * settings.RATES["x"]
def via_instance(x): return x * settings.CONFIG.rate
def whole_module(x): return x * getattr(settings, "RATE")
def _inner(x): return x * FLAT
def via_inner(x): return _inner(x)
def _two(x): return _inner(x)
def two_calls(x): return _two(x)
def local_import(x):
    import settings as s
    return x * s.RATES["x"]
def local_from(x):
    from settings import RATES as r
    return x * r["x"]
def default_arg(x, d=TABLE["x"]): return x * d
def keyword_default(x, *, d=TABLE["x"]): return x * d
def env_at_import(x): return x * RATE
def _env_inner(x): return x * RATE
def env_via_inner(x): return _env_inner(x)
def in_comprehension(x): return sum(x * TABLE[k] for k in TABLE)
def _times(fn):
    factor = TABLE["x"]
    @functools.wraps(fn)
    def inner(x): return factor * fn(x)
    return inner
@_times
def decorated(x): return x
def calls_decorated(x): return decorated(x)
@functools.lru_cache
def cached(x): return x * FLAT
def calls_cached(x): return cached(x)
def by(factor, x): return factor * x
partial = functools.partial(by, TABLE["x"])
def calls_partial(x): return partial(x)
class Base:
    rate = TABLE["x"]
class Scorer(Base):
    def __call__(self, x): return x * self.rate
    def score(self, x): return x * self.rate
    @staticmethod
    def fixed(x): return x * FLAT
    @classmethod
    def shared(cls, x): return x * cls.rate
    @property
    def double(self): return 2 * FLAT
class Child(Scorer):
    pass
class ByProperty:
    @property
    def double(self): return 2 * FLAT
    def __call__(self, x): return x * self.double
SCORER = Scorer()
class Held:
    def __init__(self): self.rate = TABLE["x"]
    def __call__(self, x): return x * self.rate
HELD = Held()
def static_call(x): return Scorer.fixed(x)
def class_attribute(x): return x * Scorer.rate
def makes_one(x): return Child()(x)
def uses_instance(x): return HELD(x)
def nested_function(x):
    def deep(y): return y * TABLE["x"]
    return deep(x)
"""
SEPARATE = """
import json, functools
import helper, settings
from settings import RATES
G = {"x": settings.RATES["x"]}
def main_module_attr(x): return x * settings.RATES["x"]
def main_from_import(x): return x * RATES["x"]
def main_calls_helper(x): return helper.direct_table(x)
def main_default(x, r=G["x"]): return x * r
def main_lazy(x):
    import helper
    return helper.via_inner(x)
def around():
    import settings as inner
    return lambda x: x * inner.RATES["x"]
cases = {k: v for k, v in vars(helper).items()
         if callable(v) and not k.startswith("_") and k not in ("by", "RATE")}
cases |= {k: v for k, v in globals().items() if k.startswith("main_")}
cases["module in a closure"] = around()
cases |= {"callable object": helper.Scorer(), "bound method": helper.Scorer().score,
  "property": helper.ByProperty(), "class method": helper.Child.shared,
  "of a list": [helper.via_inner],
  "partial of an imported": functools.partial(helper.direct_flat),
  "lambda": [lambda x, i=i: x * i for i in (settings.RATES["x"], 2)][0]}
"""
SHOW = """
from durable_shuffle.jobs.identity.functions.identity import identify_function
found = {name: identify_function(case) for name, case in cases.items()}
print(json.dumps({name: [f.digest, list(f.unresolved)] for name, f in found.items()}))
"""


def in_process(folder: Path, code: str, **environ: str) -> dict[str, tuple[str, list[str]]]:
    """What a new Python process finds of the `cases` of a script, with `folder` importable."""
    path = os.pathsep.join([str(ROOT / "src"), str(folder)])
    done = subprocess.run(
        [sys.executable, "-B", "-c", code + SHOW],
        env={**os.environ, "PYTHONPATH": path, **environ},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, tuple[str, list[str]]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_values_of_the_users_modules_count(tmp_path: Path) -> None:
    """Another rate, read when a module was imported, changes whatever uses it; an equal one does
    not."""
    (tmp_path / "settings.py").write_text(SETTINGS)
    (tmp_path / "helper.py").write_text(HELPER)

    def with_rate(rate: str) -> dict[str, tuple[str, list[str]]]:
        (tmp_path / "rates.json").write_text(json.dumps({"x": float(rate)}))
        return in_process(tmp_path, SEPARATE, RATE=rate)

    one, again, two = with_rate("2.0"), with_rate("2.0"), with_rate("3.0")
    assert len(one) > 40
    assert {name: reasons for name, (_, reasons) in one.items() if reasons} == {}
    assert one == again
    assert [name for name in one if one[name][0] == two[name][0]] == []


def test_other_values_do_not_count(tmp_path: Path) -> None:
    """What a function does not use may change, also in a module that a closure holds."""
    source = "import os\nOTHER = os.environ['RATE']\nK = [1]\ndef g(x): return x + K[0]\n"
    (tmp_path / "helper.py").write_text(source)
    code = "import json, helper\ncases = {'g': helper.g, 'm': lambda x: helper.g(x)}\n"
    code += "def around():\n    import helper as h\n    return lambda x: h.g(x)\n"
    code += "cases['c'] = around()\n"
    assert in_process(tmp_path, code, RATE="1") == in_process(tmp_path, code, RATE="2")


READS = {
    "time.time()": ("time", "the clock", "time.time"),
    "T.monotonic_ns()": ("time as T", "the clock", "time.monotonic_ns"),
    "datetime.datetime.now()": ("datetime", "the clock", "now"),
    "datetime.date.today()": ("datetime", "the clock", "today"),
    "pd.Timestamp.now()": ("pandas as pd", "the clock", "now"),
    "pd.Timestamp.utcnow()": ("pandas as pd", "the clock", "utcnow"),
    "os.environ['A']": ("os", "the environment", "os.environ"),
    "os.environ.get('A')": ("os", "the environment", "os.environ.get"),
    "os.getenv('A')": ("os", "the environment", "os.getenv"),
    "os.getcwd()": ("os", "the environment", "os.getcwd"),
    "sys.argv[0]": ("sys", "the environment", "sys.argv"),
    "open(x).read()": ("os", "files", "open"),
    "os.stat(x)": ("os", "files", "os.stat"),
    "os.path.exists(x)": ("os", "files", "os.path.exists"),
    "pathlib.Path(x).read_text()": ("pathlib", "files", "read_text"),
    "pathlib.Path(x).exists()": ("pathlib", "files", "exists"),
    "pd.read_csv(x)": ("pandas as pd", "files", "read_csv"),
    "np.load(x)": ("numpy as np", "files", "numpy.load"),
    "np.random.rand()": ("numpy as np", "random", "numpy.random.rand"),
    "np.random.default_rng().random()": ("numpy as np", "random", "default_rng"),
    "np.random.default_rng(None).random()": ("numpy as np", "random", "default_rng"),
    "random.random()": ("random", "random", "random.random"),
    "random.Random().random()": ("random", "random", "random.Random"),
    "uuid.uuid4()": ("uuid", "random", "uuid.uuid4"),
    "secrets.token_hex()": ("secrets", "random", "secrets.token_hex"),
    "pyspark.SparkFiles.get(x)": ("pyspark", "files", "SparkFiles"),
    "urllib.request.urlopen(x)": ("urllib.request", "services", "urllib.request.urlopen"),
    "subprocess.run(x)": ("subprocess", "programs", "subprocess.run"),
    "socket.gethostname()": ("socket", "services", "socket.gethostname"),
    "importlib.import_module(x)": ("importlib", "looks names up", "importlib.import_module"),
    "eval(x)": ("os", "looks names up", "eval"),
    "pa.cpu_count()": ("pyarrow as pa", "the environment", "cpu_count"),
    "pa.total_allocated_bytes()": ("pyarrow as pa", "the environment", "allocated"),
    "gc.get_objects()": ("gc", "the environment", "gc.get_objects"),
    "pc.call_function(x, [3])": ("pyarrow.compute as pc", "looks names up", "call_function"),
    "logging.makeLogRecord({}).created": ("logging", "the clock", "makeLogRecord"),
    "emm.MIMEMultipart().as_string()": ("email.mime.multipart as emm", "random", "MIMEMultipart"),
    "em.EmailMessage().add_attachment(x)": ("email.message as em", "random", "add_attachment"),
    "sys.modules[x]": ("sys", "looks names up", "sys.modules"),
}
FROM_READS = {
    "time()": ("from time import time", "the clock", "time.time"),
    "datetime.now()": ("from datetime import datetime", "the clock", "now"),
    "environ['A']": ("from os import environ", "the environment", "environ"),
    "Path(x).read_bytes()": ("from pathlib import Path", "files", "read_bytes"),
    "default_rng()": ("from numpy.random import default_rng", "random", "default_rng"),
    "shuffle(x)": ("from random import shuffle", "random", "shuffle"),
    "SparkFiles.get(x)": ("from pyspark import SparkFiles", "files", "SparkFiles"),
    "getattr(random, x)": ("import random", "random", "random"),
    "map(uuid4, x)": ("from uuid import uuid4", "random", "uuid4"),
}


def test_reads_from_outside_are_named(tmp_path: Path) -> None:
    """Whatever a function of the user's reads from outside makes it unresolved by name, in a
    module, through a second function, in the main program, with the import inside."""
    reads = {text: (f"import {what}", *rest) for text, (what, *rest) in READS.items()} | FROM_READS
    module, main = "", "import json, helper\ncases = {}\n"
    expected = {}
    for number, (text, (import_, meaning, name)) in enumerate(reads.items()):
        module += f"{import_}\ndef _r{number}(x): return {text}\n"
        module += f"def r{number}(x): return _r{number}(x)\n"
        main += f"{import_}\ndef m{number}(x): return {text}\n"
        main += f"def i{number}(x):\n    {import_}\n    return {text}\n"
        main += f"cases |= {{'r{number}': helper.r{number}, 'm{number}': m{number}}}\n"
        main += f"cases['i{number}'] = i{number}\n"
        expected |= {f"{kind}{number}": (text, meaning, name) for kind in "rmi"}
    (tmp_path / "helper.py").write_text(module)
    found = in_process(tmp_path, main)
    wrong = {}
    for case, (text, meaning, name) in expected.items():
        user = f"helper._{case}" if case[0] == "r" else case
        reasons = found[case][1]
        if not any(meaning in r and name in r and r.startswith(user) for r in reasons):
            wrong[case, text] = reasons
    assert wrong == {}


@pytest.mark.parametrize(
    ("lazy", "reason"),
    [
        ("import json\nRATE = json.load(open('x'))\ndef work(x): return RATE\n", "reads files"),
        ("from deeper import now\ndef work(x): return now()\n", "reads the clock"),
        ("K = 1\ndef work(x): return x + K\n", None),
    ],
)
def test_module_that_only_workers_import(tmp_path: Path, lazy: str, reason: str | None) -> None:
    """A module that the driver has not loaded is looked through without running it."""
    (tmp_path / "lazy.py").write_text(lazy)
    (tmp_path / "deeper.py").write_text("import datetime as d\ndef now(): return d.date.today()\n")
    code = (
        "import json, sys\ndef f(x):\n    import lazy\n    return lazy.work(x)\ncases = {'f': f}\n"
    )
    (_, reasons) = in_process(tmp_path, code)["f"]
    if reason is None:
        assert reasons == []
    else:
        assert any(reason in found and "which workers import" in found for found in reasons)


ORDINARY = """
import collections, dataclasses, datetime, decimal, enum, functools, hashlib, itertools, json
import logging, math, operator, re, statistics, string, typing, uuid, random, os, pathlib, time
import urllib.parse, zlib, base64, struct, io, csv
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
log = logging.getLogger(__name__)
WORD = re.compile("[a-z]+")
EPOCH = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
FRAME = pd.DataFrame({"a": [1, 2], "b": ["x", None]})
SCHEMA = pa.schema([("a", pa.int64())])
NAMED = collections.namedtuple("NAMED", "a b")
T = typing.TypeVar("T")
class Colour(enum.Enum):
    RED = 1
@dataclasses.dataclass(frozen=True)
class Point:
    x: int = 0
    tags: list = dataclasses.field(default_factory=list)
    def moved(self, by: int) -> "Point":
        return dataclasses.replace(self, x=self.x + by)
class Shape(typing.Protocol):
    def area(self) -> float: ...
def words(x): log.info("words of %s", x); return WORD.findall(x.lower())
def numbers(x): return np.sqrt(np.abs(x)).astype(np.float32).sum() + np.linalg.norm(x)
def frames(pdf): return pdf.merge(FRAME, on="a").groupby("b", as_index=False).agg(n=("a", "sum"))
def columns(pdf): return pdf.assign(today=pdf["d"].dt.date, now=pdf.a).fillna(0).today
def arrow(batches):
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pc.add(batch.column(0), 1)], schema=SCHEMA)
def dates(d): return (d - EPOCH) // datetime.timedelta(days=1), d.isoformat(), d.date().year
def parsed(s): return datetime.datetime.strptime(s, "%Y-%m-%d"), datetime.date.fromisoformat(s)
def stamps(s): return pd.to_datetime(s).dt.floor("D"), pd.Timestamp(s), time.gmtime(3)
def jsons(x): return json.dumps(json.loads(x), sort_keys=True)
def maths(x): return math.floor(math.log(x)) + statistics.mean([x, 2]) + decimal.Decimal("1.5")
def tools(x): return functools.reduce(operator.add, itertools.chain(x, [1])), collections.Counter(x)
def hashed(x): return hashlib.sha256(x).hexdigest(), zlib.crc32(x), base64.b64encode(x)
def texts(x): return string.capwords(x), urllib.parse.urlparse(x).netloc, f"{x!r:>5}"
def named(x): return uuid.uuid5(uuid.NAMESPACE_DNS, x), NAMED(1, 2), Colour.RED, Point(1).moved(x)
def seeded(x): return random.Random(7).random(), np.random.default_rng(x).normal()
def seeded_by_two(x): return np.random.default_rng([1, x]).normal()
def joined(x): return os.path.join("a", x), os.path.basename(x), pathlib.PurePath(x).name, os.sep
def memory(x): return list(csv.reader(io.StringIO(x))), io.BytesIO(b""), struct.unpack("<i", x)
def waits(x): time.sleep(0); return x
def fails(x):
    try:
        return int(x)
    except ValueError as error:
        raise RuntimeError(f"not a number: {x}") from error
    finally:
        log.debug("done")
def generic(x: T, *rest: "int | None", shape: typing.Optional[Shape] = None) -> T:
    assert isinstance(x, (int, str, type(None))); print(x)
    return sorted(set(rest), key=lambda y: -y)
def recursive(x): return 1 if x < 2 else x * recursive(x - 1)
def casts(x): return typing.cast("int", x), bytes(x), dict(a=x), zip(x), getattr(x, "a", None)
"""


def test_ordinary_functions_stay_recognised(tmp_path: Path) -> None:
    """Functions that only compute, with pandas, numpy, Arrow, dates, JSON, are the same in another
    process, whether they are imported or in the main program."""
    (tmp_path / "helper.py").write_text(ORDINARY)
    take = "cases = {{k: v for k, v in vars({}).items() if type(v).__name__ == 'function'}}\n"
    codes = [
        "import json, helper\n" + take.format("helper"),
        ORDINARY + take.format("__import__('__main__')"),
    ]
    for code in codes:
        one = in_process(tmp_path, code, PYTHONHASHSEED="1")
        two = in_process(tmp_path, code, PYTHONHASHSEED="2")
        assert len(one) >= 20
        assert {name: reasons for name, (_, reasons) in one.items() if reasons} == {}
        assert one == two


def test_captured_values_are_those_that_are_used() -> None:
    """Closures, default arguments and globals by function and name; of a module in a closure only
    what the code reads."""
    settings = types.ModuleType("captured_settings")
    vars(settings).update(RATE=2, OTHER=[1])
    sys.modules["captured_settings"] = settings
    run_id = "monday"

    def f(x: int, at: int = 3) -> Any:
        return x, at, run_id, settings.RATE

    try:
        found = identify_function(f)
    finally:
        del sys.modules["captured_settings"]
    name = f.__qualname__
    assert set(found.captured) == {f"{name}.at", f"{name}.run_id", "captured_settings.RATE"}


def test_value_that_cannot_be_compared_is_named(tmp_path: Path) -> None:
    """The sentence says which variable of which module, and of what type."""
    source = "import threading\nGUARD = {'a': threading.Lock()}\ndef g(x):\n    with GUARD['a']:\n"
    (tmp_path / "helper.py").write_text(source + "        return x\n")
    code = "import json, helper\ncases = {'f': lambda x: helper.g(x)}\n"
    (reason,) = in_process(tmp_path, code)["f"][1]
    assert reason.startswith("helper.GUARD.['a'] of type _thread.lock cannot be compared")


def test_many_globals_are_fast() -> None:
    """A module of 1,000 globals and 300 functions that call each other takes below a second."""
    lines = [f"G{n} = {{'a': [{n}] * 20}}" for n in range(1000)]
    for n in range(300):
        used = " + ".join(f"G{(n * 3 + k) % 1000}['a'][0]" for k in range(4))
        called = f"f{n + 1}(x)" if n % 60 != 59 and n < 299 else "0"
        lines.append(f"def f{n}(x): return {used} + {called}")
    lines.append(f"def all_of(x): return {' + '.join(f'f{n}(x)' for n in range(0, 300, 60))}")
    module = types.ModuleType("many_globals")
    exec(compile("\n".join(lines), "many_globals.py", "exec"), vars(module))
    sys.modules["many_globals"] = module
    try:
        start = time.process_time()
        found: Any = identify_function(module.all_of)
        seconds = time.process_time() - start
        assert found.unresolved == ("module many_globals has no source that can be read",)
        assert seconds < 1
        module.G900["a"][0] = -1
        assert identify_function(module.all_of).digest != found.digest
    finally:
        del sys.modules["many_globals"]
