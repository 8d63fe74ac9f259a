# SPDX-License-Identifier: MIT
"""What docs/python.md shows, run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
import unittest

from support import SOURCE


class Docs(unittest.TestCase):
    def test_blocks(self) -> None:
        text = (SOURCE / "docs" / "python.md").read_text()
        text = re.sub(r"\n## mlx-lm\n.*?(?=\n## )", "", text, flags=re.S)  # needs MLX; it has tests of its own
        blocks = re.findall(r"```python\n(.*?)```", text, re.S)
        self.assertEqual(len(blocks), 4)
        for block in blocks:
            with self.subTest(block=block.splitlines()[0]):
                done = subprocess.run([sys.executable, "-W", "error", "-c", block], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      text=True)
                self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    unittest.main()
