"""A codec server that answers while a block runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tenxgraph_temporal.runtime.codec import EncryptionCodec
from tenxgraph_temporal.runtime.codec_server import CodecServer
from tenxgraph_temporal.runtime.encryption_keys import EncryptionKeys


@contextmanager
def serving(keys: EncryptionKeys, **options: Any) -> Iterator[CodecServer]:
    """A server on a free port of this machine, with the options of ``CodecServer``."""
    with CodecServer(EncryptionCodec(keys), port=0, **options) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
