# SPDX-License-Identifier: MIT
"""The OpenSSL inside a wheel of a release: its pages are those of the system's OpenSSL, and it keeps to itself.

    QUIRE_PYTHON=PYTHON python/tests/run tests/system/wheel_store.py FOLDER

PYTHON has the wheel; FOLDER has libquire and libquire_store of the same version that use the system's OpenSSL, for one those of the Debian packages.
What every build promises about TLS and the seal is in python/tests/test_store.py.
"""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2] / "python/tests"
sys.path.insert(0, str(TESTS))
from support import certificates, redis_server  # noqa: E402

PROGRAM = f"""
import hashlib, sys
sys.path.insert(0, {str(TESTS)!r})
from test_store import IDENTITY, TOKENS, filled
from support import one_layer
import quire
from quire import _store
def open_store():
    return quire.Store(%s)
def tell(s):
    print(_store.lib()._name, hashlib.sha256(b"".join(s.codes(kind, 0, 0, 256).codes.tobytes() for kind in "kv")).hexdigest())
"""
SAVE = """
with open_store() as store, one_layer() as pool:
    s = filled(pool)
    store.namespace(IDENTITY, pool.plan).save(TOKENS, s)
    store.flush()
    assert sum(store.stats["saved"]) == 4, store.stats
    tell(s)
"""
LOAD = """
with open_store() as store, one_layer() as pool:
    s = pool.sequence()
    assert store.namespace(IDENTITY, pool.plan).load(TOKENS, s) == 256, store.stats
    tell(s)
"""
# A thread that has used OpenSSL ends after the library was unloaded.
UNLOAD = """
import _ctypes, threading
used, unloaded = threading.Event(), threading.Event()
def work():
    open_store().close()
    used.set()
    unloaded.wait()
thread = threading.Thread(target=work)
thread.start()
used.wait()
_ctypes.dlclose(_store.lib()._handle)
unloaded.set()
thread.join()
print("ended")
"""
# Somebody needs old ciphers; somebody else has a provider of his own, and wants to know if it fails.
SETTINGS = ("openssl_conf = a\n[a]\nproviders = b\n[b]\nlegacy = c\n[c]\nactivate = 1\n",
            "config_diagnostics = 1\nopenssl_conf = a\n[a]\nproviders = b\n[b]\nhis = c\n[c]\nmodule = /nowhere/his.so\nactivate = 1\n")


def run(program, store, **environment):
    """The words that a process prints, which must end well. store: the arguments of quire.Store() as Python text."""
    done = subprocess.run([sys.executable, "-c", PROGRAM % store + program], capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
    if done.returncode:
        raise AssertionError(f"status {done.returncode}\n{done.stderr}")
    return done.stdout.split()


class WheelStore(unittest.TestCase):
    other = ""  # folder of the libraries with the system's OpenSSL

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def exchange(self, store):
        """Either build reads what the other one has written; each time from a store of its own."""
        for i in range(2):
            environments = {}, {"QUIRE_LIBRARY": self.other}
            wrote, read = run(SAVE, store(i), **environments[i]), run(LOAD, store(i), **environments[1 - i])
            self.assertEqual(wrote[1], read[1])
            self.assertEqual([Path(said[0]).parent == Path(self.other) for said in (wrote, read)], [i == 1, i == 0])

    def test_sealed_pages_on_disk(self):
        self.exchange(lambda i: f"{self.folder + f'/store{i}'!r}, disk_bytes=64 << 20, seal_disk=True")

    def test_remote_objects_over_tls(self):
        options = certificates(self.folder)
        with redis_server(self.folder, *options, "--tls-auth-clients", "no") as first, redis_server(self.folder, *options, "--tls-auth-clients", "no") as second:
            self.exchange(lambda i: f"remote=quire.Remote('127.0.0.1', {(first, second)[i]}, tls=True, tls_ca={self.folder + '/ca.pem'!r})")

    def test_settings_of_another_openssl_are_not_read(self):
        for i, text in enumerate(SETTINGS):
            with self.subTest(i):
                path = Path(self.folder, f"openssl{i}.cnf")
                path.write_text(text)
                run(SAVE, f"{self.folder + f'/store{i}'!r}, disk_bytes=64 << 20, seal_disk=True", OPENSSL_CONF=str(path))

    def test_trusted_certificates_of_the_system(self):
        """Without tls_ca: those of SSL_CERT_FILE, and otherwise those of /etc/ssl, which have not signed this one."""
        with redis_server(self.folder, *certificates(self.folder), "--tls-auth-clients", "no") as port:
            store = f"remote=quire.Remote('127.0.0.1', {port}, tls=True)"
            run(SAVE, store, SSL_CERT_FILE=self.folder + "/ca.pem")
            run(LOAD, store, SSL_CERT_FILE=self.folder + "/ca.pem")
            with self.assertRaises(AssertionError):
                run(LOAD, store)

    def test_unloaded(self):
        self.assertEqual(run(UNLOAD, f"{self.folder + '/store'!r}, disk_bytes=64 << 20, seal_disk=True"), ["ended"])


if __name__ == "__main__":
    WheelStore.other = str(Path(sys.argv.pop(1)).resolve(strict=True))
    unittest.main(verbosity=2)
