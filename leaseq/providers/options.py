"""Reads one provider's settings; each fault is a Misconfigured that names its mend."""

import difflib
import os
from collections.abc import Callable, Collection, Mapping
from urllib.parse import urlsplit

from leaseq.errors import Misconfigured

Config = Mapping[str, object]


def misconfigured(provider: str, fault: str) -> Misconfigured:
    """Return the error that says where in LEASEQ the fault is."""
    return Misconfigured(f"LEASEQ['PROVIDERS'][{provider!r}] {fault}")


def did_you_mean(given: str, known: Collection[str]) -> str:
    """Return the nearest known word as a question, else all of them."""
    near = difflib.get_close_matches(given, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"


def check_keys(provider: str, config: Config, *, known: Collection[str]) -> None:
    """Raise Misconfigured for a key that is not known."""
    for key in config:
        if key not in known:
            hint = did_you_mean(str(key), known) if known else "this adapter takes none"
            raise misconfigured(provider, f"has no key {key!r}; {hint}")


def text(provider: str, config: Config, key: str) -> str:
    """Return a text that must be there and not be empty."""
    value = config.get(key)
    if not isinstance(value, str) or not value.strip():
        raise misconfigured(provider, f"needs {key!r}, a text; it is {value!r}")
    return value


def base_url(provider: str, config: Config) -> str:
    """Return BASE_URL without a slash at its end."""
    value = text(provider, config, "BASE_URL")
    fault = _url_fault(value)
    if fault:
        # Not shown: where it holds a password, a log is no place for it.
        raise misconfigured(
            provider,
            f"has a 'BASE_URL' that {fault}; it should look like 'http://127.0.0.1:8080/v1'",
        )
    return value.rstrip("/")


def seconds(provider: str, config: Config, *, defaults: Mapping[str, float]) -> dict[str, float]:
    """Return TIMEOUT_SECONDS, completed by the defaults."""
    given = config.get("TIMEOUT_SECONDS", {})
    if not isinstance(given, Mapping):
        raise misconfigured(
            provider, f"has a 'TIMEOUT_SECONDS' that is no dict; known keys: {', '.join(defaults)}"
        )
    check_keys(provider, given, known=defaults.keys())
    for key, value in given.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        # The upper bound refuses infinity and milliseconds alike.
        if not number or not 0 < value <= 7 * 24 * 3600:
            raise misconfigured(
                provider,
                f"has {value!r} for {key!r} in 'TIMEOUT_SECONDS'; give seconds above 0, at most "
                f"a week",
            )
    return {**defaults, **given}


def secret(provider: str, config: Config, key: str) -> Callable[[], str] | None:
    """Return what fetches a secret, anew at each call; settings hold a reference, never itself.

    The reference is {"env": NAME} or a callable without arguments. What is returned raises
    Misconfigured when there is no secret, or none that an HTTP header can carry.
    """
    reference = config.get(key)
    if reference is None:
        return None
    if isinstance(reference, Mapping) and list(reference) == ["env"]:
        name = reference["env"]
        if isinstance(name, str) and name:
            return lambda: _checked(
                provider, os.environ.get(name), f"the environment variable {name!r}"
            )
    if callable(reference):
        return lambda: _checked(provider, reference(), f"the callable that is {key!r}")
    raise misconfigured(
        provider,
        f"has a {key!r} that is no reference; give {{'env': 'NAME_OF_A_VARIABLE'}} or a callable, "
        f"so that settings hold no secret",
    )


def _checked(provider: str, value: object, source: str) -> str:
    if not isinstance(value, str) or not value:
        raise misconfigured(provider, f"gets no secret from {source}; set it to the key")
    if not value.isascii() or not value.isprintable() or value.strip() != value:
        raise misconfigured(
            provider, f"gets a secret from {source} that holds blanks or signs no header can carry"
        )
    return value


def _url_fault(value: str) -> str:
    if not value.isascii() or not value.isprintable() or " " in value:
        return "holds a blank or a sign that no URL has"
    try:
        parts = urlsplit(value)
        host, _port = parts.hostname, parts.port
        (host or "").encode("idna")
    except ValueError:
        return "names no host and port that could exist"
    if parts.scheme not in {"http", "https"}:
        return "begins with neither http:// nor https://"
    if "@" in parts.netloc:
        return "holds a user or a password; give 'API_KEY' a reference"
    if not host:
        return "names no host"
    return "has a query or a fragment" if "?" in value or "#" in value else ""
