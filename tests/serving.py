"""Requests for samples, and a server that does with them what a script says."""

import contextlib
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch

from bandpo_runs import toy
from bandpo_runs.evals.samples import Request

PROMPTS = ["a b =", "c =", "d e f g h =", "p"]  # of different lengths


def requests(count=8, prompts=PROMPTS):
    return [Request(("d", p, i), prompt, 1000 * p + i) for p, prompt in enumerate(prompts) for i in range(count)]


def drawn(engine, wanted, sampling):
    answers = {}
    engine.generate(wanted, sampling, lambda sample: answers.update({sample.key: sample}))
    return answers


def first_tokens(model, prompt, temperature=1.0):
    """Chances of the first token, from the model itself."""
    ids = toy.tokenizer()(prompt, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        return (model(input_ids=ids).logits[0, -1].double() / temperature).softmax(-1).numpy()


CHOICE = {"index": 0, "text": "a", "finish_reason": "stop"}
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


def completion(**fields) -> dict:
    return {
        "id": "1",
        "object": "text_completion",
        "created": 0,
        "model": "m",
        "choices": [CHOICE],
        "usage": USAGE,
    } | fields


def chat(message, finish="stop") -> dict:
    return completion(choices=[{"index": 0, "message": message, "finish_reason": finish}])


class Fake:
    """A server whose `script` says what it does with a request: a status, "drop", "slow", "stuck" (until the
    server ends), "endless" (a byte now and then), "flood 200" (bytes without an end), or an answer to send."""

    def __init__(self, script):
        self.asked, self.keys, self.paths = [], [], []
        self.answered, self.ended, fake = 0, threading.Event(), self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self):
                with contextlib.suppress(ConnectionError):  # the client has left
                    super().handle()

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fake.asked.append(body)
                fake.keys.append(self.headers["Authorization"])
                fake.paths.append(self.path)
                what = script(body, len(fake.asked))
                if what == "drop":
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
                if what == "endless":
                    self.send_response(200)
                    self.end_headers()
                    while not fake.ended.wait(0.02):
                        self.wfile.write(b" ")
                    return
                if str(what).startswith("flood"):
                    self.send_response(int(what[-3:]))
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    while not fake.ended.is_set():
                        self.wfile.write(b"100000\r\n" + b" " * 2**20 + b"\r\n")
                    return
                if what in ("slow", "stuck"):
                    fake.ended.wait(3 if what == "slow" else 100)
                    what = 200
                status, answer, headers = (*what, None, {})[:3] if isinstance(what, tuple) else (what, None, {})
                headers = headers or {}
                if status == 200 and answer is None:
                    answer = completion(choices=[CHOICE | {"text": f"t{body['seed']}"}])
                content = answer if isinstance(answer, bytes) else json.dumps(answer or {"error": "no"}).encode()
                self.send_response(status)
                defaults = {"Content-Type": "application/json", "Content-Length": len(content), "retry-after-ms": 1}
                for name, value in (defaults | headers).items():
                    self.send_header(name, str(value))
                self.end_headers()
                self.wfile.write(content)
                fake.answered += 1

            def log_message(self, *args):
                pass

        class Listening(ThreadingHTTPServer):
            request_queue_size = 128  # as many as ask at once: the default of 5 turns some away

        self.server = Listening(("localhost", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://localhost:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.ended.set()
        self.server.shutdown()
        self.server.server_close()
