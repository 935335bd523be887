"""Samples for the house rules: what each must find, and what it must leave alone."""

from dataclasses import dataclass

LONG_MODULE = "x = 1\n" * 401
LONG_FUNCTION = "def f() -> None:\n" + "    x = 1\n" * 60
LAST_LINE_MODULE = "x = 1\n" * 400
LAST_LINE_FUNCTION = "def f() -> None:\n" + "    x = 1\n" * 59


@dataclass(frozen=True)
class Sample:
    """A file that breaks a rule on these lines; on none, if it is an allowed one."""

    rule: str
    path: str
    text: str
    lines: tuple[int, ...] = ()


SHAPE = (
    Sample("a module is short", "leaseq/services/a.py", LONG_MODULE, (401,)),
    Sample("a module is short", "leaseq/services/a.py", LAST_LINE_MODULE),
    Sample("a function is short", "tests/x/test_a.py", LONG_FUNCTION, (1,)),
    Sample("a function is short", "tests/x/test_a.py", LAST_LINE_FUNCTION),
    Sample("a module has a name", "leaseq/utils.py", "", (1,)),
    Sample("a module has a name", "leaseq/services/helpers/money.py", "", (1,)),
    Sample("a module has a name", "leaseq/management/commands/leaseq.py", ""),
    Sample("imports stand at the top", "leaseq/api.py", "def f():\n    import os\n", (2,)),
    Sample(
        "imports stand at the top",
        "leaseq/api.py",
        "def f():\n    if x:\n        from a import b\n",
        (3,),
    ),
    Sample("imports stand at the top", "leaseq/api.py", "def ready():\n    import os\n", (2,)),
    Sample(
        "imports stand at the top",
        "leaseq/apps.py",
        "class A(AppConfig):\n    def ready(self):\n        from leaseq import checks\n",
    ),
    Sample("imports stand at the top", "manage.py", "def main():\n    import django\n"),
    Sample(
        "no import hides in a string",
        "leaseq/rules/a.py",
        "from importlib import import_module as load\nload('leaseq.models')\n",
        (2,),
    ),
    Sample(
        "no import hides in a string",
        "leaseq/rules/a.py",
        "import importlib\nimportlib.import_module('leaseq.models')\n__import__('leaseq.db')\n",
        (2, 3),
    ),
    Sample("no import hides in a string", "leaseq/providers/registry.py", "import_string(name)\n"),
    Sample("the door is for users", "leaseq/cli/a.py", "from leaseq import api\n", (1,)),
    Sample("the door is for users", "leaseq/cli/a.py", "import leaseq.api\n", (1,)),
    Sample("the door is for users", "leaseq/cli/a.py", "from leaseq.api import admit\n", (1,)),
    Sample("the door is for users", "project/a.py", "from leaseq.api import admit\n"),
    Sample("a promise has a docstring", "leaseq/rules/a.py", "def f():\n    pass\n", (1,)),
    Sample(
        "a promise has a docstring",
        "leaseq/providers/base.py",
        'class P:\n    """P."""\n    def submit(self):\n        ...\n',
        (3,),
    ),
    Sample("a promise has a docstring", "leaseq/testing/a.py", "class P:\n    x = 1\n", (1,)),
    Sample("a promise has a docstring", "leaseq/rules/a.py", "def _f():\n    pass\n"),
    Sample("a promise has a docstring", "leaseq/providers/local.py", "def f():\n    pass\n"),
    Sample("a verb has one subject", "leaseq/services/a.py", "def f(a, b):\n    pass\n", (1,)),
    Sample("a verb has one subject", "leaseq/services/a.py", "def f(a, **k):\n    pass\n", (1,)),
    Sample("a verb has one subject", "leaseq/services/a.py", "def f(a, *b):\n    pass\n", (1,)),
    Sample("a verb has one subject", "leaseq/services/a.py", "def f(*a, **ids):\n    pass\n"),
    Sample("a verb has one subject", "leaseq/services/a.py", "def f(a, *, b):\n    pass\n"),
    Sample("a verb has one subject", "leaseq/services/a.py", "def _f(a, b):\n    pass\n"),
    Sample("the time is handed in", "leaseq/rules/a.py", "def f(*, now=None):\n    pass\n", (1,)),
    Sample("the time is handed in", "leaseq/rules/a.py", "def f(a, now=0):\n    pass\n", (1,)),
    Sample("the time is handed in", "leaseq/rules/a.py", "def f(now, a=0, *, b=1):\n    pass\n"),
    Sample("leaseq is synchronous", "leaseq/api.py", "async def f():\n    pass\n", (1,)),
)

