"""A small Hub that the real `huggingface_hub` and `hf_xet` talk to over HTTP, and a process that does the talking.

Repositories of data sets alone; all is in memory. What a repository stores as LFS files is uploaded to and downloaded
from a second origin, the CDN, as on the real Hub; with `hub.xet = True` also through the Xet protocol.

    with hub.serving() as server, hub.client(server, home) as client:
        server.commit("me/numbers", {"train/index.json": b"..."})
        client.run("result = load_dataset('me/numbers', ...)")

`answers` says how an answer looks, `repositories` what a commit is, `api` what the Hub answers, `pushing` how files
come in, `xet` what a content-addressed store does, `server` speaks HTTP, `process` runs a client.
"""

from hub.answers import Answer
from hub.api import READ_TOKEN, TOKEN, Hub
from hub.process import Client, ClientError, client
from hub.server import serving

__all__ = ["READ_TOKEN", "TOKEN", "Answer", "Client", "ClientError", "Hub", "client", "serving"]
