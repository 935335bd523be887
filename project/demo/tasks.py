"""Two sample leased tasks: one asks a language model, one is plain Python."""

from typing import Any

from leaseq.api import Lease, leased_task


@leased_task(takes_lease=True, provider="private", queue="gpu", name="demo.answer")
def answer(lease: Lease, prompt: str, max_tokens: int = 48) -> dict[str, Any]:
    """Let the model answer a prompt; every token is metered."""
    completion = lease.infer(
        {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens}
    )
    return {"text": completion.text, "finish_reason": completion.finish_reason}


@leased_task(takes_lease=True, queue="gpu", name="demo.count_words")
def count_words(lease: Lease, text: str) -> int:
    """Count words in the worker itself, and charge for each."""
    words = len(text.split())
    lease.record_usage("word", words)
    return words
