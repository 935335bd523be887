"""House rules on words: what no file of this project says."""

import re
from collections.abc import Iterator

from tests.architecture.sources import Sin, Source

# The patterns are written so that they do not match their own text.
PROMISES_TOO_MUCH = re.compile(
    r"exactly[-\s]+on[c]e|guaranteed\s+no\s+duplicate[s]|distributed\s+loc[k]", re.IGNORECASE
)
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(wor[k]|roo[t]|far[m])(?![\w.-])")
WORKPLACE = re.compile(
    r"\bsub-?agent[s]?\b|\bCE[O]\b|(?<![\w/])\.librar[y]\b|\bfarm-(studio|bench)\b"
    r"|\bbefore-sto[p]\b|\bissue[s]? #?\d",
    re.IGNORECASE,
)


def no_word_promises_too_much(source: Source) -> Iterator[Sin]:
    rule = "no word promises too much"
    return _found(source, PROMISES_TOO_MUCH, rule, "name the class and the evidence")


def no_path_of_one_machine(source: Source) -> Iterator[Sin]:
    return _found(
        source, MACHINE_PATH, "no path of one machine", "write it from the top of the checkout"
    )


def no_word_of_the_workplace(source: Source) -> Iterator[Sin]:
    return _found(
        source, WORKPLACE, "no word of the workplace", "speak of the project and its users alone"
    )


def _found(source: Source, pattern: re.Pattern[str], rule: str, mend: str) -> Iterator[Sin]:
    for match in pattern.finditer(source.text):
        line = source.text.count("\n", 0, match.start()) + 1
        yield source.sin(line, rule, f"{match.group()!r}: {mend}")
