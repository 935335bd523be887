"""Serve a small language model over HTTP, in this process, until it is ended.

The model server's child process runs this by path, so that it needs nothing but the runtime.
"""

import argparse
import threading
from pathlib import Path

import xllamacpp

MODEL_NAME = "smollm2-135m-instruct"
LOG_WARNINGS = 2
# Small, so that one long prompt does not keep the other slot's tokens back for seconds.
BATCH_TOKENS = 256
# Every open stream keeps one of these threads.
HTTP_THREADS = 16


def parameters(words: argparse.Namespace) -> xllamacpp.CommonParams:
    """Fill the runtime's parameters for a small server without a user interface."""
    params = xllamacpp.CommonParams()
    params.model.path = str(words.model)
    params.model_alias = {MODEL_NAME}
    params.port = words.port
    params.cors_origins = f"http://127.0.0.1:{words.port}"
    params.n_parallel = words.slots
    params.n_ctx = words.context_tokens
    params.n_batch = BATCH_TOKENS
    params.n_ubatch = BATCH_TOKENS
    params.n_threads_http = HTTP_THREADS
    params.cpuparams.n_threads = words.threads
    params.cpuparams_batch.n_threads = words.threads
    params.fit_params = False
    params.cache_ram_mib = 0
    params.cache_idle_slots = False
    params.ui = False
    params.endpoint_metrics = True
    params.verbosity = LOG_WARNINGS
    return params


def main() -> None:
    """Load the model, serve it, and wait for the signal that ends the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--context-tokens", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=1)
    server = xllamacpp.Server(parameters(parser.parse_args()))
    print(f"serving {MODEL_NAME} on {server.listening_address}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
