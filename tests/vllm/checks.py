# SPDX-License-Identifier: MIT
"""Prints a line per check and counts those that failed."""


class Checks:
    def __init__(self):
        self.n = self.failed = 0

    def __call__(self, right, what, detail=""):
        self.n += 1
        self.failed += not right
        print(f"ok {what}" if right else f"FAILED {what} {detail}", flush=True)
        return right

    def raises(self, call, what, containing=""):
        """The call raises an exception whose text contains something."""
        try:
            call()
        except Exception as error:
            return self(containing in str(error), f"{what} is refused: {error}", f"(expected: {containing})")
        return self(False, f"{what} is refused")

    def end(self):
        print(f"{self.n} checks, {self.failed} failed")
        return 1 if self.failed or not self.n else 0
