"""Breadth-first search of every world that can be reached: the first fault is a shortest one."""

from collections import deque
from dataclasses import dataclass

from .acts import steps
from .canonical import canonical
from .invariants import broken
from .world import Rules, Setting, World


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search saw: how many distinct worlds, which acts, and the first fault if any."""

    worlds: int
    acts: frozenset[str]
    broken: tuple[str, ...]
    trace: tuple[str, ...]


def search(rules: Rules, setting: Setting) -> Found:
    """Visit every reachable world once; end at the first step that breaks an invariant."""
    first = World()
    came_from: dict[World, tuple[World, str] | None] = {first: None}
    waiting = deque([first])
    acts: set[str] = set()
    while waiting:
        before = waiting.popleft()
        for act, after in steps(before, rules, setting):
            acts.add(act.name)
            faults = tuple(broken(before, act, after))
            if faults:
                trace = (*_trace(before, came_from), act.name)
                return Found(
                    worlds=len(came_from), acts=frozenset(acts), broken=faults, trace=trace
                )
            seen = canonical(after)
            if seen not in came_from:
                came_from[seen] = (before, act.name)
                waiting.append(seen)
    return Found(worlds=len(came_from), acts=frozenset(acts), broken=(), trace=())


def _trace(w: World, came_from: dict[World, tuple[World, str] | None]) -> tuple[str, ...]:
    acts: list[str] = []
    step = came_from[w]
    while step is not None:
        acts.append(step[1])
        step = came_from[step[0]]
    return tuple(reversed(acts))
