"""Strict configs: the base class of every config, whose mistakes, found by pydantic, are reported in one sentence each:

run.toml: in [data], 'vocab_sise' is not a known key; did you mean 'vocab_size'?
"""

import difflib
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from labkit.errors import LabError

AnyConfig = TypeVar("AnyConfig", bound="Config")
AnyModel = TypeVar("AnyModel", bound=BaseModel)

Count = Annotated[int, Field(ge=1)]
CountOrOff = Annotated[int, Field(ge=0)]  # 0: off


class Config(BaseModel):
    """What all configs share: frozen, strict types, unknown keys refused, mistakes raised as `LabError`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as err:
            raise _explain(type(self), err, where="") from None

    # pydantic calls a custom __init__ for nested models too, and a LabError raised there would lose the outer table's
    # name. This mark (pydantic's own, on BaseModel and RootModel) says: validate nested models directly.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # pydantic looks for it on the function

    def replace(self: AnyConfig, **changes: Any) -> AnyConfig:
        """A copy with some fields changed, checked again: `config.replace(perturb=2**-9)`."""
        unchanged = {k: getattr(self, k) for k in self.model_fields_set if k not in changes}
        return type(self)(**unchanged, **changes)


def load_toml(path: str | Path, model: type[AnyModel]) -> AnyModel:
    """Read a TOML file into a config. Raises LabError for a missing file, bad TOML, or anything the config refuses."""
    return strict_validate(model, read_file(Path(path), tomllib.loads, "TOML"), where=str(path))


def read_file(path: Path, parse: Callable[[str], Any], form: str) -> Any:
    """What `parse` (json.loads, tomllib.loads) makes of a file's text. LabError: no file, or one that is no `form`."""
    try:
        return parse(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise LabError(f"there is no config file {path}: check the name") from None
    except (OSError, UnicodeDecodeError) as err:
        raise LabError(f"cannot read the config file {path}: {err}") from None
    except ValueError as err:
        raise LabError(f"{path} is not valid {form}: {err}") from None


def strict_validate(model: type[AnyModel], values: Mapping[str, Any], where: str = "") -> AnyModel:
    """`values` as a config (any pydantic model); `where` (a file name, say) begins every complaint. Raises LabError."""
    if not isinstance(values, Mapping):
        raise LabError(f"{where or 'the config'}: expected a table, not {values!r}")
    try:
        return model.model_validate(dict(values))
    except ValidationError as err:
        raise _explain(model, err, where) from None


def require(condition: bool, sentence: str) -> None:
    """For cross-field checks inside a config's validator: the sentence reaches the user as a LabError."""
    if not condition:
        raise ValueError(sentence)


def nearest(wrong: str, valid: Iterable[str]) -> str:
    """The end of a complaint about a wrong name: the valid one that is like it, or all of them (of very many, some)."""
    valid = list(valid)
    close = difflib.get_close_matches(wrong, valid, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; the valid ones are: {', '.join(valid[:30])}"


def _explain(model: type[BaseModel], error: ValidationError, where: str) -> LabError:
    """Pydantic's errors as sentences, one a line: unknown keys first, since one often explains a missing key."""
    found = sorted(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")
    sentences = dict.fromkeys(_sentence(model, e) for e in found if e["type"] != "missing")
    missing: dict[str, list[str]] = {}
    for e in found:
        if e["type"] == "missing":
            _, tables, key = _locate(model, e["loc"])
            missing.setdefault(_place(tables), []).append(repr(key))
    for place, keys in missing.items():
        sentences[f"{place}{', '.join(keys)} {'is' if len(keys) == 1 else 'are'} missing"] = None
    return LabError("\n".join(f"{where}: {s}" if where else s for s in sentences))


def _place(tables: list[str]) -> str:
    return f"in [{'.'.join(tables)}], " if tables else ""


def _sentence(model: type[BaseModel], error: Mapping[str, Any]) -> str:
    owner, tables, key = _locate(model, error["loc"])
    place = _place(tables)
    kind, given, limits = error["type"], error.get("input"), error.get("ctx") or {}
    if kind == "extra_forbidden":
        return f"{place}{key!r} is not a known key{nearest(key, owner.model_fields)}"
    if kind == "value_error":  # a check across the fields of a table: `key` is that table
        field = owner.model_fields.get(key)
        whole_table = key and (field is None or _inside(field.annotation)[0])
        return f"{_place([*tables, key]) if whole_table else place}{limits['error']}"
    wanted = _TYPE_WORDS.get(kind)
    said = f"must be {wanted.format(**limits)}, not {given!r}" if wanted else f"is wrong ({error['msg']})"
    return f"{place}{key or 'the config'} {said}"


_TYPE_WORDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "bool_type": "true or false",
    "string_too_short": "a string that is not empty",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "one of {expected}",
    "list_type": "a list",
    "tuple_type": "a list",
    "too_long": "a list of {max_length}",
    "too_short": "a list of at least {min_length}",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "dict_type": "a table",
}


def _locate(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[type[BaseModel], list[str], str]:
    """Follow a pydantic location to (the class that owns the key, the TOML tables above it, the key)."""
    owner: type[BaseModel] = model
    here: Any = model
    tables: list[str] = []
    key = ""
    for part in loc:
        model_here, values = _inside(here)
        if isinstance(part, int):
            key, here = f"{key}[{part}]", values
        elif part.startswith("<") or not (model_here or values):
            continue  # a member of a union: no place in the file
        else:
            tables += [key] if key else []
            key, owner = part, model_here or owner
            field = owner.model_fields.get(part) if model_here else None
            here = values if not model_here else field.annotation if field else None
    return owner, tables, key


def _inside(annotation: Any) -> tuple[type[BaseModel] | None, Any]:
    """(the model class, the type of a dict's or list's values) that an annotation holds; None for none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, None
    arguments = get_args(annotation)
    if get_origin(annotation) in (dict, list):
        return None, arguments[-1]
    if get_origin(annotation) in (Union, UnionType, Annotated):
        members = [_inside(member) for member in arguments]
        return next((m for m, _ in members if m), None), next((v for _, v in members if v), None)
    return None, None
