"""What is required, as in pyproject.toml (a test holds them together)."""

PYTHON = (3, 11)
TORCH = ((2, 11), (2, 15))  # at least, less than
TE = (2, 20)
PACKAGES = (
    *("numpy", "matplotlib", "pydantic", "typer", "rich", "tokenizers", "jinja2", "scipy", "psutil"),
    *("nvidia-ml-py", "cloudpickle"),
)
NOTEBOOK = ("jupyterlab", "pytest")  # what students need beside them: `lab open`, `lab check`


def dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
