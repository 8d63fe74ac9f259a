# SPDX-License-Identifier: MIT
"""What the tests share: attention in float64, rows, golden files."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import socket
import subprocess
import time
import unittest
from typing import Any, Dict, Iterator, Optional

import numpy as np

import quire

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BOUND = 5e-4  # docs/kernels.md: error of an output row against float64 over the decoded rows, for rows like those of models


def rows(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def reference(q: Any, k: Any, v: Any, *, first: Optional[int] = None, scale: float = 0.0, softcap: float = 0.0, window: int = 0,
              ring: "tuple[int, int]" = (0, 0), mask: Any = None, sink_logits: Any = None, alibi: Any = None,
              bidirectional: bool = False) -> Any:
    """q (n, Hq, d), k (s, H, d), v (s, H, dv); query i stands at first + i. mask (Hq or 1, n, s) is added."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    n, heads, d = q.shape
    s = len(k)
    p = (s - n if first is None else first) + np.arange(n)[:, None]
    j = np.arange(s)[None]
    sees = np.ones((n, s), bool) if bidirectional else j <= p
    if window:
        sees &= j > p - window
    if ring[0]:
        sees &= (j < ring[1]) | (j > p - (ring[0] - ring[1]))
    out = np.zeros((n, heads, v.shape[2]))
    for h in range(heads):
        kv = h // (heads // k.shape[1])
        z = q[:, h] @ k[:, kv].T * (scale or d**-0.5)
        if softcap:
            z = softcap * np.tanh(z / softcap)
        if alibi is not None:
            z = z + alibi[h] * (j - p)
        if mask is not None:
            z = z + np.asarray(mask[h % len(mask)], np.float64)
        z = np.where(sees, z, -np.inf)
        top = z.max(1, keepdims=True)
        if sink_logits is not None:
            top = np.maximum(top, sink_logits[h])
        e = np.exp(z - top)
        total = e.sum(1, keepdims=True)
        if sink_logits is not None:
            total = total + np.exp(sink_logits[h] - top)
        out[:, h] = e / total @ v[:, kv]
    return out


def error(out: Any, wanted: Any) -> float:
    """The largest error of an output row, relative to the row."""
    return float((np.linalg.norm(out - wanted, axis=-1) / np.linalg.norm(wanted, axis=-1)).max())


def one_layer(policy: str = "k8v4", *, heads: int = 2, per: int = 4, d: int = 64, d_v: Optional[int] = None, budget: int = 1 << 26,
              threads: int = 1, **more: Any) -> quire.Pool:
    plan = quire.Plan(policy, n_q_heads=heads * per, n_kv_heads=heads, d_k=d, d_v=d_v, **more)
    return quire.Pool(plan, budget, threads)


_TYPES = {"u8": "u1", "u16": "<u2", "u32": "<u4", "i8": "i1", "i32": "<i4", "i64": "<i8", "f32": "<f4", "f64": "<f8", "f16": "<f2",
          "bf16": "<u2"}


def gold(name: str) -> Dict[str, Any]:
    """Arrays of a golden file (tests/support/gold.h); bf16 as uint16."""
    data = (SOURCE / "tests" / "golden" / name).read_bytes()
    lines = data[:data.index(b"\nend\n")].decode().split("\n")
    assert lines[0] == "quire-gold 1"
    arrays = {}
    for line in lines[1:]:
        word, kind, ndim, *rest = line.split()
        shape, (offset, size) = [int(x) for x in rest[:int(ndim)]], [int(x) for x in rest[int(ndim):]]
        arrays[word] = np.frombuffer(data[offset:offset + size], _TYPES[kind]).reshape(shape)
    return arrays


@contextlib.contextmanager
def redis_server(folder: str, *options: str) -> Iterator[int]:
    """A Redis or Valkey server; its port, or that of TLS if options name a certificate."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if not program:
        raise unittest.SkipTest("no redis-server here")
    with socket.socket() as kept:  # until the end nobody else gets the port; a server, which listens with SO_REUSEADDR, can have it
        kept.bind(("127.0.0.1", 0))
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port = kept.getsockname()[1]
        where = ["--port", "0", "--tls-port", str(port)] if "--tls-cert-file" in options else ["--port", str(port)]
        server = subprocess.Popen([program, *where, "--bind", "127.0.0.1", "--save", "", "--dir", folder, *options], stdout=subprocess.DEVNULL)
        try:
            for _ in range(1200):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            yield port
        finally:
            server.terminate()
            server.wait()


def certificates(folder: str) -> "tuple[str, ...]":
    """Makes ca.pem and other-ca.pem, and server.pem for 127.0.0.1 and pages.example that ca.pem has signed; the options of a server with it."""
    if not shutil.which("openssl"):
        raise unittest.SkipTest("no openssl here")
    key = ("-newkey", "rsa:2048", "-nodes")
    pathlib.Path(folder, "ext").write_text("subjectAltName=IP:127.0.0.1,DNS:pages.example")
    for line in (("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=ca"),
                 ("req", "-x509", *key, "-keyout", "other.key", "-out", "other-ca.pem", "-days", "2", "-subj", "/CN=ca"),
                 ("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=server"),
                 ("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", "server.pem", "-days", "2",
                  "-extfile", "ext")):
        subprocess.run(["openssl", *line], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return ("--tls-cert-file", f"{folder}/server.pem", "--tls-key-file", f"{folder}/server.key", "--tls-ca-cert-file", f"{folder}/ca.pem")