CONDUCT = (
    Sample(
        "time and chance come through one door",
        "leaseq/services/a.py",
        "import time, random, uuid\nfrom datetime import datetime as dt, UTC\n"
        "from django.utils import timezone\n"
        "a = time.time()\nb = dt.now(UTC)\nc = random.choice([1])\nd = uuid.uuid4()\n"
        "e = Field(default=timezone.now)\n",
        (4, 5, 6, 7, 8),
    ),
    Sample(
        "time and chance come through one door",
        "leaseq/worker/a.py",
        "from time import time as t\nfrom secrets import token_hex\nx = t()\ny = token_hex()\n"
        "z = Field(auto_now_add=True)\n",
        (3, 4, 5),
    ),
    Sample(
        "time and chance come through one door",
        "leaseq/worker/a.py",
        "import time\nx = time.monotonic()\nnow = job.now()\n",
    ),
    Sample(
        "time and chance come through one door",
        "leaseq/db/identity.py",
        "import secrets\nx = secrets.randbits(80)\n",
    ),
    Sample(
        "a broad except stands at an edge",
        "leaseq/services/a.py",
        "try:\n    f()\nexcept (OSError, Exception):\n    raise\n"
        "try:\n    f()\nexcept:\n    raise\nwith suppress(BaseException):\n    f()\n",
        (3, 7, 9),
    ),
    Sample(
        "a broad except stands at an edge",
        "leaseq/worker/runner.py",
        "try:\n    f()\nexcept Exception:\n    raise\n",
    ),
    Sample(
        "a broad except stands at an edge",
        "leaseq/services/a.py",
        "try:\n    f()\nexcept OSError:\n    pass\n",
    ),
    Sample(
        "nothing is swallowed",
        "leaseq/worker/runner.py",
        "try:\n    f()\nexcept Exception:\n    pass\n"
        "try:\n    f()\nexcept Exception:\n    return None\nwith suppress(Exception):\n    f()\n",
        (3, 7, 9),
    ),
    Sample(
        "nothing is swallowed",
        "leaseq/worker/runner.py",
        "try:\n    f()\nexcept Exception:\n    log.exception('x')\n",
    ),
    Sample(
        "no SQL is put together",
        "leaseq/services/a.py",
        "cursor.execute(f'SELECT {x}')\ncursor.execute('SELECT %s' % x)\n"
        "cursor.execute('SELECT ' + x)\ncursor.execute('SELECT {}'.format(x))\n"
        "text = f'DELETE {x}'\ncursor.execute(text)\n",
        (1, 2, 3, 4, 6),
    ),
    Sample(
        "no SQL is put together",
        "project/demo/a.py",
        "sql = 'SELECT 1'\nsql += x\nconnection.execute(sql)\n",
        (3,),
    ),
    Sample(
        "no SQL is put together",
        "project/demo/a.py",
        "q = sql.SQL('CREATE {}').format(sql.Identifier(n))\nconnection.execute(q)\n"
        "connection.execute('SELECT %s', [x])\n",
    ),
    Sample("no SQL is put together", "leaseq/db/a.py", "cursor.execute(A + B)\n"),
    Sample(
        "the ORM is not bypassed",
        "leaseq/db/a.py",
        "Job.objects.raw('SELECT 1')\nJob.objects.extra(where=['x'])\nRawSQL('x', [])\n",
        (1, 2, 3),
    ),
    Sample("the ORM is not bypassed", "leaseq/db/a.py", "log.info('x', extra={})\n"),
    Sample(
        "the database tells the time in one room",
        "leaseq/services/a.py",
        "A = 'SELECT Clock_Timestamp()'\nB = 'expires_at > now( )'\nC = f'{x} CURRENT_TIMESTAMP'\n",
        (1, 2, 3),
    ),
    Sample(
        "the database tells the time in one room",
        "leaseq/services/a.py",
        '"""Never now()."""\n# nor now()\nA = "right now (or later)"\n',
    ),
    Sample("the database tells the time in one room", "leaseq/db/a.py", "A = 'SELECT now()'\n"),
    Sample(
        "a test waits for signals",
        "tests/x/test_a.py",
        "import time\ntime.sleep(1)\n",
        (2,),
    ),
    Sample(
        "a test waits for signals",
        "tests/x/test_a.py",
        "from time import sleep\nwhile True:\n    sleep(1)\n",
        (3,),
    ),
    Sample(
        "a test waits for signals",
        "tests/x/test_a.py",
        "import time\nwhile time.monotonic() < deadline:\n    time.sleep(0.05)\n",
    ),
    Sample("a test waits for signals", "project/demo/a.py", "import time\ntime.sleep(1)\n"),
    Sample(
        "nothing is left for later",
        "leaseq/api.py",
        "raise NotImplemented" + "Error\nx = 1  # TO" + "DO later\n",
        (1, 2),
    ),
)

WORDS = (
    Sample("no word promises too much", "README.md", "It runs Exactly" + "-once.\n", (1,)),
    Sample("no word promises too much", "docs/a.md", "x\nruns exactly\n" + "once\n", (2,)),
    Sample("no word promises too much", "docs/a.md", "a distributed " + "lock\n", (1,)),
    Sample("no word promises too much", "docs/a.md", "of two, exactly one wins, once\n"),
    Sample("no path of one machine", ".ci/run", "cd /" + "work/main\n", (1,)),
    Sample("no path of one machine", "docs/a.md", "x\nin /" + "root.\n"),
    Sample("no path of one machine", "docs/a.md", "in /" + "root/.cache\n", (1,)),
    Sample("no path of one machine", "docs/a.md", "a/work/b and https://a.example/root/\n"),
    Sample("no word of the workplace", "docs/a.md", "as a sub" + "-agent did\n", (1,)),
    Sample("no word of the workplace", "CHANGELOG.md", "closes issue " + "#7\n", (1,)),
    Sample("no word of the workplace", "docs/a.md", "an issue of ten pages\n"),
)

SAMPLES = (*SHAPE, *CONDUCT, *WORDS)
