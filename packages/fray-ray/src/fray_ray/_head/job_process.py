"""A job's own process: `python -m fray_ray._head.job_process MODULE SUBMISSION [FIRST]`, run by Ray.

It starts the job's driver, which is that module, and another one where it is killed. It ends with Ray's
supervisor of the job, and its exit code is the job's. It imports almost nothing, to be small. Another
process, the guardian, ends what is left of the job where this process is killed.
"""

import os
import signal
import sys
import time

PARENT = "FRAY_DRIVER_PARENT"
"""The variable that tells a driver the process that started it."""
UNSUCCESSFUL = 3
"""The exit code of a driver whose job did not succeed; of one that failed itself it is another."""
_MOST = 5  # drivers that end one after the other, each soon
_SOON = 60.0  # seconds
_LOOK = 1.0  # seconds between looks for Ray's supervisor
_ENDED_BY_SIGNAL = 128


class JobProcess:
    """Starts drivers until one has carried the job to its end."""

    def __init__(self, words: list[str]) -> None:
        self._words, self._parent = words, os.getppid()
        self._driver = 0
        self._told = False  # to end
        self.in_order = False
        """Whether a driver carried the job to its end, so that nothing of it is left."""

    def run(self) -> int:
        """Return the exit code of the job."""
        signal.signal(signal.SIGTERM, self._hand_on)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        failures = 0
        while True:
            started = time.monotonic()
            code = self._run_driver()
            if code in (0, UNSUCCESSFUL):
                self.in_order = True
                return 1 if code else 0
            if self._told:
                return _ENDED_BY_SIGNAL + signal.SIGTERM
            failures = 1 if time.monotonic() - started > _SOON else failures + 1
            if failures > _MOST:
                os.write(2, f"[fray] {_MOST} drivers of the job failed, each within {_SOON:g} s\n".encode())
                return 1
            time.sleep(0.05 * 2**failures)

    def _run_driver(self) -> int:
        """Start a driver and wait for it; return its exit code, or the signal, negative."""
        command = [sys.executable, "-m", *self._words]
        environ = {**os.environ, PARENT: str(os.getpid())}
        self._driver = os.posix_spawn(sys.executable, command, environ, setsigmask=())
        while True:
            pid, status = os.waitpid(self._driver, os.WNOHANG)
            if pid:
                self._driver = 0
                return os.waitstatus_to_exitcode(status)
            if os.getppid() != self._parent:  # Ray's supervisor is gone, and the job with it
                os._exit(1)
            signal.sigtimedwait([signal.SIGCHLD], _LOOK)

    def _hand_on(self, *_: object) -> None:
        self._told = True
        if self._driver:
            os.kill(self._driver, signal.SIGTERM)


def leave_a_guardian(submission: str) -> int:
    """Start the guardian; a byte written to the descriptor says that the job has ended in order."""
    end, told = os.pipe()
    child = os.fork()
    if child:
        os.close(end)
        os.waitpid(child, 0)
        return told
    os.close(told)
    os.setsid()
    if os.fork():
        os._exit(0)
    if not os.read(end, 1):
        environ = {name: value for name, value in os.environ.items() if name != "RAY_JOB_CONFIG_JSON_ENV_VAR"}
        command = [sys.executable, "-m", "fray_ray._head.lost_job", submission, "guardian"]
        os.execve(sys.executable, command, environ)  # noqa: S606 - no shell
    os._exit(0)


def main() -> int:
    """Be small, and run the job."""
    if not sys.flags.isolated:
        os.execv(sys.executable, [sys.executable, "-I", "-S", __file__, *sys.argv[1:]])  # noqa: S606
    told = leave_a_guardian(sys.argv[2])
    process = JobProcess(sys.argv[1:])
    code = process.run()
    if process.in_order:
        try:
            os.write(told, b".")
        except BrokenPipeError:  # the guardian was killed
            return code
    return code


if __name__ == "__main__":
    sys.exit(main())
