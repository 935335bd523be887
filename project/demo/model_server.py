"""A real small language model behind an OpenAI-compatible server, as a child process."""

import http.client
import sys
from pathlib import Path
from typing import ClassVar

from leaseq.errors import Misconfigured
from project.demo.packages import model_file, require_model_runtime
from project.demo.processes import LOCALHOST, ChildProcess, EmbeddedService

PROGRAM = Path(__file__).with_name("serve_model.py")
READY_WITHIN_S = 60.0
ANSWER_WITHIN_S = 2.0
CONTEXT_TOKENS_MIN = 128


class ModelServer(EmbeddedService):
    """SmolLM2-135M-Instruct on 127.0.0.1, on the processor; for the demo and journey tests.

    A streamed request gets its response headers when a slot takes it, its first chunk when the
    first token is there, and its usage in the last chunk if `stream_options` asks for it. More
    requests than slots wait in the server, without headers. A streamed generation ends with its
    connection, at its next token; one that is not streamed goes on to its end.

    One thread is the default: its threads wait for each other by spinning, so with as many as
    there are cores, any other busy process slows generation a hundredfold instead of by half.
    """

    name: ClassVar[str] = "model"
    model: ClassVar[str] = "smollm2-135m-instruct"

    def __init__(
        self,
        log_dir: Path | None = None,
        *,
        port: int | None = None,
        slots: int = 2,
        context_tokens: int = 2048,
        threads: int = 1,
    ) -> None:
        super().__init__(log_dir, port=port)
        if slots < 1 or threads < 1 or context_tokens < slots * CONTEXT_TOKENS_MIN:
            raise Misconfigured(
                f"a model server with {slots} slots, {threads} threads and {context_tokens} "
                f"tokens of context cannot work: give at least one slot and thread, and "
                f"{CONTEXT_TOKENS_MIN} tokens for each slot"
            )
        self._options = {
            "--slots": str(slots),
            "--context-tokens": str(context_tokens),
            "--threads": str(threads),
        }

    @property
    def url(self) -> str:
        """The server's root; the OpenAI-compatible paths begin with /v1 below it."""
        return f"http://{LOCALHOST}:{self.port}"

    def _launch(self, port: int) -> None:
        require_model_runtime()
        options = {"--model": str(model_file()), "--port": str(port), **self._options}
        child = ChildProcess(
            self.name,
            [
                sys.executable,
                PROGRAM,
                *(word for option in options.items() for word in option),
            ],
            log_path=self.log_path,
            directory=self._folder.path,
        )
        self._run(child, self._answers, within_s=READY_WITHIN_S)

    def _answers(self) -> bool:
        """Say whether the model is loaded; until then the server answers 503, or not at all."""
        connection = http.client.HTTPConnection(LOCALHOST, self.port, timeout=ANSWER_WITHIN_S)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
