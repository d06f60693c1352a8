"""Speech on Ray Serve: each replica opens an engine, and audio is sent while it is computed.

    pip install "ray[serve]"                               and Orate, as docs/python.md says
    serve run serve:app                                    in this folder

    curl http://127.0.0.1:8000/v1/audio/speech -H 'Content-Type: application/json' \\
         -d '{"input": "Hello."}' | aplay -f S16_LE -r 24000

The routes are few: this shows how an engine lives in a Ray application. `orate serve` has the whole of OpenAI's API.
"""

import os

import numpy as np
import orate
from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from ray import serve

# Texts that a replica speaks at once, and requests that wait for it; Serve answers further ones with 503.
STREAMS = int(os.environ.get("STREAMS", 4))
QUEUE = int(os.environ.get("QUEUE", 64))
THREADS = int(os.environ.get("THREADS", 2))

api = FastAPI(title="Orate")


class Speech(BaseModel):
    """What to speak. Unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")
    input: str = Field(min_length=1, max_length=20_000)
    voice: str | None = None
    speed: float | None = None
    seed: int = 0


def pcm(samples):
    """16-bit samples, little-endian."""
    return (np.clip(samples, -1, 1) * 32767).round().astype("<i2").tobytes()


@serve.deployment(
    max_ongoing_requests=STREAMS,
    max_queued_requests=QUEUE,
    # For a GPU: {"num_gpus": 1}, and Engine(…, device="cuda").
    ray_actor_options={"num_cpus": THREADS},
    graceful_shutdown_timeout_s=30,
)
@serve.ingress(api)
class Speaker:
    def __init__(self, model=None):
        # Here and not in the module: engines do not survive the fork or pickling of a replica.
        self.engine = orate.Engine(model, threads=THREADS)
        self.engine.warm_up(STREAMS)

    def say(self, text, **options):
        """Samples of a whole text as a WAV file, for other deployments of the application."""
        return self.engine.say(text, **options).encode("wav")

    @api.post("/v1/audio/speech")
    async def speech(self, speech: Speech):
        options = speech.model_dump(exclude_none=True, exclude={"input"})
        try:
            chunks = self.engine.astream(speech.input, **options)
            # Before the status is sent, so that a refused text is an error of the client.
            first = await anext(chunks, None)
        except orate.InputError as e:
            raise HTTPException(400, str(e)) from e

        async def body():
            # When the client leaves, the iterator is closed, and that stops the work.
            try:
                if first is not None:
                    yield pcm(first.samples)
                async for chunk in chunks:
                    yield pcm(chunk.samples)
            finally:
                await chunks.aclose()

        headers = {"X-Sample-Rate": str(self.engine.sample_rate)}
        return StreamingResponse(body(), media_type="audio/pcm", headers=headers)

    @api.get("/health")
    async def health(self):
        return {"status": "ok"}


app = Speaker.bind(os.environ.get("MODEL"))
