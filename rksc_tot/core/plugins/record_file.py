"""Records in JSON files with a checksum, so that edited files are refused."""

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

CHECKSUM = "seal"  # key in the file


class ChecksummedRecord(BaseModel):
    """Base of records. ``kind``: their name in messages, such as ``calibration``. ``again``: the hint how to make one."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: ClassVar[str]
    again: ClassVar[str]

    def save(self, file: Path | str) -> None:
        """Write the record as JSON with a checksum. :meth:`load` refuses edited files.

        Raises
        ------
        ConfigError
            If the file cannot be written.
        """
        try:
            record = json.loads(self.model_dump_json()) | {CHECKSUM: self._checksum()}
            Path(file).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{str(file)!r} cannot be written: {error.strerror or error}") from None

    @classmethod
    def load(cls, file: Traversable | str) -> Self:
        """Load and check a file that :meth:`save` wrote.

        Raises
        ------
        ConfigError
            If the file cannot be read or holds no valid record.
        """
        try:
            text = (Path(file) if isinstance(file, str) else file).read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigError(f"the {cls.kind} {str(file)!r} cannot be read: {why}", hint=cls.again) from None
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            raise ConfigError(f"{str(file)!r} is not a {cls.kind}: it is not JSON", hint=cls.again) from None
        if not isinstance(record, dict) or CHECKSUM not in record:
            raise ConfigError(f"{str(file)!r} is not a {cls.kind}", hint=cls.again)
        checksum = record.pop(CHECKSUM)
        try:
            found = cls.model_validate_json(json.dumps(record))
        except ValidationError as error:
            raise ConfigError(
                f"{str(file)!r} is not a {cls.kind}: {shown(sentence(error), 300)}", hint=cls.again
            ) from None
        if checksum != found._checksum():
            raise ConfigError(f"the {cls.kind} {str(file)!r} has been changed since it was written", hint=cls.again)
        return found

    def _checksum(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()
