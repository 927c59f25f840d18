"""`make portable`: the numerical tests as older processors would run them, with 1 and 2 threads.

ATen, oneDNN and MKL choose their instructions by the processor they find; each can be told to make
do with less. What passes under all of them passes on a machine that has no more.
"""

import os
import subprocess
import sys

SETS = {
    "default": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
    "native": {},
}


def main() -> int:
    """Run all combinations but the one that `make test` is; 1 if any fails."""
    failed = []
    for threads in (1, 2):
        for name, instructions in SETS.items():
            if (name, threads) == ("native", 1):
                continue
            what = f"{name}, {threads} thread{'s' if threads > 1 else ''}"
            print(f"== {what}", flush=True)
            if _run(instructions, threads):
                failed.append(what)
    print(f"failed: {'; '.join(failed)}" if failed else "all passed", flush=True)
    return int(bool(failed))


def _run(instructions: dict[str, str], threads: int) -> int:
    words = ["-m", "pytest", "-m", "numerical and not slow", "-n", "2"]
    words += ["--dist", "loadfile", "-p", "no:cacheprovider", *sys.argv[1:]]
    own = os.environ | instructions | {"OMP_NUM_THREADS": str(threads)}
    return subprocess.run([sys.executable, *words], env=own, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
