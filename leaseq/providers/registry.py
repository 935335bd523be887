"""Finds each provider's adapter by a setting or an entry point (SPEC E1)."""

import pkgutil
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Final

from leaseq.providers.base import Provider
from leaseq.providers.local import LocalWorker
from leaseq.providers.openai_compatible import OpenAICompatible
from leaseq.providers.options import Config, did_you_mean, misconfigured, text

ENTRY_POINTS: Final = "leaseq.providers"

Factory = Callable[[str, Config], Provider]

BUILT_IN: Final[Mapping[str, Factory]] = {
    "local": LocalWorker.from_config,
    "openai_compatible": OpenAICompatible.from_config,
}


def build_providers(configs: Mapping[str, Config]) -> dict[str, Provider]:
    """Build every provider that settings name, by its name; nothing is sent anywhere.

    ADAPTER is the name of an adapter of ours or of an entry point in the group
    `leaseq.providers`, or a path such as "package.module:factory"; the factory takes the
    provider's name and its other settings.

    Raises Misconfigured.
    """
    return {name: _build(name, config) for name, config in configs.items()}


def _build(name: str, config: Config) -> Provider:
    if not isinstance(config, Mapping):
        raise misconfigured(name, f"is {type(config).__name__} and must be a dict")
    adapter = text(name, config, "ADAPTER")
    rest = {key: value for key, value in config.items() if key != "ADAPTER"}
    provider = _factory(name, adapter)(name, rest)
    if not isinstance(provider, Provider):
        raise misconfigured(
            name, f"has an 'ADAPTER' {adapter!r} that returned no Provider but {provider!r}"
        )
    return provider


def _factory(name: str, adapter: str) -> Factory:
    if adapter in BUILT_IN:
        return BUILT_IN[adapter]
    offered = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    try:
        if adapter in offered:
            found: Factory = offered[adapter].load()
        elif "." in adapter:
            found = pkgutil.resolve_name(adapter)
        else:
            hint = did_you_mean(adapter, [*BUILT_IN, *offered])
            raise misconfigured(name, f"has an unknown 'ADAPTER' {adapter!r}; {hint}")
    except (ImportError, AttributeError, ValueError) as error:
        raise misconfigured(
            name, f"has an 'ADAPTER' {adapter!r} that cannot be imported: {error}"
        ) from error
    if not callable(found):
        raise misconfigured(name, f"has an 'ADAPTER' {adapter!r} that is no factory")
    return found
