"""What a caller may hand over: JSON of bounded size and depth, never pickled (SPEC A7)."""

import hashlib
import json
import math
from dataclasses import dataclass

from leaseq.vocabulary import AdmissionRefusal


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundPayload:
    """The canonical text of a payload, and its SHA-256 in hexadecimal."""

    text: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadProblem:
    """Why a payload cannot be stored, and where in it."""

    reason: AdmissionRefusal
    why: str


def judge_payload(
    value: object, *, bytes_max: int, depth_max: int
) -> SoundPayload | PayloadProblem:
    """Say whether a value is plain JSON within bounds (SPEC A7).

    Refuses NaN and infinities, NUL and lone surrogates in text, keys that are not text, types
    that JSON does not know, nesting deeper than `depth_max` and more than `bytes_max` bytes.
    """
    problem = _walk(value, depth_max=depth_max)
    if problem is not None:
        return problem
    try:
        text = json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":"))
    except ValueError as error:
        return PayloadProblem(reason=AdmissionRefusal.PAYLOAD_NOT_JSON, why=str(error))
    size = len(text.encode())
    if size > bytes_max:
        return PayloadProblem(
            reason=AdmissionRefusal.PAYLOAD_TOO_LARGE,
            why=f"{size} bytes, and {bytes_max} are allowed: store it elsewhere and pass its name",
        )
    return SoundPayload(text=text, digest=hashlib.sha256(text.encode()).hexdigest())


def _walk(value: object, *, depth_max: int) -> PayloadProblem | None:
    """Look at every part without recursion, so that depth costs no stack."""
    pending: list[tuple[object, str, int]] = [(value, "payload", 0)]
    while pending:
        part, path, depth = pending.pop()
        if depth > depth_max:
            return PayloadProblem(
                reason=AdmissionRefusal.PAYLOAD_TOO_DEEP,
                why=f"{path[:200]} is nested deeper than {depth_max}",
            )
        if isinstance(part, dict):
            for key, inner in part.items():
                if not isinstance(key, str):
                    return _not_json(path, f"has the key {key!r}, and keys must be text")
                flaw = _text_flaw(key)
                if flaw is not None:
                    return _not_json(path, f"has a key with {flaw}")
                pending.append((inner, f"{path}.{key[:40]}", depth + 1))
        elif isinstance(part, (list, tuple)):
            for index, inner in enumerate(part):
                pending.append((inner, f"{path}[{index}]", depth + 1))
        else:
            flaw = _scalar_flaw(part)
            if flaw is not None:
                return _not_json(path, flaw)
    return None


def _scalar_flaw(part: object) -> str | None:
    if part is None or isinstance(part, (bool, int)):
        return None
    if isinstance(part, str):
        flaw = _text_flaw(part)
        return None if flaw is None else f"holds {flaw}"
    if isinstance(part, float):
        return None if math.isfinite(part) else f"is {part!r}, which JSON does not know"
    return f"is of type {type(part).__name__}, which JSON does not know"


def _text_flaw(text: str) -> str | None:
    if "\0" in text:
        return "a NUL character, which PostgreSQL cannot store"
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        return "half of a surrogate pair, which is not text"
    return None


def _not_json(path: str, why: str) -> PayloadProblem:
    return PayloadProblem(reason=AdmissionRefusal.PAYLOAD_NOT_JSON, why=f"{path[:200]} {why}")
