"""Records that are kept as a file: JSON that a person can read, sealed so that one that was edited is refused."""

from __future__ import annotations

import hashlib
import json
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.settings import sentence
from rksc_tot.core.plugins.user_code import shown

SEAL = "seal"


class ChecksummedRecord(BaseModel):
    """Base of such records. ``kind``: what one is called in messages, such as ``calibration``. ``again``: how to make one."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: ClassVar[str]
    again: ClassVar[str]

    def save(self, file: Path | str) -> None:
        """Write it as JSON that can be read, and sealed: a file that was edited is refused.

        Raises
        ------
        ConfigError
            If the file cannot be written.
        """
        try:
            sealed = json.loads(self.model_dump_json()) | {SEAL: self._seal()}
            Path(file).write_text(json.dumps(sealed, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{str(file)!r} cannot be written: {error.strerror or error}") from None

    @classmethod
    def load(cls, file: Traversable | str) -> Self:
        """What :meth:`save` wrote, checked anew.

        Raises
        ------
        ConfigError
            If the file cannot be read, or is no such record.
        """
        try:
            text = (Path(file) if isinstance(file, str) else file).read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigError(f"the {cls.kind} {str(file)!r} cannot be read: {why}", hint=cls.again) from None
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            raise ConfigError(f"{str(file)!r} is not a {cls.kind}: it is no JSON", hint=cls.again) from None
        if not isinstance(record, dict) or SEAL not in record:
            raise ConfigError(f"{str(file)!r} is not a {cls.kind}", hint=cls.again)
        seal = record.pop(SEAL)
        try:
            found = cls.model_validate_json(json.dumps(record))
        except ValidationError as error:
            raise ConfigError(
                f"{str(file)!r} is not a {cls.kind}: {shown(sentence(error), 300)}", hint=cls.again
            ) from None
        if seal != found._seal():
            raise ConfigError(f"the {cls.kind} {str(file)!r} has been changed since it was written", hint=cls.again)
        return found

    def _seal(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()
