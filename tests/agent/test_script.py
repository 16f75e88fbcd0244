"""What the user's script sees: as if `python script args…` had been typed."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reknit.core.context import WORKER, WorkerContext
from reknit.core.events import WorkerExited, WorkerFailed, WorkerStarted
from support.agents import AgentUnderTest

Make = Callable[..., AgentUnderTest]


def test_it_sees_what_was_typed(make_agent: Make, tmp_path: Path) -> None:
    one = make_agent(
        """
        import atexit, json, multiprocessing, os, signal, sys, threading, time
        import beside  # a module beside the script
        atexit.register(lambda: open("atexit.txt", "w").write("ran"))
        def late():
            time.sleep(0.2)
            open("thread.txt", "w").write("ran")
        threading.Thread(target=late).start()
        def square(x):
            return x * x
        class Big:
            pass
        if __name__ == "__main__":
            import pickle
            pickle.loads(pickle.dumps(Big()))
            with multiprocessing.Pool(2) as pool:
                squares = pool.map(square, [1, 2, 3])
            with multiprocessing.get_context("forkserver").Pool(1) as pool:
                more = pool.map(square, [4])
                server = os.popen("ps -o ppid= -p %d" % pool._pool[0].pid).read().strip()
                server = os.popen("ps -o ppid= -p %s" % server).read().strip()
            gone = "RANK WORLD_SIZE MASTER_ADDR LOCAL_RANK SLURM_PROCID REKNIT_AGENT REKNIT_ENDPOINT".split()
            json.dump({
                "argv": sys.argv, "path": sys.path[0], "cwd": os.getcwd(),
                "stray": [n for n in gone if n in os.environ],
                "job_id": os.environ.get("SLURM_JOB_ID"), "worker": os.environ["REKNIT_WORKER"],
                "omp": os.environ["OMP_NUM_THREADS"], "method": multiprocessing.get_start_method(),
                "process": multiprocessing.current_process().name, "parent": str(multiprocessing.parent_process()),
                "squares": squares + more, "server_is_mine": server == str(os.getpid()),
                "leader": os.getsid(0) == os.getpgid(0) == os.getpid(), "stdin": sys.stdin.read(),
                "int": signal.getsignal(signal.SIGINT) == signal.SIG_IGN, "file": __file__,
                "hup": signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, "beside": beside.x,
            }, open("seen.json", "w"))
        """,
        args=("--nodes", "3", "--", "--x", "-v", ""),
    ).submit()
    (tmp_path / "beside.py").write_text("x = 5")
    # neither the agent nor its forkserver may load these: the working directory is the script's business alone
    for name in ("ssl", "nats", "reknit", "msgspec", "uuid"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('shadowed')")
    strays = {"RANK": "7", "WORLD_SIZE": "99", "MASTER_ADDR": "10.9.9.9", "SLURM_PROCID": "5", "LOCAL_RANK": "3"}
    one.start(strays | {"SLURM_JOB_ID": "4711", "OMP_NUM_THREADS": "3"})
    code = one.wait()
    assert code == 0, one.told()
    seen: dict[str, Any] = json.loads((tmp_path / "seen.json").read_text())
    context = json.loads(seen.pop("worker"))
    assert context["worker"] == "w0-0"
    assert seen == {
        "argv": [str(one.script), "--nodes", "3", "--", "--x", "-v", ""],
        "path": str(tmp_path),
        "cwd": str(tmp_path),
        "stray": [],
        "job_id": "4711",
        "omp": "3",
        "method": "fork",
        "process": "MainProcess",
        "parent": "None",
        "squares": [1, 4, 9, 16],
        "server_is_mine": True,
        "leader": True,
        "stdin": "",
        "int": True,
        "hup": True,
        "file": str(one.script),
        "beside": 5,
    }
    assert (tmp_path / "atexit.txt").exists()
    assert (tmp_path / "thread.txt").exists()
    told = one.told()
    assert told.count("removed from the workers' environment") == 1
    assert "LOCAL_RANK, MASTER_ADDR, RANK, SLURM_PROCID, WORLD_SIZE" in told
    assert "3 intra-op threads a worker (OMP_NUM_THREADS)" in told


def test_a_module(make_agent: Make, tmp_path: Path) -> None:
    one = make_agent("", script="pack.train", module=True, args=("-x",)).submit()
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "other.py").write_text("y = 6")
    (tmp_path / "pack" / "train.py").write_text(
        "import sys\nfrom .other import y\nprint('got', y, __name__, __package__, sys.argv, sys.path[0])"
    )
    one.start()
    assert one.wait() == 0, one.told()
    file = tmp_path / "pack" / "train.py"
    assert f"[w0-0] got 6 __main__ pack ['{file}', '-x'] {tmp_path}\n" in one.told()


@pytest.mark.parametrize(
    ("script", "code", "text", "failed"),
    [
        ("def f():\n    raise ValueError('boom')\nf()", 1, "ValueError: boom", "ValueError: boom"),
        ("def f(:\n    pass", 1, "SyntaxError: invalid syntax", "SyntaxError: invalid syntax"),
        ("import no_such_module", 1, "No module named 'no_such_module'", "ModuleNotFoundError: No module"),
        ("import argparse\nargparse.ArgumentParser().parse_args(['--no'])", 2, "unrecognized arguments: --no", None),
        (None, 1, "No such file or directory", "FileNotFoundError"),
        ("raise SystemExit('no data')", 1, "no data", None),
        ("import os\nos._exit(7)", 7, "", None),
        ("raise KeyboardInterrupt", 1, "KeyboardInterrupt", "KeyboardInterrupt"),
    ],
    ids=["raises", "syntax", "import", "argparse", "missing", "exit text", "exit", "keyboard"],
)
def test_it_fails_at_its_start(make_agent: Make, script: str | None, code: int, text: str, failed: str | None) -> None:
    one = make_agent(script or "").submit()
    if script is None:
        one.script.unlink()
    one.start()
    exited = one.event(WorkerExited)
    assert (exited.code, exited.expected) == (code, False)
    assert text in exited.stderr_tail
    assert "multiprocessing" not in exited.stderr_tail
    assert "runpy" not in exited.stderr_tail or script is None
    if failed is None:
        assert one.events(WorkerFailed) == []
    else:
        told = one.event(WorkerFailed)
        assert told.error.startswith(failed)
        assert (told.worker, told.incarnation) == (exited.worker, exited.incarnation)
        assert text in told.traceback
    one.finished("failed", "the script failed", "w0-0")
    assert one.wait() == 1
    assert len(one.events(WorkerStarted)) == 1
    last = one.told().rstrip().splitlines()[-1]
    assert (text in last) or not text


def test_the_traceback_begins_with_the_users_frames(make_agent: Make) -> None:
    one = make_agent("def f():\n    raise ValueError('boom')\n\nf()\n").submit().start()
    lines = one.event(WorkerExited).stderr_tail.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == f'  File "{one.script}", line 4, in <module>'
    assert one.event(WorkerFailed).traceback.splitlines()[1] == lines[1]


def test_a_sessions_connection_reports_the_failure(make_agent: Make, tmp_path: Path) -> None:
    """With `reknit.worker.live` there, the failure goes through it; it knows the place in the run."""
    one = make_agent(
        """
        import sys, types
        class Current:
            bus = None
            def failed(self, error):
                open("told.txt", "w").write(repr(error))
        sys.modules["reknit.worker.live"] = types.SimpleNamespace(current=lambda: Current())
        raise ValueError("boom")
        """
    ).submit()
    one.start()
    one.event(WorkerExited)
    assert one.events(WorkerFailed) == []
    assert (tmp_path / "told.txt").read_text() == "ValueError('boom')"


def test_an_error_of_the_job_is_no_failure_of_the_script(make_agent: Make) -> None:
    one = make_agent(
        "from reknit.core.errors import RefusedByJob\nraise RefusedByJob('seed is 1, the job has 0')"
    ).submit()
    one.start()
    assert "seed is 1" in one.event(WorkerExited).stderr_tail
    assert one.events(WorkerFailed) == []


def test_torch_is_warm_and_nothing_runs_beside_it(make_agent: Make) -> None:
    one = make_agent(
        """
        import sys
        warm = "torch" in sys.modules and "numpy" in sys.modules
        import os, numpy, torch
        print("tasks", len(os.listdir("/proc/self/task")), "warm", warm, "threads", torch.get_num_threads())
        print("drawn", numpy.random.randint(1 << 60))
        """,
        nproc=2,
        threads=2,
    ).submit()
    from reknit.worker.agent.preload import WARM

    one.start({"REKNIT_PRELOAD": ",".join(WARM)})
    assert one.wait() == 0, one.told()
    told = one.told()
    assert told.count("tasks 1 warm True threads 2") == 2, told
    assert "threads run in the forkserver" not in told
    assert "does not load" not in told
    assert "2 intra-op threads a worker (as asked)" in told
    drawn = {line.split()[-1] for line in told.splitlines() if "drawn" in line}
    assert len(drawn) == 2


def test_what_it_writes(make_agent: Make) -> None:
    one = make_agent(
        r"""
        import os, sys
        for i in range(100):
            print("line", i, file=sys.stderr)
        print("out", flush=True)
        sys.stderr.write("10%\r20%\rno end")
        sys.stderr.flush()
        os.write(2, b"\xff not utf-8")
        os.kill(os.getpid(), 11)
        """
    ).submit()
    one.start()
    exited = one.event(WorkerExited)
    assert (exited.code, exited.signal) == (-signal.SIGSEGV, "SIGSEGV")
    tail = exited.stderr_tail.splitlines()
    assert len(tail) == 40
    assert "Fatal Python error: Segmentation fault" in exited.stderr_tail
    assert "20%" in tail
    assert "[w0-0] out\n" in one.out.read_text()
    log = (one.folder / "logs" / "w0-0.log").read_bytes()
    assert b"line 0\n" in log
    # two pipes: what is read of one may come in between two writes to the other
    assert b"10%\r20%\rno end\xff not utf-8" in log.replace(b"out\n", b"")
    assert exited.log == str(one.folder / "logs" / "w0-0.log")


def test_its_context(make_agent: Make) -> None:
    one = make_agent(
        "import os; print('context', os.environ['REKNIT_WORKER'])",
        secret="s",
        slots=4,
        checkpoint_dir="/c",
        host="127.0.0.1",
    ).submit()
    one.start()
    assert one.wait() == 0
    import msgspec

    line = next(line for line in one.told().splitlines() if "context" in line)
    context = msgspec.json.decode(line.split("context ")[1], type=WorkerContext)
    started = one.started()
    assert context == WorkerContext(
        endpoint=one.endpoint,
        job=one.job,
        run="run1",
        node="w0",
        worker="w0-0",
        incarnation=started.incarnation,
        secret="s",
        slots=4,
        checkpoint_dir="/c",
    )
    assert WORKER == "REKNIT_WORKER"
