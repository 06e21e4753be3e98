"""Objects of a module that functions use, for `observed_definitions.py`: source, other source."""

OBJECTS = {
    "attribute": ("class K: pass\nthing = K()\nthing.a = [[1|2]]", "thing.a"),
    "order of attributes": (
        "class K: pass\nthing = K()\nfor n in '[[ab|ba]]': setattr(thing, n, 1)",
        "vars(thing)",
    ),
    "namespace": ("import types\nthing = types.SimpleNamespace([[a=1, b=1|b=1, a=1]])", "thing"),
    "slot": ("class K: __slots__ = ('a',)\nthing = K()\nthing.a = [[1|2]]", "thing.a"),
    "own method": ("class K: pass\nthing = K()\nthing.m = lambda: [[1|2]]", "thing.m()"),
    "own reduction": (
        "class K:\n    def __init__(self, a): self.a = a\n"
        "    def __reduce__(self): return K, (self.a,)\nthing = K([[1|2]])",
        "thing.a",
    ),
    "own state": (
        "class K:\n    def __getstate__(self): return {'a': [[1|2]]}\nthing = K()",
        "thing.a",
    ),
    "state setter": (
        "class K: pass\ndef put(o, s): o.a = s + [[1|2]]\n"
        "class L(K):\n    def __reduce__(self): return K, (), 1, None, None, put\nthing = L()",
        "thing.a",
    ),
    "bound method": (
        "class K:\n    def __init__(self, a): self.a = a\n    def m(self): return self.a\n"
        "thing = K([[1|2]]).m",
        "thing()",
    ),
    "order of a dict": ("thing = [[dict(a=1, b=2)|dict(b=2, a=1)]]", "thing"),
    "set": ("thing = {'a', [['b'|'c']]}", "sorted(thing)"),
    "frozen set": ("thing = [[set|frozenset]](['a'])", "type(thing).__name__"),
    "set of functions": (
        "def a(): return [[1|2]]\ndef b(): return b.__name__\nthing = {a, b}",
        "sorted(map(repr, (g() for g in thing)))",
    ),
    "subclass of set": ("class S(set): pass\nthing = S(['a', [['b'|'c']]])", "sorted(thing)"),
    "subclass of int": ("class I(int): pass\nthing = I([[1|2]])", "int(thing)"),
    "subclass of str": (
        "class S(str): pass\nthing = S('a')\nthing.tag = [[1|2]]",
        "thing.tag",
    ),
    "subclass of list": ("class L(list): pass\nthing = L([ [[1|2]] ])", "list(thing)"),
    "subclass of dict": (
        "class D(dict):\n    def __missing__(self, k): return [[1|2]]\nthing = D()",
        "thing[0]",
    ),
    "ordered dict": (
        "import collections\nthing = collections.OrderedDict([[a=1, b=2|b=2, a=1]])",
        "list(thing)",
    ),
    "default dict": (
        "import collections\nthing = collections.defaultdict([[int|float]])",
        "thing[0]",
    ),
    "deque": ("import collections\nthing = collections.deque([1], [[2|3]])", "thing.maxlen"),
    "mapping": (
        "import types\nthing = [[dict|types.MappingProxyType]]({})",
        "type(thing).__name__",
    ),
    "keys": ("thing = [[{'a': 1}|{'b': 1}]].keys()", "list(thing)"),
    "bytes": ("thing = [[bytes|bytearray]](b'a')", "type(thing).__name__"),
    "range": ("thing = range([[1|2]])", "list(thing)"),
    "date": ("import datetime as d\nthing = d.datetime(2026, 1, 1[[|, fold=1]])", "thing.fold"),
    "zone": ("import zoneinfo\nthing = zoneinfo.ZoneInfo('Europe/[[Berlin|Rome]]')", "thing.key"),
    "decimal": ("import decimal\nthing = decimal.Decimal('1.[[0|00]]')", "thing"),
    "pattern": ("import re\nthing = re.compile('a'[[|, re.I]])", "bool(thing.match('A'))"),
    "logger": ("import logging\nthing = logging.getLogger('[[a|b]]')", "thing.name"),
    "getter": ("import operator\nthing = operator.itemgetter([[0|1]])", "thing('ab')"),
    "generic alias": ("thing = list[ [[int|str]] ]", "thing"),
    "cycle": (
        "a = []; b = []; c = [a]\na += [b, c]; b += [a]\nd = [c]; c[0] = [[b|d]]\nthing = a",
        "thing[1][0][0] is thing",
    ),
    "exception": ("thing = ValueError('[[a|b]]')\nthing.tag = 1", "thing.args"),
    "array": ("import numpy\nthing = numpy.array([1, [[2|3]]])", "thing.tolist()"),
    "type of an array": ("import numpy\nthing = numpy.array([1], '[[i4|i8]]')", "thing.dtype.str"),
    "layout of an array": (
        "import numpy\nthing = numpy.zeros((2, 3), order='[[C|F]]')",
        "thing.flags.f_contiguous",
    ),
    "array to be read": (
        "import numpy\nthing = numpy.zeros(3)\nthing.flags.writeable = [[True|False]]",
        "thing.flags.writeable",
    ),
    "array of objects": ("import numpy\nthing = numpy.array(['a', [[1|2]]], object)", "thing[1]"),
    "masked array": (
        "import numpy\nthing = numpy.ma.masked_array([1, 2], mask=[0, [[0|1]]])",
        "str(thing)",
    ),
    "subclass of array": (
        "import numpy\nclass A(numpy.ndarray):\n    def m(self): return [[1|2]]\n"
        "thing = numpy.zeros(2).view(A)",
        "thing.m()",
    ),
    "frame": ("import pandas\nthing = pandas.DataFrame({'[[a|b]]': [1]})", "list(thing.columns)"),
    "notes of a frame": (
        "import pandas\nthing = pandas.DataFrame({'a': [1]})\nthing.attrs['k'] = [[1|2]]",
        "thing.attrs",
    ),
    "name of an index": (
        "import pandas\nthing = pandas.Series([1], pandas.Index([1], name='[[a|b]]'))",
        "thing.index.name",
    ),
    "categories": (
        "import pandas\nthing = pandas.Categorical(['a'], ['a', 'b'], ordered=[[True|False]])",
        "thing.ordered",
    ),
    "Arrow chunks": (
        "import pyarrow\nA = [ [1], [2] ]\nB = [ [1, 2] ]\nthing = pyarrow.chunked_array([[A|B]])",
        "thing.num_chunks",
    ),
    "Arrow metadata": (
        "import pyarrow\nthing = pyarrow.field('a', 'int32', metadata={'k': '[[a|b]]'})",
        "thing.metadata",
    ),
    "Arrow batch": (
        "import pyarrow\nthing = [[pyarrow.table|pyarrow.record_batch]]({'a': [1]})",
        "type(thing).__name__",
    ),
}
