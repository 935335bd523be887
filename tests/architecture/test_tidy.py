"""The house rules hold over every file, and each of them can fail."""

from collections.abc import Callable, Iterator

import pytest

from tests.architecture import conduct_rules, shape_rules, word_rules
from tests.architecture.planted import SAMPLES, Sample
from tests.architecture.sources import ROOT, Sin, Source, all_sources

Rule = Callable[[Source], Iterator[Sin]]

CODE_RULES: tuple[Rule, ...] = (
    shape_rules.a_module_is_short,
    shape_rules.a_function_is_short,
    shape_rules.a_module_has_a_name,
    shape_rules.imports_stand_at_the_top,
    shape_rules.no_import_hides_in_a_string,
    shape_rules.the_door_is_for_users,
    shape_rules.a_promise_has_a_docstring,
    shape_rules.a_verb_has_one_subject,
    shape_rules.the_time_is_handed_in,
    shape_rules.leaseq_is_synchronous,
    conduct_rules.time_and_chance_come_through_one_door,
    conduct_rules.a_broad_except_stands_at_an_edge,
    conduct_rules.nothing_is_swallowed,
    conduct_rules.no_sql_is_put_together,
    conduct_rules.the_orm_is_not_bypassed,
    conduct_rules.the_database_tells_the_time_in_one_room,
    conduct_rules.a_test_waits_for_signals,
    conduct_rules.nothing_is_left_for_later,
)
TEXT_RULES: tuple[Rule, ...] = (
    word_rules.no_word_promises_too_much,
    word_rules.no_path_of_one_machine,
    word_rules.no_word_of_the_workplace,
)
RULES = {rule.__name__: rule for rule in (*CODE_RULES, *TEXT_RULES)}


def sentence(name: str) -> str:
    return name.replace("_", " ").replace("sql", "SQL").replace("orm", "ORM")


BY_SENTENCE = {sentence(name): rule for name, rule in RULES.items()}


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    return all_sources()


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_rule_holds_over_every_file(rule: Rule, sources: list[Source]) -> None:
    looked_at = [source for source in sources if source.is_python or rule in TEXT_RULES]
    sins = sorted({sin for source in looked_at for sin in rule(source)})
    if sins:
        pytest.fail("\n".join(map(str, sins)), pytrace=False)


@pytest.mark.parametrize("sample", SAMPLES, ids=[f"{one.rule}: {one.path}" for one in SAMPLES])
def test_the_rule_finds_what_was_planted_and_no_more(sample: Sample) -> None:
    sins = list(BY_SENTENCE[sample.rule](Source(sample.path, sample.text)))
    assert tuple(sorted({sin.line for sin in sins})) == sample.lines
    assert {sin.rule for sin in sins} <= {sample.rule}
    assert all(str(sin).startswith(f"{sample.path}:{sin.line}: {sample.rule}: ") for sin in sins)


@pytest.mark.parametrize("rule", BY_SENTENCE)
def test_every_rule_has_a_sample_that_breaks_it(rule: str) -> None:
    assert any(sample.rule == rule and sample.lines for sample in SAMPLES)


@pytest.mark.parametrize("edge", conduct_rules.PROCESS_EDGES)
def test_an_edge_is_listed_only_while_it_needs_to_be(edge: str) -> None:
    text = (ROOT / edge).read_text(encoding="utf-8")
    assert list(conduct_rules.broad_catches(Source(edge, text)))


@pytest.mark.parametrize(
    "place",
    [*conduct_rules.ONE_DOOR, *shape_rules.PROMISING_ROOMS, *shape_rules.MAY_IMPORT_LATE],
)
def test_a_place_that_a_rule_names_exists(place: str) -> None:
    assert (ROOT / place).exists()


def test_every_file_of_the_project_is_looked_at(sources: list[Source]) -> None:
    looked_at = {source.path for source in sources}
    assert {"manage.py", "README.md", "pyproject.toml", ".ci/run"} <= looked_at
    for folder in ("leaseq", "leaseq_admin", "project", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            assert name in looked_at or name == "leaseq/migrations/0001_initial.py"
