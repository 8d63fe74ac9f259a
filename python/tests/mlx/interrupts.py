# SPDX-License-Identifier: MIT
"""Interrupts at chosen moments. CPython runs a signal handler when a function begins, after a call, and when a loop goes back; a profile function
is called when functions begin and end, C functions included, and what it raises comes out there. Before a C function begins no handler runs:
at the end of a with block that is what releases the lock."""
import os
import signal
import sys

HERE = os.sep + os.path.join("quire", "")


class Stop(BaseException):
    """What interrupts raise. As KeyboardInterrupt it is no Exception."""


def interrupted(call, at, kind=Stop):
    """Runs a call and raises at moment number `at` of those in the package. Returns whether it came so far."""
    left, came = [at], []

    def moment(frame, event, argument):
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        # A generator that goes on is interrupted inside its `try`, but what is raised here comes out of it.
        if event == "c_call" or HERE not in file or name in ("_generator", "<genexpr>"):
            return
        if not left[0]:
            sys.setprofile(None)
            came.append(True)
            raise kind()
        left[0] -= 1

    old, sys.unraisablehook = sys.unraisablehook, lambda _: None
    sys.setprofile(moment)
    try:
        call()
    except kind:
        pass
    finally:
        sys.setprofile(None)
        sys.unraisablehook = old
    return bool(came)


def timed(call, seconds, kind=KeyboardInterrupt):
    """Runs a call with a timer that raises. Returns whether it came before the end."""

    def handler(*_):
        raise kind()

    old = signal.signal(signal.SIGALRM, handler)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
            call()
            return False
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except kind:
        return True
    finally:
        signal.signal(signal.SIGALRM, old)
