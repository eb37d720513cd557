"""Which text a run reads: the [data] table. Nothing here imports torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Discriminator, Field, Tag, model_validator

from labkit.strict import Config, Count, require

SOURCES = ("python", "python+packages")


class DataConfig(Config):
    """Where the tokens come from; see `labkit.train.data.corpus`."""

    source: Annotated[  # "python", "python+packages", or a list of paths
        Annotated[str, Tag("<name>")] | Annotated[list[str], Tag("<list>")],
        Discriminator(lambda value: "<list>" if isinstance(value, list) else "<name>"),
    ] = "python"
    vocab_size: Annotated[int, Field(ge=257)] = 4096  # in a TrainConfig, unless given: the model's
    heldout_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.05
    max_bytes: Count | None = None  # None: all of the source
    suffixes: list[str] = Field(default=[".py"], min_length=1)

    @model_validator(mode="after")
    def _known_source(self) -> DataConfig:
        require(
            isinstance(self.source, list) or self.source in SOURCES,
            f'source = {self.source!r} is not a source: write "python", "python+packages", '
            'or a list of folders and files, as in ["~/my_texts"]',
        )
        require(self.source != [], "source is an empty list: name a folder or a file")
        return self
