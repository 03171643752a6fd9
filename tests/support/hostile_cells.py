"""Ways to ask for points without having earned them, each a cell of a notebook whose two answers are wrong.

By name, the source of a cell. It stands in front of the notebook, or in place of the answer `acceptance` where it
defines that. Whatever it does, the two tests may give no point, and the table of marks has to name the submission.
"""

WRONG = {"acceptance": "def acceptance(p, q):\n    return 2", "mean": "def mean(values):\n    return 0.123", "why": ""}
FIND_SEND = """
def forge(values):
    for value in values:
        if callable(value) and getattr(value, "__name__", "") == "send":
            for cell in range(20):
                value("points", cell, "8")
"""
HOSTILE = {
    "the check called something else": """
from specdec_course.checks import Check
Check.__call__ = lambda self, *learners, points=1, seed=None: points""",
    "the parts of the checks emptied": """
from specdec_course.checks import example
example.acceptance.parts.clear()
example.mean.parts[:] = [lambda *a: None]""",
    "the code of a part replaced": """
import specdec_course.checks.example as example
for part in (*example.acceptance.parts, *example.mean.parts):
    part.__code__ = (lambda *a: None).__code__""",
    "the defaults of the check replaced": """
from specdec_course.checks import Check
Check.__call__.__kwdefaults__ = {"points": 8, "seed": 1}""",
    "a builtin shadowed in the module of the checks": """
import specdec_course.checks.example as example
example.abs = lambda x: 0""",
    "the failure made a success": """
import specdec_course.checks.example as example
example.wrong = lambda *a, **k: StopIteration()""",
    "the base class of the check": """
from specdec_course.checks import Check
class Kind:
    def __getattribute__(self, name): return []
try: Check.__bases__ = (Kind,)
except TypeError: Check.parts = []""",
    "another module under the name of the checks": """
import sys, types
fake = types.ModuleType("fake")
fake.acceptance = fake.mean = lambda *a, points: points
sys.modules["specdec_course.checks.example"] = fake""",
    "an attribute of the package": """
import types, specdec_course.checks
free = lambda *a, points: points
specdec_course.checks.example = types.SimpleNamespace(acceptance=free, mean=free)""",
    "an import hook": """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None): return None
sys.meta_path.insert(0, Finder())""",
    "the name of the checks bound anew": """
class checks:
    mean = acceptance = lambda *a, points: points
def acceptance(p, q): return 2""",
    "the builtins of the namespace": """
import builtins
__builtins__ = dict(vars(builtins), abs=lambda x: 0)""",
    "builtins replaced": """
import builtins
builtins.abs = lambda x: 0
builtins.round = lambda *a: 8""",
    "isinstance and len replaced": """
import builtins
builtins.isinstance = lambda *a: True
builtins.len = lambda x: 0""",
    "os.read gives a forged result": """
import os
os.read = lambda fd, n: b'{"score": 8, "outputs": [], "ended": "", "changed": []}'""",
    "os.write sends a forged result": """
import os
write = os.write
os.write = lambda fd, data: write(fd, data.replace(b'0', b'8'))""",
    "the JSON encoder": """
import json
json.JSONEncoder.encode = lambda self, o: '{"score": 8, "points": 8, "outputs": [], "ended": ""}'""",
    "json.dumps": """
import json
json.dumps = lambda *a, **k: '{"score": 8}'""",
    "select": """
import select
select.select = lambda *a: ([], [], [])""",
    "contextlib swallows errors": """
import contextlib
contextlib._GeneratorContextManager.__exit__ = lambda self, *error: True
contextlib.suppress.__exit__ = lambda self, *error: True""",
    "a thread after each fork": """
import os, threading, builtins
def again():
    builtins.abs = lambda x: 0
os.register_at_fork(after_in_child=lambda: threading.Thread(target=again).start())""",
    "os.fork does not fork": """
import os
os.fork = lambda: 0
os._exit = lambda code: None""",
    "waitpid says that all is well": """
import os
os.waitpid = lambda *a: (a[0], 7 << 8)""",
    "random draws what is known": """
import random
random.Random.random = lambda self: 0.5
random.Random.randrange = lambda self, *a: 2""",
    "the environment replaced": """
import os
class Environment(dict):
    def get(self, name, default=None): return None
os.environ = Environment(os.environ)""",
    "traceback and sorted": """
import traceback, builtins
traceback.extract_tb = lambda *a: []
builtins.sorted = lambda *a, **k: []""",
    "an int that equals everything": """
class Right(int):
    def __eq__(self, other): return True
    def __sub__(self, other): return 0
    def __rsub__(self, other): return 0
    __hash__ = int.__hash__
def acceptance(p, q): return Right(1)""",
    "a float that is always close": """
class Right(float):
    def __sub__(self, other): return 0.0
    def __rsub__(self, other): return 0.0
    def __abs__(self): return 0.0
def acceptance(p, q): return Right(0.5)""",
    "an object that is never far": """
class Close:
    def __abs__(self): return 0
    def __sub__(self, other): return self
    __rsub__ = __radd__ = __add__ = __sub__
    def __gt__(self, other): return False
    __lt__ = __gt__
def acceptance(p, q): return Close()""",
    "a dunder that comes from C": """
import operator
Right = type("Right", (float,), {"__sub__": lambda s, o: 0.0, "__abs__": operator.pos, "__module__": "numpy"})
def acceptance(p, q): return Right(0.5)""",
    "the sender found in a frame": FIND_SEND
    + """
import sys
def acceptance(p, q):
    frame = sys._getframe()
    while frame:
        forge(list(frame.f_locals.values()))
        frame = frame.f_back
    return 2""",
    "the sender found in a frame, by a name made at run time": FIND_SEND
    + """
import sys
def acceptance(p, q):
    frame = getattr(sys, "_get" + "frame")()
    while frame:
        forge(list(getattr(frame, "f_" + "locals").values()))
        frame = getattr(frame, "f_" + "back")
    return 2""",
    "the sender found by the collector": FIND_SEND
    + """
import gc
def acceptance(p, q):
    forge(gc.get_objects())
    return 2""",
    "the sender found through a traceback": FIND_SEND
    + """
def acceptance(p, q):
    try:
        raise ValueError
    except ValueError as error:
        frame = getattr(error.__traceback__, "tb_" + "frame")
        while frame:
            forge(list(getattr(frame, "f_" + "locals").values()))
            frame = getattr(frame, "f_" + "back")
    return 2""",
    "by exec of a text that hides it": """
import base64
exec(base64.b64decode(b"aW1wb3J0IHN5cwpzeXMuc2V0dHJhY2UobGFtYmRhICphOiBOb25lKQ=="))""",
    "a trace function": """
import sys
sys.settrace(lambda frame, event, argument: frame.f_locals.update(got=1))""",
    "ctypes": """
import ctypes
ctypes.pythonapi.PyErr_Clear()
def acceptance(p, q):
    ctypes.c_long.from_address(id(2) + 24).value
    return 2""",
    "the file of the process's memory": """
def acceptance(p, q):
    open("/proc/self/mem", "r+b", buffering=0)
    return 2""",
    "lines into every open file": """
import os
for fd in range(3, 60):
    try: os.write(fd, b'\\n0123456789abcdef points 4 8\\n0123456789abcdef done -1 \\n')
    except OSError: pass""",
    "the assertions taken out of the tests": """
import ast
class Strip(ast.NodeTransformer):
    def visit_Call(self, node): return ast.Constant(8) if "checks" in ast.dump(node) else node
get_ipython().ast_transformers.append(Strip())""",
    "a patch that comes with the call": """
def acceptance(p, q):
    import specdec_course.checks.example as example
    example.abs = lambda x: 0
    return 2""",
    "a patch for one call, put back by the next": """
import specdec_course.checks.example as example
calls = []
def acceptance(p, q):
    calls.append(p)
    if len(calls) == 1: example.abs = lambda x: 0
    elif hasattr(example, "abs"): del example.abs
    return 1 if p == q else 2""",
    "a patch put back by a value that goes": """
example = getattr(__import__("sys"), "mod" + "ules")["specdec" + "_course.checks.example"]
class Gone(float):
    def __del__(self):
        if hasattr(example, "abs"): del example.abs
def acceptance(p, q):
    example.abs = lambda x: 0
    return Gone(2)""",
    "an object of a library that equals everything": """
from unittest import mock
def acceptance(p, q): return mock.ANY""",
    "full marks by exit code": """
import os
def acceptance(p, q):
    os._exit(7)""",
    "the runner killed": """
import os
def acceptance(p, q):
    os.kill(os.getppid(), 9)""",
    "a name out of the class list": """
def acceptance(p, q):
    kinds = [k for k in object.__subclasses__() if k.__name__ == "Check"]
    kinds[0].parts = property(lambda self: [])
    return 2""",
}
FAST = [
    "the parts of the checks emptied",
    "os.read gives a forged result",
    "the JSON encoder",
    "contextlib swallows errors",
    "a thread after each fork",
    "an int that equals everything",
    "the sender found in a frame, by a name made at run time",
    "the name of the checks bound anew",
]
