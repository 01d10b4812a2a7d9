"""How large the repository is said to be."""

from lab.sizes import closure, code_lines, report

CODE = '''"""A module
of two lines."""


# A comment.
def double(x):
    """Twice."""
    return 2 * x  # the code
'''


def test_docstrings_and_comments_are_no_code_and_closures_follow_imports() -> None:
    assert code_lines(CODE) == 2
    lazy = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import inference.runner\n"
    files = {"inference/__init__.py": "", "inference/schedules.py": "from inference import guard\n"}
    files |= {"inference/guard.py": lazy, "inference/runner.py": "import torch\n"}
    read = {"inference/__init__.py", "inference/schedules.py", "inference/guard.py"}
    assert closure("inference.schedules", files) == (read, False)
    assert closure("inference.runner", files)[1]
    assert "names of the library" in report(files | {"facetvae/table_rules/counting.py": CODE})
