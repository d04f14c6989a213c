"""A trainer without training: the demo's parts as tiny programs, to test the supervisor with real processes.

`BREAK=PART` in the environment makes that part fail; `STALL=PART` makes it never ready; `STUBBORN=1`
makes all parts ignore SIGTERM; `FINISH=EPOCHS` is the length of the schedule, after which the volunteers leave.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

COMMAND, *ARGUMENTS = [
    word for word in sys.argv[1:] if word not in ("--one-machine", "--verbose")
]  # the flags without a value
if COMMAND == "join":
    ARGUMENTS.pop(0)  # the address of the run
FLAGS = dict(zip(ARGUMENTS[::2], ARGUMENTS[1::2], strict=True))


def log(event, **fields):
    with open(FLAGS["--log-json"], "a") as file:
        file.write(json.dumps({"time": time.time(), "event": event, **fields}) + "\n")


def stay():
    """Starts a helper, as a role starts p2pd, and ends both on SIGTERM."""
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])

    def end(*_):
        if not os.environ.get("STUBBORN"):
            helper.kill()
            sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return helper


class State(http.server.BaseHTTPRequestHandler):
    """Half a second an epoch."""

    started = time.time()

    def do_GET(self):
        epoch = int((time.time() - self.started) / 0.5)
        last = int(os.environ.get("FINISH", 10**9))
        state = {
            "status": "finished" if epoch >= last else "running",
            "epoch": min(epoch, last),
            "loss": 4 / (1 + epoch),
            "active_peers": 3,
            "samples_per_second": None,
            "total_samples": 10 * epoch,
        }
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(state).encode())

    def log_message(self, *_):
        pass


if os.environ.get("BREAK") == COMMAND or FLAGS.get("--name") == os.environ.get("BREAK", "-"):
    print("something broke here")
    sys.exit(7)
if COMMAND == "draw":
    Path(FLAGS["--out"]).mkdir(parents=True)
    Path(FLAGS["--out"], "captions.jsonl").touch()
    print("drew pictures")
elif COMMAND == "prepare":
    if os.environ.get("SLOW_PREPARE"):
        print("preparing slowly", flush=True)
        stay()
        time.sleep(1000)
    Path(FLAGS["--out"]).mkdir(parents=True)
    Path(FLAGS["--out"], "manifest.json").touch()
    print("made shards")
else:
    helper = stay()
    if os.environ.get("STALL") == COMMAND:
        time.sleep(1000)
    if COMMAND == "bootstrap":
        log("ready", addresses=["/ip4/127.0.0.1/tcp/1/p2p/Q"])
    elif COMMAND == "monitor":
        server = http.server.ThreadingHTTPServer(("127.0.0.1", int(FLAGS["--port"])), State)
        peers, command = [FLAGS["--initial-peers"], "/ip4/127.0.0.1/tcp/2/p2p/R"], FLAGS["--join-command"]
        log("ready", url=f"http://127.0.0.1:{server.server_port}", initial_peers=peers, join_command=command)
        server.serve_forever()
    else:
        log("joined")
        if os.environ.get("FINISH"):
            time.sleep(3)
            helper.kill()
            sys.exit(0)
    time.sleep(1000)
