"""What a worker sees of a function beside its values: its place in the source, what is one object,
the order of a set. Whatever gives another value in a worker gives another digest."""

import pytest
from sent_functions import Sent, in_driver, in_worker

TRIES = "def f(x):\n    try:\n        1 / 0\n    except Exception as e:\n        return {}\n"
LOGS = """
import io, logging
def f(x):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    {}
    logger = logging.Logger("l")
    logger.addHandler(handler)
    try:
        1 / 0
    except Exception:
        logger.{}
    return stream.getvalue()
"""
WARNS = """
def f(x):
    import warnings
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn("w")
        return {}
"""
SEE = {
    "traceback": "import traceback\n" + TRIES.format("traceback.format_exc()"),
    "from traceback": "from traceback import format_tb as t\n" + TRIES.format("t(e.__traceback__)"),
    "tb_lineno": TRIES.format("e.__traceback__.tb_lineno"),
    "frame": TRIES.format("e.__traceback__.tb_frame.f_code.co_name, e.__traceback__.tb_lineno"),
    "getattr": TRIES.format("getattr(getattr(e, '__traceback__'), 'tb_lineno')"),
    "attrgetter": "import operator\n"
    + TRIES.format("operator.attrgetter('__traceback__.tb_lineno')(e)"),
    "exc_info": "import sys\n" + TRIES.format("sys.exc_info()[2].tb_lineno"),
    "__code__": "def f(x): return f.__code__.co_firstlineno\n",
    "co_lines": "def f(x): return list(f.__code__.co_lines())\n",
    "another's": "def g(): pass\ndef f(x): return g.__code__.co_firstlineno\n",
    "generator": "def g(): yield 1\ndef f(x): return g().gi_code.co_firstlineno\n",
    "in a class": "class K:\n    def m(self): return K.m.__code__.co_firstlineno\n"
    "def f(x): return K().m()\n",
    "format": LOGS.format("handler.setFormatter(logging.Formatter('%(lineno)d'))", "error('m')"),
    "logger.exception": LOGS.format("pass", "exception('m')"),
    "record": WARNS.format("seen[0].lineno"),
    "text of a warning": WARNS.format("str(seen[0])"),
    "cloudpickle": "from pyspark import cloudpickle\n"
    "def f(x): return cloudpickle.dumps(lambda: 1).hex()\n",
}
"""Functions that can see where they stand."""
BLIND = {
    "a data class": "import dataclasses\n@dataclasses.dataclass\nclass K:\n    n: int\n"
    "def f(x): return K(x).n\n",
    "a model": """
from pydantic import BaseModel, field_validator
class P(BaseModel):
    n: int = 1
    @field_validator('n')
    def v(cls, n): return n + 1
class K(BaseModel):
    of: P
    others: list[P] = []
def f(x): return K(of={'n': x}).of.n
""",
    "of attrs": "import attr\n@attr.s(auto_attribs=True)\nclass K:\n    n: int\n"
    "def f(x): return repr(K(x))\n",
    "an enum": "import enum\nclass E(enum.Enum):\n    a = 1\ndef f(x): return E.a.value\n",
    "logs": "import logging\nlogger = logging.getLogger('a')\n"
    "def f(x):\n    logger.warning('m')\n    return x\n",
    "warns": "import warnings\ndef f(x):\n    warnings.warn('m')\n    return x\n",
    "warns not": "import warnings\ndef f(x):\n    with warnings.catch_warnings():\n"
    "        warnings.simplefilter('ignore')\n        return x + 1\n",
    "raises": "def f(x):\n    try:\n        raise ValueError('a')\n    except ValueError as e:\n"
    "        return str(e)\n",
    "type of error": "import sys\n" + TRIES.format("sys.exc_info()[0].__name__"),
}
"""Functions that use the same things and cannot."""
PAIRS = {
    "one list twice": (
        "a = [1]\nk = [a, a]\ndef f(x):\n    k[0].append(x)\n    return k\n",
        "k = [[1], [1]]\ndef f(x):\n    k[0].append(x)\n    return k\n",
    ),
    "two names of one list": (
        "a = [1]\nb = a\ndef f(x): return a is b\n",
        "a = [1]\nb = [1]\ndef f(x): return a is b\n",
    ),
    "one array twice": (
        "import numpy as np\na = np.zeros(1)\nb = a\ndef f(x):\n    a[0] += 1\n    return b[0]\n",
        "import numpy as np\na = np.zeros(1)\nb = np.zeros(1)\n"
        "def f(x):\n    a[0] += 1\n    return b[0]\n",
    ),
    "one instance twice": (
        "class K: n = 0\na = K()\nb = a\ndef f(x):\n    a.n = x\n    return b.n\n",
        "class K: n = 0\na = K()\nb = K()\ndef f(x):\n    a.n = x\n    return b.n\n",
    ),
    "one tuple of a list twice": (
        "a = ([1],)\nk = [a, a]\ndef f(x):\n    k[0][0].append(x)\n    return k\n",
        "k = [([1],), ([1],)]\ndef f(x):\n    k[0][0].append(x)\n    return k\n",
    ),
    "one bytearray twice": (
        "a = bytearray(b'a')\nk = [a, a]\ndef f(x):\n    k[0].append(x)\n    return k\n",
        "k = [bytearray(b'a'), bytearray(b'a')]\ndef f(x):\n    k[0].append(x)\n    return k\n",
    ),
    "one function twice": (
        "a = lambda: 1\nk = [a, a]\ndef f(x):\n    k[0].n = x\n    return hasattr(k[1], 'n')\n",
        "k = [(lambda: 1), (lambda: 1)]\n"
        "def f(x):\n    k[0].n = x\n    return hasattr(k[1], 'n')\n",
    ),
    "a text like an address in a model": tuple(
        "import pydantic\nclass P(pydantic.BaseModel):\n"
        f"    n: dict = {{'ref': '__main__.P:{number}'}}\ndef f(x): return P().n\n"
        for number in (1234567, 7654321)
    ),
    "in a default": (
        "a = [1]\ndef f(x, p=a, q=a):\n    p.append(x)\n    return q\n",
        "a = [1]\nb = [1]\ndef f(x, p=a, q=b):\n    p.append(x)\n    return q\n",
    ),
    "order of a set": (
        "s = frozenset([8, 0])\ndef f(x): return list(s)\n",
        "s = frozenset([0, 8])\ndef f(x): return list(s)\n",
    ),
    **{
        f"order of a set: {name}": tuple(
            f"{text}\ndef f(x): return [m for m in s if m is not None]\n"
            for text in (made, made.replace("[0, 8]", "[8, 0]"))
        )
        for name, made in {
            "fractions": "from fractions import Fraction\ns = {Fraction(n) for n in [0, 8]}",
            "decimals": "from decimal import Decimal\ns = {Decimal(n) for n in [0, 8]}",
            "numpy": "import numpy as np\ns = {np.int64(n) for n in [0, 8]}",
            "complex": "s = {complex(n) for n in [0, 8]}",
            "members of an enum": "import enum\nE = enum.IntEnum('E', {'a': 0, 'b': 8})\n"
            "s = {E(n) for n in [0, 8]}",
            "beside None": "s = {None, *[0, 8]}",
        }.items()
    },
    **{
        f"order of a set: objects with a hash of their own, {name}": tuple(
            f"class P:\n{body}"
            "    def __hash__(self): return self.n\n    def __eq__(self, o): return self.n == o.n\n"
            f"s = {{P(n) for n in {made}}}\ndef f(x): return [p.n for p in s]\n"
            for made in ("[0, 8]", "[8, 0]")
        )
        for name, body in {
            "attributes": "    def __init__(self, n): self.n = n\n",
            "slots": "    __slots__ = 'n'\n    def __init__(self, n): self.n = n\n",
        }.items()
    },
    "instance of another class of that name": (
        "class K: pass\na = K()\ndef f(x): return isinstance(a, K)\n",
        "class K: pass\na = K()\nclass K: pass\ndef f(x): return isinstance(a, K)\n",
    ),
    "another function of that name": (
        "def g(): pass\nd = {g: 1}\ndef f(x): return d.get(g)\n",
        "def g(): pass\nd = {g: 1}\ndef g(): pass\ndef f(x): return d.get(g)\n",
    ),
    "order of a set in code": (
        "def f(x): return [n for n in (0, 8, 16) if n in {8, 0}], next(iter(k))\nk = {8, 0}\n",
        "def f(x): return [n for n in (0, 8, 16) if n in {8, 0}], next(iter(k))\nk = {0, 8}\n",
    ),
}
ALL = [*SEE, *BLIND, *PAIRS]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[Sent, str]]]:
    """Of each pair of programs: the functions and what a worker gives. The third is the first one
    in a driver with other hashes."""
    folder = tmp_path_factory.mktemp("places")
    moved = {name: (text, f"\n\n# moved\n{text}") for name, text in (SEE | BLIND).items()}
    pairs = {**moved, **PAIRS}
    sent = in_driver([text for name in ALL for text in pairs[name]], folder)
    again = in_driver([pairs[name][0] for name in ALL], folder, seed="7")
    given = in_worker([*sent, *again], folder)
    shown = list(zip([*sent, *again], given, strict=True))
    return {name: [*shown[2 * at :][:2], shown[2 * len(ALL) + at]] for at, name in enumerate(ALL)}


@pytest.mark.parametrize("name", [*SEE, *PAIRS])
def test_what_a_worker_sees_counts(seen: dict[str, list[tuple[Sent, str]]], name: str) -> None:
    """Another value in a worker, another digest; the same in every process of the driver."""
    (one, gives), (other, gives_other), (again, _) = seen[name]
    assert gives != gives_other
    assert "cannot" not in gives
    assert one.digest != other.digest
    assert one.digest == again.digest == one.unpickled == one.afterwards
    assert one.unresolved == ()


@pytest.mark.parametrize("name", BLIND)
def test_what_no_worker_sees_does_not(seen: dict[str, list[tuple[Sent, str]]], name: str) -> None:
    """A function may move in its script if its rows cannot say where it stands."""
    (one, gives), (moved, gives_moved), (again, _) = seen[name]
    assert gives == gives_moved
    assert one.pickled != moved.pickled
    assert one.digest == moved.digest == again.digest
    assert one.unresolved == ()
