import subprocess
import sys
from pathlib import Path

from tests import house_rules

LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")


def test_every_file_is_named_in_the_layout_and_imports_point_down() -> None:
    done = subprocess.run([LINT_IMPORTS, "--no-cache"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_house_rules_are_kept() -> None:
    assert list(house_rules.faults(house_rules.tracked())) == []


def test_long_function_is_found(tmp_path: Path) -> None:
    file = tmp_path / "long.py"
    file.write_text("def f():\n" + "    x = 1\n" * house_rules.LONGEST_FUNCTION_LINES)
    assert [fault.split(": ")[1] for fault in house_rules.faults_of_python(file)] == [
        "f has 51 lines, 50 are the most"
    ]


def test_inline_script_is_found(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text('<script>alert(1)</script><script type="application/json">{}</script><b onclick="x()">')
    assert len(list(house_rules.faults_of_template(file))) == 2
