#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""scripts/check-required on made results, the list tests/required itself, the budgets of .ci/run and the lines of scripts/nightly."""
import contextlib
import datetime
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from xml.sax.saxutils import escape

from scripts import loaded

ROOT = Path(__file__).resolve().parents[2]
TODAY = datetime.date.today()
LATER, EARLIER = (TODAY + datetime.timedelta(days=n) for n in (30, -1))

RUN, FAIL = 'status="run"', 'status="fail"'
CUT = "[This part of the test output was removed since it exceeds the threshold of 1024 bytes.]"


SCRIPT = loaded("check-required")


def case(name, output="", status=RUN, inside=""):
    return f'<testcase name="{name}" classname="{name}" time="1" {status}>{inside}<system-out>{escape(output)}</system-out></testcase>'


def skipped(name, output="", code=77):
    """As ctest 3.25 writes a test that exits with its SKIP_RETURN_CODE."""
    return case(name, output, 'status="notrun"', f'<skipped message="SKIP_RETURN_CODE={code}"/>')


class CheckRequired(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="quire-required-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def file(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def run_script(self, required, *arguments, hosts=None, **sets):
        """(exit status, output). sets: preset=[cases] or preset="plain lines"."""
        command = ["--list", str(self.file("required", required)), *arguments]
        if hosts is not None:
            sets["hosts"] = hosts
        for name, content in sets.items():
            if isinstance(content, str):
                path = self.file(f"{name}.ran", content)
            else:
                path = self.file(f"{name}.xml", '<?xml version="1.0" encoding="UTF-8"?>\n<testsuite>' + "".join(content) + "</testsuite>")
            command.append(f"{name}={path}")
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            status = SCRIPT.main(command)
        return status, output.getvalue()

    def passes(self, text, *arguments, **named):
        status, output = self.run_script(*arguments, **named)
        self.assertEqual(status, 0, output)
        self.assertIn(text, output)

    def fails(self, text, *arguments, status=1, **named):
        found, output = self.run_script(*arguments, **named)
        self.assertEqual(found, status, output)
        self.assertIn(text, output)

    # --- what ran and what did not ---

    def test_all_ran(self):
        self.passes("required: 3 ran, 0 waived", "a\nb preset:release,asan # a comment\n\n", release=[case("a"), case("b")], asan=[case("b")])

    def test_several_files_of_one_set(self):
        xml = ['<testsuite>' + case(name) + '</testsuite>' for name in "ab"]
        paths = [f"release={self.file(f'{i}.xml', text)}" for i, text in enumerate(xml)]
        self.passes("required: 2 ran", "a\nb\n", *paths)

    def test_skipped(self):
        self.fails("NOT RUN: b: skipped (no host)", "a\nb\n", release=[case("a"), skipped("b", "skipped: no host\n")])
        self.fails("SKIP_RETURN_CODE=3", "a\n", release=[skipped("a", code=3)])

    def test_not_found_disabled_failed(self):
        gone = case("a", "Unable to find executable: a", 'status="notrun"', '<skipped message="Unable to find executable"/>')
        self.fails("Unable to find executable", "a\n", release=[gone])
        self.fails("disabled", "a\n", release=[case("a", "Disabled", 'status="disabled"')])
        self.fails("a: failed", "a\n", release=[case("a", "", FAIL, '<failure message=""/>')])

    def test_missing(self):
        self.fails("b: not found: no set of results has a test of this name", "a\nb\n", release=[case("a")])
        self.fails("a preset:asan: not among the results of asan", "a preset:release,asan\n", release=[case("a")])

    def test_skipped_inside(self):
        for output in ("test_server (test_store.Redis) ... skipped 'no redis-server here'\nOK (skipped=1)\n", "OK (skipped=1)\n",
                       "[  SKIPPED ] of_redis\n[  SKIPPED ] 1 test(s), listed below:\n[  SKIPPED ] of_redis\n",
                       "left out: comparison with mlx-lm\n", "   get-llama --node: not here\n"):
            self.fails("left out a part of itself", "a\n", release=[case("a", output)])
            self.passes("1 ran", "a skips:1\n", release=[case("a", output)])
        self.fails("left out a part of itself", "a skips:1\n", release=[case("a", "OK (skipped=2)\n")])

    def test_output_cut_off(self):
        self.fails("is cut off", "a\n", release=[case("a", CUT)], status=2)

    def test_skipped_and_not_listed(self):
        self.fails("NOT RUN: new: skipped", "a\n", release=[case("a"), skipped("new")])
        self.passes("1 ran", "a\n", release=[case("a"), case("new")])

    def test_partial(self):
        self.passes("0 ran, 0 waived, 1 not run", "a\n", "--partial", release=[skipped("a")])

    def test_one_set(self):
        required = "a preset:asan\nb\nc preset:asan host:node\nwaive b until 2000-01-01: old\n"
        self.passes("required: 1 ran, 0 waived", required, "--preset", "asan", asan=[case("a"), case("c")])
        self.fails("a preset:asan: skipped", required, "--preset", "asan", asan=[skipped("a")])

    # --- hosts, instruction sets ---

    def test_host(self):
        required = "t host:debian\nt host:node\ndebian preset:hosts\nnode preset:hosts\n"
        both = [case("t", "ok debian: the device answers\n")]
        self.passes("required: 4 ran", required, release=both, hosts="debian ran\nnode ran\n")
        self.fails("t host:node: the host was not there (no npm)", required, release=both, hosts="debian ran\nnode not run: no npm\n")
        self.fails("nobody looked for it", required, release=both, hosts="debian ran\n")
        waived = required + f"waive t host:node until {LATER}: x\nwaive node preset:hosts until {LATER}: x\n"
        self.passes("required: 2 ran, 2 waived", waived, release=both, hosts="debian ran\nnode not run: no npm\n")
        without = [case("t", "   get-llama --node: not here\n")]
        self.passes("required: 2 ran, 2 waived", waived, release=without, hosts="debian ran\nnode not run: no npm\n")
        self.fails("t host:node: left out a part of itself", required, release=without, hosts="debian ran\nnode ran\n")
        self.fails("t host:debian", waived, release=both, hosts="debian not run: no mirror\nnode ran\n")

    def test_instruction_sets(self):
        required = "t_avx2 isa:avx2\nt_avx512vbmi isa:avx512vbmi\n"
        self.passes("required: 2 ran", required, "--isa", "c,avx2,avx512vbmi", release=[case("t_avx2"), case("t_avx512vbmi")])
        self.fails("t_avx512vbmi isa:avx512vbmi: not found", required, "--isa", "c,avx2,avx512vbmi", release=[case("t_avx2")])
        self.fails("isa:avx512vbmi: this machine lacks it", required, "--isa", "c,avx2", release=[case("t_avx2")])
        self.passes("1 ran, 1 waived", required + f"waive isa:avx512vbmi until {LATER}: x\n", "--isa", "c,avx2", release=[case("t_avx2")])
        emulated = required + "e_avx512vbmi lacks:avx512vbmi\n"
        self.passes("required: 2 ran", emulated, "--isa", "c,avx2", release=[case("t_avx2"), case("e_avx512vbmi")])
        self.fails("e_avx512vbmi lacks:avx512vbmi: not found", emulated, "--isa", "c,avx2", release=[case("t_avx2")])
        self.passes("required: 2 ran", emulated, "--isa", "c,avx2,avx512vbmi", release=[case("t_avx2"), case("t_avx512vbmi")])

    # --- waivers ---

    def test_waived(self):
        self.passes("required: 1 ran, 1 waived", f"a\nb\nwaive b until {LATER}: no server\n", release=[case("a"), skipped("b")])
        self.passes("waived until", f"a\nwaive a until {TODAY}: the last day\n", release=[skipped("a")])

    def test_waiver_of_one_preset(self):
        required = f"a preset:release,asan\nwaive a preset:asan until {LATER}: x\n"
        self.passes("1 ran, 1 waived", required, release=[case("a")], asan=[skipped("a")])
        self.fails("NOT RUN: a: skipped", required, release=[skipped("a")], asan=[case("a")])

    def test_expired(self):
        self.fails(f"its waiver expired on {EARLIER}", f"a\nwaive a until {EARLIER}: no server\n", release=[skipped("a")])
        self.passes("1 ran, 0 waived", f"a\nwaive a until {EARLIER}: no server\n", release=[case("a")])

    def test_waiver_of_nothing(self):
        self.fails("waive b: no test of this name is required", f"a\nwaive b until {LATER}: x\n", release=[case("a")])

    # --- what cannot be read ---

    def test_wrong_list(self):
        for line in ("a b", "a host:", "a isa:sse9", "a lacks:x", "a skips:some", "a isa:c isa:c", "a\na", "waive a", "waive a until 2026-13-01: x",
                     "waive a until 2027-01-01", "waive a until soon: x"):
            self.fails("required:", line + "\n", release=[case("a")], status=2)

    def test_wrong_results(self):
        self.fails("neither", "a\n", hosts="node perhaps\n", status=2)
        self.fails("NAME=FILE", "a\n", "somewhere", status=2)
        self.fails("No such file", "a\n", f"release={self.folder}/none.xml", status=2)
        self.fails("broken.xml", "a\n", f"release={self.file('broken.xml', '<testsuite>')}", status=2)

    # --- the real files ---

    def test_the_list(self):
        """tests/required can be read; the tests that it names are there if the release preset is configured."""
        status, output = self.run_script((ROOT / "tests/required").read_text(), "--partial")
        self.assertEqual(status, 0, output)
        # Not `ctest -N`, which would write to the log of the ctest that runs this.
        files = [f.read_text() for f in (ROOT / "build/release").glob("**/CTestTestfile.cmake")]
        known = set(re.findall(r"^add_test\((?:\[=*\[)?([^]\s]+)", "\n".join(files), re.M))
        if not known:
            return
        names = [line.split() for line in (ROOT / "tests/required").read_text().splitlines() if line.strip() and line[0] not in "#"]
        missing = {w[0] for w in names if w[0] != "waive" and not any(x.startswith("preset:") and "release" not in x for x in w)} - known
        self.assertEqual(missing, set(), "named in tests/required, unknown to the preset release")

    def hosts_of_ci(self):
        """{name: arguments of scripts/get-llama}, as .ci/run asks for them."""
        line = re.search(r"^HOSTS=\((.+)\)$", (ROOT / ".ci/run").read_text(), re.M)[1]
        return {words[0]: words[1:] for words in (host.split() for host in re.findall("'(.+?)'", line))}

    def test_hosts(self):
        """.ci/run looks for every host of the list and for no other; one that is missing fails, unless it is waived."""
        required = (ROOT / "tests/required").read_text()
        listed = re.findall(r"^(\S+) preset:hosts$", required, re.M)
        self.assertEqual(set(self.hosts_of_ci()), {name for name in listed if not name.startswith(("mlx-lm-", "mlx-vlm-", "vllm-"))})
        for missing in listed:
            hosts = "".join(f"{name} {'not run: no network' if name == missing else 'ran'}\n" for name in listed)
            self.fails(f"NOT RUN: {missing} preset:hosts: no network", required, "--preset", "hosts", hosts=hosts)
            self.fails("not found", required, "--preset", "hosts", hosts=hosts.replace(f"{missing} not run: no network\n", ""))
            waived = f"{required}waive {missing} preset:hosts until {{}}: no network\n"
            self.passes(f"{len(listed) - 1} ran, 1 waived", waived.format(LATER), "--preset", "hosts", hosts=hosts)
            self.fails("its waiver expired", waived.format(EARLIER), "--preset", "hosts", hosts=hosts)

    def test_hosts_that_cannot_be_fetched(self):
        """Exit status 3, which .ci/run takes for `not run`; any other ends the run, waived or not."""
        programs = self.folder / "programs"
        programs.mkdir()
        for name in ("npm", "cargo", "apt-get"):
            (programs / name).write_text("#!/bin/sh\nexit 1\n")
            (programs / name).chmod(0o755)
        env = {**os.environ, "QUIRE_CACHE": str(self.folder / "cache"), "CARGO_HOME": str(self.folder), "QUIRE_DEBIAN_MIRROR": "http://127.0.0.1:9",
               "PATH": f"{programs}:{os.environ['PATH']}", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_RETRIES": "0"}
        env.pop("QUIRE_OFFLINE", None)
        for name, arguments in self.hosts_of_ci().items():
            for more in ({}, {"QUIRE_OFFLINE": "1"}):
                done = subprocess.run([str(ROOT / "scripts/get-llama"), *arguments], env={**env, **more}, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True)
                self.assertEqual(done.returncode, 3, f"{name}, {more}: {done.stdout}")
                self.assertIn("not available here: ", done.stdout.splitlines()[-1])

    def test_every_level_of_x86(self):
        """Where the machine lacks a level above AVX2, its emulated tests must run; no waiver excuses it."""
        levels = ("avxvnni", "avx512vnni", "avx512vbmi", "amx")
        for n in range(len(levels)):
            status, output = self.run_script((ROOT / "tests/required").read_text(), "--partial", "--isa", ",".join(("c", "avx2") + levels[:n]))
            self.assertEqual(status, 0, output)
            self.assertEqual(re.findall(r"^waived: isa:.*", output, re.M), [])
            required = set(re.findall(r"^NOT RUN: (.+?): ", output, re.M))
            for level in levels:
                tests = {f"emulated_{level}_{test} lacks:{level}" for test in ("attend_api", "attend_invariance", "attend_poison", "golden_attend",
                                                                               "golden_ring", "golden_batch")}
                self.assertEqual(tests & required, set() if level in levels[:n] else tests)

    def test_leaving_out_hides_nothing(self):
        """A test of llama.cpp that has checked something cannot be left out (77) any more."""
        for before, status in (("", 77), ("kit.expect(True, 'one'); ", 1), ("kit.expect(False, 'one'); ", 1)):
            code = f"import sys; sys.path.insert(0, 'tests/llama'); import kit\ndef step(): {before}raise kit.Absent('no model')\nkit.part(step)"
            done = subprocess.run([sys.executable, "-B", "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.assertEqual(done.returncode, status, done.stdout)

    def test_no_result_is_only_named(self):
        """In .ci/run a test that must run and did not ends the run: no call of required() has an alternative."""
        calls = [line.strip() for line in (ROOT / ".ci/run").read_text().splitlines() if re.match(r" *required\b(?!\()", line)]
        self.assertIn("required", calls)  # all sets, at the end
        for call in calls:
            self.assertRegex(call, r"^required( [a-z0-9]+)?$")

    def test_budgets_and_nightly(self):
        for command in ([".ci/run", "--budgets"], ["scripts/nightly", "--check"], ["scripts/nightly", "--list"]):
            done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    unittest.main()
