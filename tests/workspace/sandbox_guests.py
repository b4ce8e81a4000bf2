"""Runs inside sandboxes, as the guest of the tests (mounted at /in); never imported by them."""

import os
import time

from workspace.sandbox_guest import leave_channel, serve


def handle(request: bytes) -> bytes:
    verb, _, rest = request.partition(b" ")
    if verb == b"sleep":
        time.sleep(float(rest))
    elif verb == b"exit":
        os._exit(int(rest))
    elif verb == b"raise":
        raise ValueError(rest.decode())
    elif verb == b"big":
        return bytes(int(rest))
    elif verb == b"fork":
        if os.fork() == 0:
            leave_channel()
            time.sleep(float(rest))
            os._exit(0)
    elif verb == b"trickle":
        time.sleep(0.2)
        return b"x" * 100
    return request[::-1]


print("ready", flush=True)
serve(handle)
