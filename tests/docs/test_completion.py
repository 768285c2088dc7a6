"""The completion function of docs/start.md, called as bash calls it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import text_of

FUNCTION = re.search(r"```bash\n(_sora\(\).*?)```", text_of("docs/start.md"), re.DOTALL)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_verbs_and_flags_are_completed() -> None:
    assert FUNCTION is not None
    script = f'PATH="{Path(sys.executable).parent}:$PATH"\n{FUNCTION[1]}\n'
    for line in ("sora ex", "sora train --eval-", "sora data get --fr", "sora train runs"):
        words = line.split()
        script += f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _sora sora {words[-1]}\n"
        script += 'echo "${COMPREPLY[*]}"\n'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:4] == ["export", "--eval-every", "--from", ""]
