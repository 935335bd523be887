"""What `leaseq.api` promises is what it shows, and the whole of it."""

import inspect
from types import ModuleType

import pytest

import leaseq.api
from leaseq import errors


def shown(module: ModuleType) -> set[str]:
    """Name what a reader finds in a module: the public things of leaseq, its modules aside."""
    return {
        name
        for name, thing in vars(module).items()
        if not name.startswith("_")
        and not inspect.ismodule(thing)
        and str(getattr(thing, "__module__", "leaseq")).startswith("leaseq")
    }


def test_the_door_shows_what_it_promises_and_nothing_else() -> None:
    promised = set(leaseq.api.__all__)
    assert shown(leaseq.api) - promised == set(), "add it to __all__, or import its module"
    assert promised - set(vars(leaseq.api)) == set(), "promised, and not there"


def test_the_promises_are_listed_once_and_in_order() -> None:
    assert list(leaseq.api.__all__) == sorted(set(leaseq.api.__all__))


@pytest.mark.parametrize("name", leaseq.api.__all__)
def test_every_promise_says_what_it_is(name: str) -> None:
    thing = getattr(leaseq.api, name)
    assert inspect.getdoc(thing) or not callable(thing)


def test_every_error_can_be_caught_by_its_name_at_the_door() -> None:
    tree = {
        name
        for name, thing in vars(errors).items()
        if inspect.isclass(thing) and issubclass(thing, errors.LeaseqError)
    }
    assert tree - set(leaseq.api.__all__) == set()


def test_a_stray_name_at_the_door_is_seen() -> None:
    module = ModuleType("leaseq.api")
    vars(module).update(admit=shown, errors=errors, Refused=errors.Refused, _hidden=errors.Refused)
    shown.__module__ = "leaseq.services.admission"
    assert shown(module) == {"admit", "Refused"}
